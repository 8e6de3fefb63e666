"""Output metadata of ops for which PyTorch has no meta kernel and the lowering wants to be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src.graph.value import Spec
from torch_xla._src.ops import recompute

aten = torch.ops.aten


def _ctc_loss(args: Sequence[Any]) -> list[Spec]:
    """Loss [batch] and log alpha [batch, time, 2 * longest target + 1]; concatenated targets only bound the longest."""
    log_probs, targets = args[0], args[1]
    time, batch = (log_probs.shape[0], log_probs.shape[1]) if log_probs.ndim == 3 else (log_probs.shape[0], 1)
    loss = Spec((batch,) if log_probs.ndim == 3 else (), log_probs.dtype)
    return [loss, Spec((batch, time, 2 * targets.shape[-1] + 1), log_probs.dtype)]


def _grouped_mm(args: Sequence[Any]) -> list[Spec]:
    """Products of groups of rows, columns or matrices; PyTorch's meta kernel knows bfloat16 only."""
    left, right = args[0].shape, args[1].shape
    groups = args[2].shape[0] if len(left) == len(right) == 2 else left[0]
    stacked = len(left) == len(right)
    return [Spec((groups, left[-2], right[-1]) if stacked else (left[-2], right[-1]), args[0].dtype)]


def _attention_backward(args: Sequence[Any]) -> list[Spec | None]:
    """Gradients of query, key, value and bias. torch 2.9 has no meta kernel for it."""
    return [None if x is None else Spec(x.value.spec.shape, x.dtype) for x in args[1:5]]


def _like(spec: Spec) -> Spec:
    """A result with the strides that `empty_like` gives it."""
    if spec.strides is None:
        return spec
    like = torch.empty_like(torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta"))
    return Spec(spec.shape, spec.dtype, None if like.is_contiguous() else like.stride())


def _batch_norm(args: Sequence[Any], training: bool) -> list[Spec]:
    """The CPU kernel saves no statistics in evaluation, and keeps them in the dtype of the parameters."""
    x, weight, bias, running_mean = args[:4]
    affine = next((p for p in (weight, bias, running_mean) if p is not None), x)
    saved = Spec((x.shape[1] if training else 0,), affine.dtype)
    return [_like(x.value.spec), saved, saved]


def _batch_norm_functional(args: Sequence[Any]) -> list[Spec]:
    return [*_batch_norm(args, args[5]), args[3].value.spec, args[4].value.spec]


# Asked instead of PyTorch's meta kernel.
SHAPES: dict[Any, Callable[[Sequence[Any]], list[Spec]]] = {
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._grouped_mm.default: _grouped_mm,
    aten.native_batch_norm.default: lambda args: _batch_norm(args, args[5]),
    aten._native_batch_norm_legit.default: lambda args: _batch_norm(args, args[5]),
    aten._native_batch_norm_legit_no_training.default: lambda args: _batch_norm(args, False),
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    recompute.BEGIN: lambda args: [],
    recompute.END: lambda args: [],
}

# Asked where PyTorch has no meta kernel.
WITHOUT_META: dict[Any, Callable[[Sequence[Any]], Sequence[Spec | None]]] = {
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _attention_backward,
}
