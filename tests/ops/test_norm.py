"""Normalization: op_db entries, then 16-bit statistics and the forms that only devices see."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries
from tests.ops.harness import CheckLowerings, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten
NAMES = [f"nn.functional.{kind}_norm" for kind in ("batch", "layer", "group", "instance", "rms", "local_response")]
NAMES += ["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm", "renorm"]
FORWARD_ONLY = {
    torch.bfloat16: ["nn.functional.batch_norm", "nn.functional.layer_norm", "nn.functional.group_norm", "renorm"],
    torch.complex64: ["renorm"],
}


OTHERS = [case for dtype, names in FORWARD_ONLY.items() for case in entries(names, dtype)]


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + OTHERS)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype)


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 3, 5, dtype=dtype) + 100
    return x, torch.rand(3) + 1, torch.randn(3), torch.randn(3), torch.rand(3) + 1


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_functional_batch_norm(training: bool, dtype: torch.dtype) -> None:
    """What functionalization sends: new running statistics are results. The mean is large against the spread."""
    args = batch(dtype)
    tolerance = 1e-3 if dtype == torch.float32 else 2e-2
    with CheckLowerings(rtol=tolerance, atol=tolerance) as mode:
        aten._native_batch_norm_legit_functional(*args, training, 0.1, 1e-5)
        if training:
            aten._batch_norm_with_update_functional(*args, 0.1, 1e-5)
        else:
            aten._native_batch_norm_legit_no_training(*args, 0.1, 1e-5)
            aten._batch_norm_no_update(*args, 0.1, 1e-5)
    assert not mode.failures


def test_momentum_and_eps_as_slots() -> None:
    args = batch()
    want = aten._native_batch_norm_legit_functional(*args, True, 0.25, 1e-3)
    with jax.enable_x64(True):
        arrays = [to_jax(a) for a in args]
        run = lambda m, e: lower(
            aten._native_batch_norm_legit_functional.default, [*arrays, True, m, e], {}, specs_of(want)
        )
        got = jax.jit(run)(0.25, 1e-3)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(to_torch(g), w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("train", [False, True])
def test_batch_norm_backward(train: bool) -> None:
    x, weight, bias, mean, var = batch()
    _, save_mean, save_invstd = aten.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
    args = (torch.randn_like(x), x, weight, mean, var, save_mean, save_invstd, train, 1e-5)
    for mask in ((True, True, True), (True, False, False), (False, True, True)):
        with CheckLowerings(rtol=1e-4, atol=1e-4) as mode:
            aten.native_batch_norm_backward(*args, mask)
        assert not mode.failures


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int) -> None:
    v = torch.randn(4, 3, 5)
    g = torch.rand([n if i == dim else 1 for i, n in enumerate(v.shape)])
    agrees(aten._weight_norm_interface, v, g, dim)
    w, norms = aten._weight_norm_interface(v, g, dim)
    agrees(aten._weight_norm_interface_backward, torch.randn_like(w), v, g, norms, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_rms_norm(dtype: torch.dtype) -> None:
    """Against autograd of the definition: the op has no CPU kernel of its own."""
    x = torch.randn(2, 3, 8, dtype=dtype, requires_grad=True)
    weight = torch.rand(8, dtype=dtype, requires_grad=True)
    wide = x.float()
    rstd = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    y = wide * rstd * weight.float()
    g = torch.randn_like(x)
    wanted = torch.autograd.grad(y, (x, weight), g.float())
    with jax.enable_x64(True):
        jx, jw, jg = (to_jax(t) for t in (x, weight, g))
        specs = specs_of([y.to(dtype), rstd])
        out, jr = lower(aten._fused_rms_norm.default, [jx, [8], jw, 1e-6], {}, specs)
        back = aten._fused_rms_norm_backward.default
        grads = lower(back, [jg, jx, [8], jr, jw, [True, True]], {}, specs_of([x, weight]))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for got, want in zip([out, *grads], [y.to(dtype), *wanted], strict=True):
        torch.testing.assert_close(to_torch(got), want.detach(), **tolerance)
