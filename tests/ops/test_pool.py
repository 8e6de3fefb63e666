"""Pooling: op_db entries, then ties, NaN, padding and large windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries

aten = torch.ops.aten
NAMES = [f"nn.functional.{kind}_pool{n}d" for n in (1, 2, 3) for kind in ("max", "avg", "adaptive_avg", "adaptive_max")]
NAMES += ["nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.lp_pool2d"]
NAMES += ["nn.functional.max_unpool2d", "nn.functional.max_unpool3d"]
FORWARD_ONLY = {
    torch.int64: ["nn.functional.max_pool2d", "nn.functional.avg_pool2d"],
    torch.bfloat16: ["nn.functional.max_pool2d", "nn.functional.avg_pool2d", "nn.functional.adaptive_avg_pool2d"],
}
NAN, INFINITE = float("nan"), float("inf")


OTHERS = [case for dtype, names in FORWARD_ONLY.items() for case in entries(names, dtype)]


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + OTHERS)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, compiled=True)


def test_indices_of_ties_and_nan() -> None:
    """The first of equal maxima, the last NaN, and the first real element where all are -inf."""
    x = torch.tensor([[1.0, 1.0, NAN, 0.0], [1.0, NAN, 2.0, 2.0], [-INFINITE] * 4, [-INFINITE] * 4])[None]
    for kernel, stride, padding in ((2, 2, 0), (3, 2, 1), ((4, 1), 1, 0)):
        agrees(torch.nn.functional.max_pool2d, x, kernel, stride, padding, return_indices=True)
    agrees(torch.nn.functional.adaptive_max_pool2d, x, 2, return_indices=True)
    agrees(torch.nn.functional.adaptive_max_pool2d, x, 3, return_indices=True)


@pytest.mark.parametrize("window", [(3, 2, 1, 1), (2, 3, 1, 2), (7, 3, 3, 1), (6, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max(window: tuple[int, int, int, int], ceil_mode: bool) -> None:
    """Windows on both sides of the size at which they are no longer unrolled; ties abound."""
    x = torch.randint(0, 4, (2, 3, 16, 17)).float().requires_grad_()
    where = (*window, ceil_mode)  # kernel, stride, padding, dilation
    agrees(lambda: torch.nn.functional.max_pool2d(x, *where).square().sum().backward())
    flat = x.detach() * 0 - INFINITE
    flat[0, 0, 3, 4], flat[0, 0, 3, 5] = NAN, NAN
    agrees(aten.max_pool2d_with_indices, flat, *where)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize("override", [None, 7])
def test_average(ceil_mode: bool, include_pad: bool, override: int | None) -> None:
    x = torch.randn(2, 3, 9, 10, requires_grad=True)
    where = ((3, 2), (2, 3), (1, 1), ceil_mode, include_pad, override)
    agrees(lambda: torch.nn.functional.avg_pool2d(x, *where).square().sum().backward())


@pytest.mark.parametrize("out", [(1, 1), (3, 4), (5, 5), (6, 7), (12, 14), (13, 9)])
def test_adaptive_average(out: tuple[int, int]) -> None:
    """Windows that divide the input, overlap, or are repeated; an infinity stays within its window."""
    x = torch.randn(2, 3, 6, 7)
    x[0, 0, 0, 0] = INFINITE
    agrees(aten._adaptive_avg_pool2d, x, out)
    agrees(aten._adaptive_avg_pool2d_backward, torch.randn(2, 3, *out), x)


def test_integers_divide_towards_zero() -> None:
    agrees(aten.avg_pool2d, torch.tensor([[[-1, -2], [-3, -1]]]), 2)
