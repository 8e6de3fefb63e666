"""Matrix products: op_db entries, integers, scalar slots, and a beta of zero."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries
from tests.ops.harness import to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten
NAMES = ["mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addr", "outer", "matmul", "einsum"]
NAMES += ["nn.functional.linear", "nn.functional.bilinear", "linalg.multi_dot"]
FORWARD_ONLY = {
    torch.int64: ["mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addr", "matmul"],
    torch.bool: ["addr"],
    torch.bfloat16: ["mm", "addmm", "baddbmm", "nn.functional.linear"],
    torch.complex64: ["mm", "addmm", "vdot", "einsum"],
}


OTHERS = [case for dtype, names in FORWARD_ONLY.items() for case in entries(names, dtype)]


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + OTHERS)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype)


def test_beta_of_zero_ignores_the_input() -> None:
    agrees(torch.addmm, torch.full((2, 2), torch.nan), torch.ones(2, 3), torch.ones(3, 2), beta=0, alpha=2)


@pytest.mark.parametrize(("beta", "alpha"), [(0.0, 1.5), (2.0, 0.5)])
def test_scalar_slots(beta: float, alpha: float) -> None:
    """beta and alpha as inputs of the program: a beta that turns out to be zero still ignores NaN."""
    bias, x, y = torch.tensor([torch.nan, 1.0]), torch.randn(3, 4), torch.randn(4, 2)
    want = torch.addmm(bias, x, y, beta=beta, alpha=alpha)

    def run(b: Any, a: Any) -> Any:
        return lower(aten.addmm.default, [to_jax(t) for t in (bias, x, y)], {"beta": b, "alpha": a}, specs_of(want))[0]

    with jax.enable_x64(True):
        torch.testing.assert_close(to_torch(jax.jit(run)(beta, alpha)), want, equal_nan=True)


def test_integers_wrap() -> None:
    agrees(torch.mm, torch.full((2, 3), 100, dtype=torch.int8), torch.full((3, 2), 100, dtype=torch.int8))
    agrees(torch._int_mm, torch.full((32, 32), 100, dtype=torch.int8), torch.full((32, 32), -100, dtype=torch.int8))


def test_sum_over_the_batch() -> None:
    """The order of the additions differs from the CPU's: the tolerances of op_db are too tight."""
    agrees(torch.addbmm, torch.randn(2, 4), torch.randn(3, 2, 5), torch.randn(3, 5, 4), beta=0.5, alpha=2)


def test_empty() -> None:
    agrees(torch.mm, torch.ones(2, 0), torch.ones(0, 3))
    agrees(torch.addmm, torch.ones(3), torch.ones(0, 2), torch.ones(2, 3))


def test_16_bit_rounds_once() -> None:
    """The sum is in float32 until the bias is in."""
    x, y = torch.full((1, 256), 1.0, dtype=torch.bfloat16), torch.full((256, 1), 1.0, dtype=torch.bfloat16)
    agrees(torch.addmm, torch.full((1, 1), 1.0, dtype=torch.bfloat16), x, y)


def test_activation() -> None:
    for use_gelu in (False, True):
        agrees(aten._addmm_activation, torch.randn(3), torch.randn(2, 4), torch.randn(4, 3), use_gelu=use_gelu)
