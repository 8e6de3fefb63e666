"""Running sums, products and extrema: op_db entries, then ties, NaN and 0-d tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import check_opinfo
from tests.ops.test_reduce import check

aten = torch.ops.aten
NAMES = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff", "trapezoid", "cumulative_trapezoid"]
FORWARD_ONLY = {
    torch.int64: ["cumsum", "cumprod", "cummax", "diff"],
    torch.bool: ["cumsum", "cummin"],
    torch.bfloat16: ["cumsum", "cumprod", "cummin", "logcumsumexp"],
    torch.complex64: ["cumsum", "cumprod", "logcumsumexp"],
}
ENTRIES = {op.name: op for op in op_db if op.name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_float32(name: str) -> None:
    assert not check_opinfo(ENTRIES[name], torch.float32, samples=2)


@pytest.mark.parametrize(
    ("dtype", "name"), [(d, n) for d, names in FORWARD_ONLY.items() for n in names], ids=lambda p: str(p)
)
def test_other_dtypes(dtype: torch.dtype, name: str) -> None:
    if dtype in ENTRIES[name].supported_dtypes("cpu"):
        assert not check_opinfo(ENTRIES[name], dtype, samples=2, backward=False)


@pytest.mark.parametrize("overload", [aten.cummax.default, aten.cummin.default], ids=str)
def test_last_of_equals_and_nan_win(overload: Any) -> None:
    nan = math.nan
    for values in ([1.0, 1.0, 3.0, 3.0, 1.0], [1.0, nan, 2.0, nan, 0.0], [nan, nan], [0.0, -0.0, 0.0]):
        check(overload, torch.tensor(values), 0)
    check(overload, torch.tensor([[1, 2], [1, 0], [0, 2]]), -2)


def test_small() -> None:
    for overload in (aten.cumsum.default, aten.cumprod.default, aten.cummax.default, aten.logcumsumexp.default):
        check(overload, torch.tensor(2.0), -1)
        check(overload, torch.ones(2, 0), 1)
        check(overload, torch.ones(0, 2), 1)


def test_dtypes_of_sums() -> None:
    x = torch.tensor([100, 100, 100], dtype=torch.int8)
    check(aten.cumsum.default, x, 0)
    check(aten.cumsum.default, x, 0, dtype=torch.int8)  # wraps
    check(aten.cumprod.default, x, 0, dtype=torch.float32)
    check(aten.cumsum.default, torch.tensor([True, True]), 0)


def test_logcumsumexp_of_infinities() -> None:
    infinite = math.inf
    check(aten.logcumsumexp.default, torch.tensor([-infinite, -infinite, 0.0, infinite, 1.0]), 0)
