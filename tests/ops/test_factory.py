"""Tensors made from numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, assert_slot_agrees, entries

aten = torch.ops.aten
NAMES = [
    "arange",
    "linspace",
    "logspace",
    "full",
    "zeros",
    "ones",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
    "fill",
    "zero_",
    "scalar_tensor",
    "eye",
    "triu_indices",
    "tril_indices",
]
FEW = {"eye", "zeros_like", "arange", "fill", "logspace", "full", "linspace"}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {}


@pytest.mark.parametrize(
    ("op", "dtype"),
    entries(NAMES, torch.float32) + entries(FEW, torch.int64, torch.bool, torch.bfloat16, torch.complex64),
)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, EXPECTED)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "arange f": lambda: torch.arange(0.1, 5, 0.3),
    "arange bf": lambda: torch.arange(0, 300, 1, dtype=torch.bfloat16),
    "arange neg": lambda: torch.arange(5, -7, -3),
    "arange big": lambda: torch.arange(2**40, 2**40 + 5),
    "linspace int": lambda: torch.linspace(-3, 11, 6, dtype=torch.int64),
    "linspace 1": lambda: torch.linspace(-3, 11, 1),
    "logspace": lambda: torch.logspace(0, 4, 5, 2.0, dtype=torch.int32),
    "hann": lambda: torch.hann_window(7),
    "hamm": lambda: torch.hamming_window(8, False, 0.5, 0.4),
    "blk": lambda: torch.blackman_window(9, dtype=torch.float64),
    "bart": lambda: torch.bartlett_window(6, False),
    "kais": lambda: torch.kaiser_window(9, True, 5.0),
    "kais1": lambda: torch.kaiser_window(9, False),
    "eye": lambda: torch.eye(3, 5, dtype=torch.bool),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    agrees(CASES[case], rtol=None, atol=None)


def test_scalar_slots() -> None:
    """Numbers that have become inputs of the program: 0-d weakly typed arrays under jit."""
    for op, args, number in SLOTS:
        assert_slot_agrees(op, args, number)


SLOTS = [
    (aten.full.default, ([2, 3],), 2.5),
    (aten.full_like.default, (torch.arange(3),), -2.5),
    (aten.fill.Scalar, (torch.ones(2, dtype=torch.bfloat16),), 3),
    (aten.scalar_tensor.default, (), 4.0),
    (aten.arange.start_step, (1, 8), 2),
    (aten.arange.start_step, (0.5, 8), 0.25),
]
