"""Every `_foreach_*` op against the CPU, over lists of mixed shapes and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import foreach_unary_op_db

from tests.ops.harness import CheckLowerings

SHAPES = ((2, 3), (4,), (), (0, 5))


def tensors(dtype: torch.dtype = torch.float32, low: float = 0.1, high: float = 0.9) -> list[torch.Tensor]:
    return [(torch.rand(s) * (high - low) + low).to(dtype) for s in SHAPES]


def check(name: str, *args: Any, **kwargs: Any) -> None:
    with CheckLowerings() as mode:
        getattr(torch, name)(*args, **kwargs)
    assert any(f"aten.{name.rstrip('_')}." in call and "[native]" in call for call in mode.calls)
    assert mode.failures == []


UNARY = sorted({op.name for op in foreach_unary_op_db})


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    check(f"{name}_" if name == "_foreach_zero" else name, tensors())


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "clamp_min", "clamp_max", "maximum", "minimum", "pow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_binary(name: str, dtype: torch.dtype) -> None:
    xs, ys = tensors(dtype), tensors(dtype)
    for other in (ys, 0.7, [0.3, 0.5, 0.7, 0.9]):
        check(f"_foreach_{name}", xs, other)


def test_binary_with_options() -> None:
    xs, ys = tensors(), tensors()
    check("_foreach_add", xs, ys, alpha=0.3)
    check("_foreach_sub", xs, ys, alpha=2)
    for name in ("add", "mul", "div"):
        check(f"_foreach_{name}", xs, torch.tensor(0.7))
    check("_foreach_add", xs, torch.tensor(0.7), alpha=0.5)
    check("_foreach_pow", 2.5, xs)
    check("_foreach_add", [torch.arange(3), torch.ones(2, dtype=torch.bool)], 1.5)  # promotes to float, each alone


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_pointwise(name: str) -> None:
    xs, ys, zs = tensors(), tensors(), tensors()
    for value in (0.5, [0.1, 0.2, 0.3, 0.4], torch.tensor([0.1, 0.2, 0.3, 0.4])):
        check(f"_foreach_{name}", xs, ys, zs, value)


def test_lerp() -> None:
    xs, ys = tensors(), tensors()
    for weight in (0.25, 0.75, [0.1, 0.9, 0.2, 0.8], tensors()):
        check("_foreach_lerp", xs, ys, weight)


def test_copy() -> None:
    check("_foreach_copy_", tensors(torch.float32), tensors(torch.bfloat16))
    check("_foreach_copy_", [torch.zeros(2, 3)], [torch.ones(3)])


@pytest.mark.parametrize("order", [0, 1, 2, 3.5, float("inf")])
def test_norm(order: float) -> None:
    check("_foreach_norm", tensors(low=-0.9)[:3], order)
    check("_foreach_norm", tensors(torch.bfloat16)[:2], order, dtype=torch.float32)


def test_max_and_mm() -> None:
    check("_foreach_max", tensors()[:3])
    if hasattr(torch, "_foreach_mm"):  # from torch 2.13 on
        check("_foreach_mm", [torch.rand(2, 3)], [torch.rand(3, 4)])


def test_a_list_of_one() -> None:
    check("_foreach_mul", [torch.rand(2)], 0.5)
