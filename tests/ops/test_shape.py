"""Ops that only move elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import agrees, assert_agrees, assert_slot_agrees, entries

aten = torch.ops.aten
NAMES = [
    "view_copy",
    "permute_copy",
    "t_copy",
    "transpose_copy",
    "expand",
    "expand_copy",
    "squeeze_copy",
    "unsqueeze_copy",
    "slice",
    "select",
    "narrow",
    "narrow_copy",
    "diagonal_copy",
    "diagonal",
    "unbind",
    "split",
    "split_with_sizes",
    "unsafe_split",
    "unfold_copy",
    "unfold",
    "as_strided",
    "as_strided_copy",
    "as_strided_scatter",
    "flip",
    "roll",
    "rot90",
    "cat",
    "stack",
    "repeat",
    "tile",
    "constant_pad_nd",
    "nn.functional.pad",
    "tril",
    "triu",
    "diag_embed",
    "slice_scatter",
    "select_scatter",
    "diagonal_scatter",
    "nn.functional.pixel_shuffle",
    "nn.functional.pixel_unshuffle",
    "nn.functional.channel_shuffle",
    "nn.functional.unfold",
    "block_diag",
    "repeat_interleave",
    "view_as_real",
    "view_as_complex",
    "diag",
    "resize_",
    "view",
    "atleast_1d",
]
FEW = {
    "cat",
    "nn.functional.pad",
    "roll",
    "nn.functional.unfold",
    "diagonal_copy",
    "slice_scatter",
    "view_as_real",
    "tril",
    "view_as_complex",
    "as_strided_copy",
}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {
    ("as_strided.partial_views", "float32"): "the harness hands over the view, not the storage behind it",
}


@pytest.mark.parametrize(
    ("op", "dtype"),
    entries(NAMES, torch.float32) + entries(FEW, torch.int64, torch.bool, torch.bfloat16, torch.complex64),
)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, EXPECTED)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "neg slice": lambda: torch.arange(10)[-3:100:2],
    "roll": lambda: torch.roll(torch.randn(3, 4), (7, -1), (0, -1)),
    "pad neg": lambda: F.pad(torch.randn(3, 4), (-1, 2, 1, -1), value=3.5),
    "pad int": lambda: F.pad(torch.arange(6).view(2, 3), (1, 1), value=2.7),
    "reflect": lambda: F.pad(torch.randn(1, 3, 4), (3, -1), mode="reflect"),
    "unfold": lambda: torch.randn(40).unfold(0, 35, 2),
    "unfold 0d": lambda: torch.tensor(1.0).unfold(0, 1, 1),
    "unfold size0": lambda: torch.randn(4).unfold(0, 0, 1),
    "as_strided": lambda: torch.randn(24).as_strided((2, 3), (1, 4), 3),
    "as_strided bc": lambda: torch.randn(24).as_strided((2, 5, 3), (3, 0, 1), 3),
    "as_strided overlap": lambda: torch.randn(24).as_strided((4, 4), (2, 1)),
    "as_strided neg none": lambda: torch.randn(4, 6).as_strided((), (), 7),
    "diag": lambda: torch.diagonal(torch.randn(3, 5, 4), -2, 2, 0),
    "diag out": lambda: torch.diagonal(torch.randn(3, 5), 9),
    "diag_embed": lambda: torch.diag_embed(torch.randn(2, 3), -2, 0, 2),
    "diag_scatter": lambda: torch.diagonal_scatter(torch.randn(3, 5), torch.randn(3), 1),
    "slice_scatter step": lambda: torch.slice_scatter(torch.randn(3, 8), torch.randn(3, 3), 1, 1, 7, 2),
    "view dtype": lambda: aten.view_copy.dtype(torch.randn(3, 4), torch.int16),
    "view dtype up": lambda: aten.view_copy.dtype(torch.randn(3, 4).bfloat16(), torch.float32),
    "view dtype c": lambda: aten.view_copy.dtype(torch.randn(3, 4, dtype=torch.complex64), torch.float32),
    "view dtype c2": lambda: aten.view_copy.dtype(torch.randn(3, 4), torch.complex64),
    "view dtype b": lambda: aten.view_copy.dtype(torch.randn(3, 4) > 0, torch.uint8),
    "view dtype b2": lambda: aten.view_copy.dtype((torch.randn(3, 4) > 0).byte(), torch.bool),
    "cat legacy": lambda: torch.cat([torch.zeros(0), torch.randn(2, 3)], 1),
    "cat types": lambda: torch.cat([torch.zeros(2, dtype=torch.int64), torch.randn(2).bfloat16()]),
    "cat all empty": lambda: torch.cat([torch.zeros(0), torch.zeros(0)]),
    "split0": lambda: torch.split(torch.zeros(0, 3), 2),
    "split sizes": lambda: torch.split(torch.randn(5, 3), [0, 5], 0),
    "ri": lambda: torch.repeat_interleave(torch.tensor([1, 0, 2])),
    "ri int": lambda: torch.randn(2, 3).repeat_interleave(2, -1),
    "block_diag": lambda: torch.block_diag(torch.tensor(1), torch.randn(2), torch.randn(2, 3)),
    "shuffle": lambda: aten.native_channel_shuffle(torch.randn(1, 6, 2, 2), 3),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    agrees(CASES[case], rtol=None, atol=None)


def test_scalar_slots() -> None:
    """Numbers that have become inputs of the program: 0-d weakly typed arrays under jit."""
    for op, args, number in SLOTS:
        assert_slot_agrees(op, args, number)


SLOTS = [(aten.constant_pad_nd.default, (torch.arange(3), [1, 2]), 2.5)]
