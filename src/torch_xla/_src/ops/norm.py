"""Normalization: batch, layer, group and RMS norm with their gradients, renorm, weight norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import OutSpec, lowers

# Note [Statistics of norms]
# Statistics are in the opmath dtype (float32 for 16-bit inputs) and in two passes, mean first: the one-pass form
# E[x^2] - E[x]^2 loses everything where the mean is large against the spread.


def _up(x: Any) -> Any:
    """`x` in the dtype to compute in; None stays None."""
    return None if x is None else x.astype(dtypes.opmath(x.dtype))


def _moments(x: jax.Array, axes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance along `axes`, which stay with size 1. See Note [Statistics of norms]."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _affine(x: jax.Array, weight: Any, bias: Any) -> jax.Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _normalized_gradient(g: Any, xhat: Any, rstd: Any, axes: Sequence[int]) -> jax.Array:
    """Gradient in x of `xhat = (x - mean) * rstd`, given that of xhat."""
    mean_g = jnp.mean(g, axes, keepdims=True)
    mean_gx = jnp.mean(g * xhat, axes, keepdims=True)
    return rstd * (g - mean_g - xhat * mean_gx)


# ---------------------------------------------------------------------------------------------------------------------
# Batch norm: statistics over all dims but the channels


def _channels(v: Any, ndim: int) -> Any:
    """A per-channel vector shaped to broadcast against [N, C, ...]."""
    return None if v is None else _up(v).reshape((1, -1) + (1,) * (ndim - 2))


def _others(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Output, batch mean and inverse deviation (None outside training), new running mean and variance."""
    x, ndim = _up(input), input.ndim
    if training:
        mean, var = _moments(x, _others(x))
        running_mean, running_var = _running(x, mean, var, running_mean, running_var, momentum)
    else:
        mean, var = _channels(running_mean, ndim), _channels(running_var, ndim)
    invstd = lax.rsqrt(var + eps)
    y = _affine((x - mean) * invstd, _channels(weight, ndim), _channels(bias, ndim))
    saved = (mean.reshape(-1), invstd.reshape(-1)) if training else (None, None)
    return y, *saved, running_mean, running_var


def _running(x: Any, mean: Any, var: Any, running_mean: Any, running_var: Any, momentum: Any) -> tuple[Any, Any]:
    """Running statistics moved towards those of the batch; the variance that is kept is the unbiased one."""
    count = math.prod(x.shape[i] for i in _others(x))
    unbiased = var * (count / max(count - 1, 1))
    if running_mean is not None:
        running_mean = _up(running_mean) * (1 - momentum) + mean.reshape(-1) * momentum
    if running_var is not None:
        running_var = _up(running_var) * (1 - momentum) + unbiased.reshape(-1) * momentum
    return running_mean, running_var


def _or_blank(value: Any, spec: OutSpec) -> Any:
    """The value, or an array in its place where the mode has none (PyTorch's kernels return empty tensors)."""
    return jnp.zeros(spec.shape, spec.dtype) if value is None or value.shape != spec.shape else value


def _blanks(outputs: Sequence[Any], specs: Sequence[OutSpec]) -> tuple[Any, ...]:
    return tuple(_or_blank(value, spec) for value, spec in zip(outputs, specs))


@lowers("aten.native_batch_norm", "aten._native_batch_norm_legit", specs=True)
def native_batch_norm(
    specs: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    return _blanks(_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[:3], specs)


@lowers("aten._native_batch_norm_legit.no_stats", specs=True)
def native_batch_norm_no_stats(
    specs: Any, input: Any, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any
) -> tuple[Any, ...]:
    return _blanks(_batch_norm(input, weight, bias, None, None, True, momentum, eps)[:3], specs)


@lowers("aten._native_batch_norm_legit_no_training", specs=True)
def native_batch_norm_no_training(
    specs: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> tuple[Any, ...]:
    return _blanks(_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3], specs)


@lowers("aten._native_batch_norm_legit_functional", specs=True)
def native_batch_norm_functional(
    specs: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    return _blanks(_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps), specs)


def _with_reserve(outputs: Sequence[Any], specs: Sequence[OutSpec]) -> tuple[Any, ...]:
    """Puts the scratch space of cuDNN, which nobody fills, where the unified ops return it."""
    return _blanks((*outputs[:3], None, *outputs[3:]), specs)


@lowers("aten._batch_norm_with_update_functional", specs=True)
def batch_norm_with_update(
    specs: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> tuple[Any, ...]:
    return _with_reserve(_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps), specs)


@lowers("aten._batch_norm_no_update", specs=True)
def batch_norm_no_update(
    specs: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> tuple[Any, ...]:
    outputs = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return _with_reserve(outputs[:3], specs)


@lowers("aten.native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: Any, output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    g, x, ndim = _up(grad_out), _up(input), input.ndim
    if train:
        mean, invstd = _channels(save_mean, ndim), _channels(save_invstd, ndim)
    else:
        mean, invstd = _channels(running_mean, ndim), lax.rsqrt(_channels(running_var, ndim) + eps)
    xhat = (x - mean) * invstd
    scaled = _affine(g, _channels(weight, ndim), None)
    grad_input = _normalized_gradient(scaled, xhat, invstd, _others(x)) if train else scaled * invstd
    grads = grad_input, jnp.sum(g * xhat, _others(x)), jnp.sum(g, _others(x))
    return _masked(grads, output_mask)


def _masked(gradients: Sequence[Any], mask: Sequence[bool]) -> Any:
    return tuple(g if wanted else None for g, wanted in zip(gradients, mask))


@lowers("aten.batch_norm_backward")
def batch_norm_backward(
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_var: Any,
    update: bool, eps: Any, output_mask: Sequence[bool], reserve: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


# ---------------------------------------------------------------------------------------------------------------------
# Layer norm and RMS norm: statistics over the trailing dims


def _trailing(x: jax.Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _leading(x: jax.Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape)))


@lowers("aten.native_layer_norm")
def native_layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: Any
) -> tuple[Any, Any, Any]:
    x = _up(input)
    mean, var = _moments(x, _trailing(x, normalized_shape))
    rstd = lax.rsqrt(var + eps)
    return _affine((x - mean) * rstd, _up(weight), _up(bias)), mean, rstd


@lowers("aten.native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    g, x, rstd = _up(grad_out), _up(input), _up(rstd)
    xhat = (x - _up(mean)) * rstd
    grad_input = _normalized_gradient(_affine(g, _up(weight), None), xhat, rstd, _trailing(x, normalized_shape))
    rows = _leading(x, normalized_shape)
    return _masked((grad_input, jnp.sum(g * xhat, rows), jnp.sum(g, rows)), output_mask)


@lowers("aten._fused_rms_norm")
def fused_rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any, eps: Any) -> tuple[Any, Any]:
    x = _up(input)
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(x), _trailing(x, normalized_shape), keepdims=True) + eps)
    return _affine(x * rstd, _up(weight), None), rstd


