"""Activations and softmax: op_db entries forward and backward, and the corners that its samples leave out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo, to_jax
from torch_xla._src.ops.lower import lower, specs_of

NAMES = "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish prelu relu relu6 rrelu"
NAMES += " selu silu softmin softplus softshrink softsign tanhshrink threshold"
FULL_NAMES = {f"nn.functional.{name}" for name in NAMES.split()}
FULL_NAMES |= {
    "softmax",
    "log_softmax",
    "torch.ops.aten._safe_softmax.default",
    "_softmax_backward_data",
    "sigmoid",
    "tanh",
}
ENTRIES = {op.full_name: op for op in op_db if op.name in FULL_NAMES}
LOW_PRECISION = [f"nn.functional.{name}" for name in ("elu", "gelu", "silu", "mish", "softplus", "logsigmoid", "glu")]
SPECIAL = torch.tensor(
    [0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 6.0, 1.0, -1.0, 25.0, -25.0, float("inf"), float("-inf"), float("nan")]
)


@pytest.mark.parametrize("name", ENTRIES)
def test_float32(name: str) -> None:
    assert not check_opinfo(ENTRIES[name], torch.float32, samples=2)


@pytest.mark.parametrize("name", [*LOW_PRECISION, "softmax", "log_softmax"])
def test_bfloat16(name: str) -> None:
    assert not check_opinfo(ENTRIES[name], torch.bfloat16, samples=2)


def check(fn: Any, *tensors: torch.Tensor) -> list[str]:
    """Failures of `fn`, forward and backward in its first argument."""
    mode = CheckLowerings()
    x = tensors[0].clone().requires_grad_()
    with mode:
        out = fn(x, *tensors[1:])
        out.backward(torch.ones_like(out))
    return mode.failures


# At +infinity one of the two kernels that the CPU chooses between gives NaN for gelu; ours gives infinity.
FINITE_ONLY = {F.gelu}


@pytest.mark.parametrize(
    "fn",
    [F.relu, F.relu6, F.hardtanh, F.leaky_relu, F.elu, F.celu, F.selu, F.hardswish, F.hardsigmoid, F.hardshrink]
    + [F.softshrink, F.softplus, F.sigmoid, F.tanh, F.mish, F.silu, F.logsigmoid, F.gelu],
    ids=lambda fn: fn.__name__,
)
def test_kinks_and_non_finite(fn: Any) -> None:
    assert not check(fn, SPECIAL[:-3] if fn in FINITE_ONLY else SPECIAL)


@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (3, 0), (2, 3, 4)])
def test_softmax_shapes(fn: Any, shape: tuple[int, ...]) -> None:
    assert not check(lambda x: fn(x, -1), torch.randn(shape))


def test_softmax_of_masked_rows() -> None:
    masked = torch.tensor([[float("-inf"), float("-inf")], [0.0, float("-inf")], [float("nan"), 1.0]])
    assert not check(lambda x: F.softmax(x, 1), masked)
    assert not check(lambda x: torch.ops.aten._safe_softmax(x, 1), masked)


def test_half_to_float() -> None:
    with CheckLowerings() as mode:
        torch.softmax(torch.randn(3, 4, dtype=torch.bfloat16), 1, dtype=torch.float32)
    assert not mode.failures


@pytest.mark.parametrize(
    ("op", "numbers"),
    [("leaky_relu", (0.2,)), ("elu", (0.7, 1.1, 1.3)), ("hardtanh", (-0.3, 0.4)), ("threshold", (0.1, 0.3))]
    + [("softplus", (1.5, 2.0)), ("softshrink", (0.3,)), ("hardshrink", (0.3,)), ("celu", (0.7,))],
)
def test_numbers_may_be_scalar_slots(op: str, numbers: tuple[float, ...]) -> None:
    overload, x = getattr(torch.ops.aten, op).default, torch.randn(8)
    spec = specs_of(overload(x, *numbers))
    with jax.enable_x64(True):
        constant = lower(overload, (to_jax(x), *numbers), {}, spec)
        slotted = jax.jit(lambda slots: lower(overload, (to_jax(x), *slots), {}, spec))(numbers)
        assert jnp.allclose(constant[0], slotted[0], rtol=1e-6)
