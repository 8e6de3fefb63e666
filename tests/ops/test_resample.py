"""Interpolation and grid sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import agrees, assert_agrees, entries

aten = torch.ops.aten
NAMES = [
    "nn.functional.interpolate",
    "nn.functional.upsample_bilinear",
    "nn.functional.upsample_nearest",
    "_upsample_bilinear2d_aa",
    "nn.functional.grid_sample",
    "grid_sampler_2d",
]
FEW = {"nn.functional.upsample_bilinear", "nn.functional.interpolate", "nn.functional.upsample_nearest"}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {
    (
        "nn.functional.interpolate.bicubic",
        "uint8",
    ): "the CPU kernel has 16-bit fixed-point weights: some values differ by 1 or 2"
}


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + entries(FEW, torch.uint8, torch.bfloat16))
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, EXPECTED, compiled=True)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "up sf": lambda: F.interpolate(torch.randn(1, 2, 7, 5), scale_factor=1.7, mode="bilinear"),
    "up3 cubic": lambda: F.interpolate(torch.randn(1, 2, 7, 5), scale_factor=3, mode="bicubic"),
    "up 2 bil": lambda: F.interpolate(torch.randn(1, 2, 7, 5), scale_factor=2, mode="bilinear"),
    "down cub aa": lambda: F.interpolate(torch.randn(1, 2, 17, 15), size=(5, 6), mode="bicubic", antialias=True),
    "up inf": lambda: F.interpolate(torch.tensor([[[1.0, float("inf"), 2, 3]]]), scale_factor=2, mode="linear"),
    "up empty": lambda: F.interpolate(torch.randn(0, 2, 7, 5), scale_factor=2, mode="bilinear"),
}


if hasattr(aten, "_upsample_lanczos2d_aa"):  # newer than torch 2.9
    CASES["lanczos"] = lambda: aten._upsample_lanczos2d_aa(torch.randn(1, 2, 17, 15), [5, 6], False)


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    agrees(CASES[case], rtol=None, atol=None)