@lowers("aten._fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Sequence[int], rstd: Any, weight: Any, output_mask: Sequence[bool]
) -> tuple[Any, Any]:
    g, rstd = _up(grad_out), _up(rstd)
    xhat = _up(input) * rstd
    scaled = _affine(g, _up(weight), None)
    mean_gx = jnp.mean(scaled * xhat, _trailing(xhat, normalized_shape), keepdims=True)
    grad_weight = jnp.sum(g * xhat, _leading(xhat, normalized_shape))
    return _masked((rstd * (scaled - xhat * mean_gx), grad_weight), output_mask)


# ---------------------------------------------------------------------------------------------------------------------
# Group norm: [N, C, *] seen as [N, groups, C / groups, space]


def _grouped(x: Any, N: int, C: int, HxW: int, group: int) -> Any:
    return _up(x).reshape(N, group, C // group if group else 0, HxW)


def _group_channels(v: Any, group: int) -> Any:
    return None if v is None else _up(v).reshape(1, group, -1, 1)


@lowers("aten.native_group_norm")
def native_group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: Any
) -> tuple[Any, Any, Any]:
    x = _grouped(input, N, C, HxW, group)
    mean, var = _moments(x, (2, 3))
    rstd = lax.rsqrt(var + eps)
    y = _affine((x - mean) * rstd, _group_channels(weight, group), _group_channels(bias, group))
    return y.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lowers("aten.native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any, N: int, C: int, HxW: int, group: int,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    g, x = (_grouped(t, N, C, HxW, group) for t in (grad_out, input))
    rstd = _up(rstd).reshape(N, group, 1, 1)
    xhat = (x - _up(mean).reshape(N, group, 1, 1)) * rstd
    grad_input = _normalized_gradient(_affine(g, _group_channels(weight, group), None), xhat, rstd, (2, 3))
    grad_weight, grad_bias = (jnp.sum(t, (0, 3)).reshape(C) for t in (g * xhat, g))
    return _masked((grad_input.reshape(input.shape), grad_weight, grad_bias), output_mask)


# ---------------------------------------------------------------------------------------------------------------------
# Bounding and splitting norms


def norm_along(x: jax.Array, p: float, axes: Sequence[int], keepdims: bool = False) -> jax.Array:
    """The p-norm of real or complex `x` along `axes`; for p = 0 the number of nonzero elements."""
    axes = tuple(axes)
    if p == 0:
        return jnp.sum(x != 0, axes, keepdims=keepdims, dtype=jnp.abs(x).dtype)
    if p == 2:
        square = jnp.square(x.real) + jnp.square(x.imag) if dtypes.is_complex(x) else jnp.square(x)
        return jnp.sqrt(jnp.sum(square, axes, keepdims=keepdims))
    size = jnp.abs(x)
    if p == np.inf:
        return jnp.max(size, axes, keepdims=keepdims, initial=0)
    if p == -np.inf:
        return jnp.min(size, axes, keepdims=keepdims)
    if p == 1:
        return jnp.sum(size, axes, keepdims=keepdims)
    return jnp.sum(size**p, axes, keepdims=keepdims) ** (1 / p)


@lowers("aten.renorm", static=("p",))
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> jax.Array:
    x = _up(self)
    axes = [i for i in range(x.ndim) if i != dim % x.ndim]
    norm = norm_along(x, float(p), axes, keepdims=True)
    # The guard against division by zero is part of PyTorch's definition.
    return x * jnp.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1).astype(norm.dtype)


def _all_but(dim: int, ndim: int) -> tuple[int, ...]:
    return tuple(i for i in range(ndim) if i != dim % ndim)


@lowers("aten._weight_norm_interface")
def weight_norm(v: Any, g: Any, dim: int = 0) -> tuple[Any, Any]:
    x = _up(v)
    norm = norm_along(x, 2, _all_but(dim, x.ndim), keepdims=True)
    return x * (_up(g) / norm), norm


@lowers("aten._weight_norm_interface_backward")
def weight_norm_backward(grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int) -> tuple[Any, Any]:
    grad, v, norm = _up(grad_w), _up(saved_v), _up(saved_norms)
    along = jnp.sum(grad * v, _all_but(dim, v.ndim), keepdims=True) / norm
    return _up(saved_g) / norm * (grad - v * (along / norm)), along
