"""Fourier transforms: op_db entries, then more dims than XLA takes at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo

aten = torch.ops.aten
NAMES = [
    f"fft.{kind}"
    for kind in ("fft", "fft2", "fftn", "ifft", "ifftn", "rfft", "rfftn", "irfft", "irfftn", "hfft", "ihfft")
]
FORWARD_ONLY = {torch.complex64: ["fft.fft", "fft.fftn", "fft.irfft"], torch.int64: ["fft.fft", "fft.rfft"]}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def agrees(fn: Any, *args: Any, **kwargs: Any) -> None:
    """Every aten call that `fn` makes gives, lowered, what the CPU gives."""
    with CheckLowerings(rtol=1e-4, atol=1e-4) as mode:
        fn(*args, **kwargs)
    assert mode.calls
    assert not mode.failures


@pytest.mark.parametrize("name", NAMES)
def test_float32(name: str) -> None:
    for op in [o for o in op_db if o.name == name]:
        assert not check_opinfo(op, torch.float32, samples=2), op.full_name


@pytest.mark.parametrize(("dtype", "name"), [(d, n) for d, names in FORWARD_ONLY.items() for n in names], ids=str)
def test_other_dtypes(dtype: torch.dtype, name: str) -> None:
    for op in [o for o in op_db if o.name == name]:
        assert not check_opinfo(op, dtype, samples=2, backward=False), op.full_name


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
