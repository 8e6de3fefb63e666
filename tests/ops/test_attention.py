"""Attention: op_db entries (the CPU's own op), then the op that devices get, dropout and masks."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of
from torch_xla._src.ops.registry import OutSpec

aten = torch.ops.aten
NAMES = ["nn.functional.scaled_dot_product_attention"]
FORWARD_ONLY = {torch.bfloat16: NAMES}
OVERRIDEABLE = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", NAMES)
def test_float32(name: str) -> None:
    for op in [o for o in op_db if o.name == name]:
        # The CPU's blocked kernel adds in another order, and which one depends on the torch release.
        assert not check_opinfo(op, torch.float32, samples=2, tolerance=5e-5), op.full_name


@pytest.mark.parametrize(("dtype", "name"), [(d, n) for d, names in FORWARD_ONLY.items() for n in names], ids=str)
def test_other_dtypes(dtype: torch.dtype, name: str) -> None:
    for op in [o for o in op_db if o.name == name]:
        assert not check_opinfo(op, dtype, samples=2, backward=False), op.full_name


def tensors(dtype: torch.dtype, queries: int = 5, keys: int = 7) -> list[torch.Tensor]:
    shapes = ((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 4))
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def forward_and_backward(
    q: Any, k: Any, v: Any, g: Any, bias: Any = None, dropout: float = 0.0, causal: bool = False, scale: Any = None
) -> tuple[Any, ...]:
    """Output and gradients of query, key, value and bias, through the lowerings; also the seed."""
    meta = [None if t is None else torch.empty_like(t, device="meta") for t in (q, k, v, bias)]
    specs = specs_of(OVERRIDEABLE(*meta[:3], meta[3], dropout, causal, scale=scale))
    with jax.enable_x64(True):
        q, k, v, g, bias = (None if t is None else to_jax(t) for t in (q, k, v, g, bias))
        out = lower(OVERRIDEABLE, [q, k, v, bias, dropout, causal], {"scale": scale}, specs, jax.random.key(1))
        grad_specs = [None if t is None else OutSpec(t.shape, t.dtype) for t in (q, k, v, bias)]
        args = [g, q, k, v, bias, [True] * 4, out[0], out[1], out[2], out[3], 0, 0, dropout, causal, out[6], out[7]]
        grads = lower(BACKWARD, args, {"scale": scale}, grad_specs)
    return tuple(None if a is None else to_torch(a) for a in (out[0], *grads, out[6]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("masking", ["none", "causal", "bias", "empty row", "scale"])
def test_against_the_math_path(masking: str, dtype: torch.dtype) -> None:
    q, k, v = tensors(dtype)
    bias = torch.randn(1, 3, 1, 7, dtype=dtype, requires_grad=True) if masking == "bias" else None
    if masking == "empty row":
        bias = torch.zeros(5, 7, dtype=dtype)
        bias[2] = -torch.inf
        bias.requires_grad_()
    options = {"is_causal": masking == "causal", "scale": 0.3 if masking == "scale" else None}
    want = aten._scaled_dot_product_attention_math(q, k, v, bias, 0.0, **options)[0]
    g = torch.randn_like(want)
    inputs = [t for t in (q, k, v, bias) if t is not None]
    wanted = [want, *torch.autograd.grad(want, inputs, g)]
    got = forward_and_backward(q, k, v, g, bias, 0.0, options["is_causal"], options["scale"])
    tolerance = {"rtol": 4e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for actual, expected in zip([t for t in got[:-1] if t is not None], wanted, strict=True):
        torch.testing.assert_close(actual, expected.detach(), **tolerance)


def test_dropout_is_redrawn_in_the_backward() -> None:
    """With values of one, the output is the share of the weight that was kept; grad_value shows the same mask."""
    q, k, _ = tensors(torch.float32, 64, 64)
    v = torch.eye(64).expand(2, 3, 64, 64)
    out, _, _, grad_value, _, seed = forward_and_backward(q, k, v, v, None, 0.25)
    assert seed.dtype == torch.int64
    # With identities on both sides the output is the dropped matrix and grad_value its transpose.
    torch.testing.assert_close(grad_value, out.mT)
    dropped = (out == 0).float().mean().item()
    assert 0.2 < dropped < 0.3
    exact = torch.softmax(q @ k.mT / 8**0.5, -1).detach() / 0.75
    torch.testing.assert_close(out[out != 0], exact[out != 0])


def test_everything_dropped() -> None:
    q, k, v = tensors(torch.float32)
    for result in forward_and_backward(q, k, v, torch.ones(2, 3, 5, 4), None, 1.0)[:4]:
        assert (result == 0).all()
