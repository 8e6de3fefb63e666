"""Reductions: op_db entries, then ties, NaN, empty lists of dims and scalar slots."""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten
NAMES = [
    "sum",
    "mean",
    "nansum",
    "prod",
    "amax",
    "amin",
    "aminmax",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "norm",
    "logsumexp",
    "count_nonzero",
    "hash_tensor",
    "bincount",
    "histc",
    "histogram",
    "histogramdd",
]
FORWARD_ONLY = {
    torch.int64: ["sum", "prod", "amax", "max", "min", "argmax", "argmin", "any", "count_nonzero", "bincount"],
    torch.bool: ["sum", "prod", "amax", "max", "argmax", "any", "all"],
    torch.bfloat16: ["sum", "mean", "amax", "max", "var", "logsumexp"],
    torch.complex64: ["sum", "mean", "prod", "any", "var", "std_mean"],
}
INFINITE, NAN = math.inf, math.nan


def entries(name: str) -> list[Any]:
    # norm's other variants decompose into linalg, tested there
    return [o for o in op_db if o.name == name and not (name == "norm" and o.variant_test_name)]


@pytest.mark.parametrize("name", NAMES)
def test_float32(name: str) -> None:
    for op in entries(name):
        assert not check_opinfo(op, torch.float32, samples=2)


@pytest.mark.parametrize(
    ("dtype", "name"), [(d, n) for d, names in FORWARD_ONLY.items() for n in names], ids=lambda p: str(p)
)
def test_other_dtypes(dtype: torch.dtype, name: str) -> None:
    for op in entries(name):
        if dtype in op.supported_dtypes("cpu"):
            assert not check_opinfo(op, dtype, samples=2, backward=False)


def check(overload: Any, *args: Any, **named: Any) -> None:
    """The lowering of one call agrees with the CPU kernel."""
    expected = overload(*args, **named)
    with jax.enable_x64(True):
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        got = lower(overload, arrays, named, specs_of(expected))
        wanted = expected if isinstance(expected, (tuple, list)) else [expected]
        for g, w in zip(got, wanted, strict=True):
            torch.testing.assert_close(to_torch(g), w, equal_nan=True)


@pytest.mark.parametrize("values", [[1, 3, 3, 1], [NAN, 3, NAN, 5], [0.0, -0.0, 0.0], [-INFINITE] * 3], ids=str)
@pytest.mark.parametrize("overload", [aten.max.dim, aten.min.dim], ids=str)
def test_first_extremum_and_nan_win(values: list[float], overload: Any) -> None:
    check(overload, torch.tensor(values), 0)
    check(overload, torch.tensor([values, values]).T.contiguous(), -2, True)


@pytest.mark.parametrize("overload", [aten.argmax.default, aten.argmin.default], ids=str)
def test_index_of_extremum(overload: Any) -> None:
    for x in (torch.tensor([[1.0, math.nan], [math.nan, 2]]), torch.tensor([[5, 1], [1, 5]], dtype=torch.uint8)):
        check(overload, x)
        check(overload, x, None, True)
        check(overload, x, -1, True)
    check(overload, torch.tensor(3.0), 0)


def test_no_dims() -> None:
    """An empty list of dims means all dims, except to any and all."""
    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    for overload in (aten.sum.dim_IntList, aten.mean.dim, aten.any.dims, aten.all.dims, aten.amax.default):
        check(overload, x, [])
    for overload in (aten.any.dims, aten.all.dims):
        check(overload, x, None, True)
    check(aten.count_nonzero.dim_IntList, x, [])


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")  # torch's own, from 2.15 on
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    for overload in (aten.sum.dim_IntList, aten.mean.dim, aten.nansum.default, aten.any.dim, aten.logsumexp.default):
        check(overload, x, 0 if overload is aten.any.dim else [0])
    check(aten.prod.dim_int, x, 0)
    check(aten.var.correction, x, [0])


def test_integers() -> None:
    x = torch.tensor([200, 100], dtype=torch.uint8)
    check(aten.sum.default, x)
    check(aten.prod.default, x)
    check(aten.sum.default, x, dtype=torch.uint8)  # wraps
    check(aten.any.default, x)  # uint8 stays uint8
    check(aten.sum.default, torch.tensor([2**62, 2**62]))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")  # torch's own, from 2.15 on
@pytest.mark.parametrize("correction", [None, 0, 1, 0.5, 5])
def test_variance(correction: Any) -> None:
    for x in (torch.randn(4, 3), torch.randn(4, 3, dtype=torch.complex64), torch.full((4, 3), 1e4) + torch.randn(4, 3)):
        check(aten.var_mean.correction, x, [1], correction=correction)
        check(aten.std.correction, x, None, correction=correction, keepdim=True)


@pytest.mark.parametrize("p", [None, 0, 1, 2, 3.5, -1, INFINITE, -INFINITE])
def test_norm(p: Any) -> None:
    for x in (torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64)):
        check(aten.norm.ScalarOpt_dim, x, p, [1], True)
    check(aten.norm.ScalarOpt_dtype, torch.randn(3, 4), p, dtype=torch.float64)


def test_logsumexp_of_infinities() -> None:
    check(aten.logsumexp.default, torch.tensor([[-INFINITE, -INFINITE], [INFINITE, 0.0], [NAN, 1.0]]), [1])
    check(aten.logsumexp.default, torch.arange(4).reshape(2, 2), [0])


def test_correction_as_input() -> None:
    x = torch.randn(5)
    with jax.enable_x64(True):
        run = jax.jit(lambda a, c: lower(aten.var.correction, (a,), {"correction": c}, specs_of(x.sum()))[0])
        torch.testing.assert_close(to_torch(run(to_jax(x), 2)), x.var(correction=2))


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0, 0.3], [2.0, 2.0], [NAN, 0.5, 7.0, -1.0], []], ids=str)
def test_histc(values: list[float]) -> None:
    check(aten.histc.default, torch.tensor(values), 4, 0, 1)
    if not any(map(math.isnan, values)):  # the CPU refuses a range that is not finite
        check(aten.histc.default, torch.tensor(values), 4)
