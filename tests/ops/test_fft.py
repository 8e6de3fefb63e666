"""Fourier transforms: op_db entries, then more dims than XLA takes at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries

aten = torch.ops.aten
NAMES = [
    f"fft.{kind}"
    for kind in ("fft", "fft2", "fftn", "ifft", "ifftn", "rfft", "rfftn", "irfft", "irfftn", "hfft", "ihfft")
]
FORWARD_ONLY = {torch.complex64: ["fft.fft", "fft.fftn", "fft.irfft"], torch.int64: ["fft.fft", "fft.rfft"]}


OTHERS = [case for dtype, names in FORWARD_ONLY.items() for case in entries(names, dtype)]


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + OTHERS)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_many_dims(norm: str) -> None:
    x = torch.randn(2, 3, 4, 3, 5)
    dims = (3, 0, -1, 1, 2)
    for transform in (torch.fft.fftn, torch.fft.rfftn, torch.fft.ifftn):
        agrees(transform, x, dim=dims, norm=norm)
    agrees(torch.fft.irfftn, torch.fft.rfftn(x), s=(2, 3, 4, 3, 5), norm=norm)


@pytest.mark.parametrize("length", [7, 8])
def test_length_of_the_real_side(length: int) -> None:
    agrees(torch.fft.irfft, torch.randn(3, 5, dtype=torch.complex64), n=length)
