"""Convolutions in one to three spatial dimensions, their transposes and gradients, as plain XLA convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.pool import Windows
from torch_xla._src.ops.registry import lowers

# Note [Layout of convolutions]
# Programs state PyTorch's own layout (batch, channels, space): XLA chooses the layout that suits the device while it
# compiles, and cancels the transposes between neighbours, which it could not do with transposes we had put there.


def _per_dim(values: Sequence[int], count: int) -> tuple[int, ...]:
    values = tuple(int(v) for v in values)
    return values * count if len(values) == 1 else values


def _numbers(ndim: int) -> lax.ConvDimensionNumbers:
    order = tuple(range(ndim))
    return lax.ConvDimensionNumbers(order, order, order)


def _forward(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=stride,
        padding=[(p, p) for p in padding],
        rhs_dilation=dilation,
        dimension_numbers=_numbers(x.ndim),
        feature_group_count=groups,
    )


def _transposed(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, extra: Sequence[int], groups: int
) -> jax.Array:
    """Transpose of `_forward` in its first argument; `extra` rows stand at the far end of each dim of the result."""
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
    return lax.conv_general_dilated(
        x,
        _swap_channels(lax.rev(w, tuple(range(2, w.ndim))), groups),
        window_strides=(1,) * len(stride),
        padding=[(r - p, r - p + e) for r, p, e in zip(reach, padding, extra)],
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=_numbers(x.ndim),
        feature_group_count=groups,
    )


def _swap_channels(w: jax.Array, groups: int) -> jax.Array:
    """[groups * A, B, ...] to [groups * B, A, ...], group by group."""
    if groups == 1:
        return w.swapaxes(0, 1)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    return split.reshape(-1, *split.shape[2:])


def _weight_gradient(
    x: Any, g: Any, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int
) -> jax.Array:
    """Gradient of `_forward` in the weight: a convolution that sums over the batch, strides and dilations exchanged."""
    space = tuple(range(2, x.ndim))
    used = [d * (k - 1) + s * (o - 1) + 1 for d, k, s, o in zip(dilation, kernel, stride, g.shape[2:])]
    ends = [(p, u - n - p) for p, u, n in zip(padding, used, x.shape[2:])]
    swapped = (1, 0, *space)
    return lax.conv_general_dilated(
        x,
        g,
        window_strides=dilation,
        padding=ends,
        rhs_dilation=stride,
        dimension_numbers=lax.ConvDimensionNumbers(swapped, swapped, swapped),
        batch_group_count=groups,
    )


# Note [Grouped convolutions on CPU]
# XLA's CPU backend has no fast kernel for many groups. There, a convolution with one channel a group is unrolled over
# the kernel into slices, products and sums, which fuse into one loop, and the gradient in the weight of larger groups
# is taken group by group. Other devices get the plain convolution.
_UNROLLED = 32


def _depthwise(x: Any, w: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Windows, jax.Array]:
    """The windows of a convolution with one channel a group, and its weight as [kernel..., channels, 1...]."""
    kernel = w.shape[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    out = tuple((n + 2 * p - span) // s + 1 for n, p, span, s in zip(x.shape[2:], padding, spans, stride))
    windows = Windows(tuple(x.shape[2:]), out, kernel, stride, padding, dilation)
    factors = jnp.moveaxis(w[:, 0], 0, -1)
    return windows, factors.reshape(*kernel, -1, *(1,) * len(kernel)).astype(dtypes.opmath(w.dtype))


def _is_depthwise(x: Any, w: Any, groups: int) -> bool:
    small = math.prod(w.shape[2:]) <= _UNROLLED and x.size > 0
    return small and groups > 1 and x.shape[1] == groups == w.shape[0] and not dtypes.is_complex(x)


def _forward_on_cpu(x: Any, w: Any, *where: Any) -> jax.Array:
    windows, factors = _depthwise(x, w, *where)
    padded = windows.padded(x.astype(factors.dtype), 0)
    y = sum(windows.slice(padded, offset) * factors[offset] for offset in windows.offsets())
    return jnp.asarray(y, x.dtype)


def _input_gradient_on_cpu(g: Any, x: Any, w: Any, *where: Any) -> jax.Array:
    windows, factors = _depthwise(x, w, *where)
    g = g.astype(factors.dtype)
    total = sum(windows.spread(g * factors[offset], offset) for offset in windows.offsets())
    return jnp.asarray(total, x.dtype)


def _weight_gradient_on_cpu(x: Any, g: Any, kernel: Any, where: tuple[Any, Any, Any], groups: int) -> jax.Array:
    parts = zip(jnp.split(x, groups, 1), jnp.split(g, groups, 1))
    return jnp.concatenate([_weight_gradient(a, b, kernel, *where, groups=1) for a, b in parts])


def _add_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    if bias is None:
        return y
    shape = (-1,) + (1,) * (y.ndim - 2)
    dtype = dtypes.opmath(y.dtype)
    return y.astype(dtype) + bias.astype(dtype).reshape(shape)


@lowers("aten.convolution", "aten.convolution_overrideable")
def convolution(
    input: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    count = weight.ndim - 2
    stride, padding, dilation, extra = (_per_dim(v, count) for v in (stride, padding, dilation, output_padding))
    if transposed:
        y = _transposed(input, weight, stride, padding, dilation, extra, groups)
    elif _is_depthwise(input, weight, groups):  # see Note [Grouped convolutions on CPU]
        y = lax.platform_dependent(
            input,
            weight,
            cpu=lambda x, w: _forward_on_cpu(x, w, stride, padding, dilation),
            default=lambda x, w: _forward(x, w, stride, padding, dilation, groups),
        )
    else:
        y = _forward(input, weight, stride, padding, dilation, groups)
    return _add_bias(y, bias)


@lowers("aten.convolution_backward_overrideable")
def convolution_backward(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, ...]:
    count = weight.ndim - 2
    where = (_per_dim(stride, count), _per_dim(padding, count), _per_dim(dilation, count))
    for_input, for_weight, for_bias = output_mask
    gradients: list[Any] = [None, None, None]
    if for_input and transposed:
        whole = _forward(grad_output, weight, *where, groups=groups)
        # An output padding that reaches a stride further makes windows that no element of the input stands for.
        gradients[0] = lax.slice(whole, (0,) * whole.ndim, input.shape)
    elif for_input:
        gradients[0] = _input_gradient(grad_output, input, weight, where, groups)
    if for_weight:
        # A transposed convolution is the transpose of `_forward`, so input and gradient trade places.
        image, window = (grad_output, input) if transposed else (input, grad_output)
        gradients[1] = _grouped_weight_gradient(image, window, weight, where, groups)
    if for_bias:
        gradients[2] = bias_gradient(grad_output)
    return tuple(gradients)


def _input_gradient(g: Any, x: Any, w: Any, where: tuple[Any, Any, Any], groups: int) -> jax.Array:
    plain = lambda g, x, w: _transposed(g, w, *where, extra=_unseen(x, g, w, *where), groups=groups)
    if not _is_depthwise(x, w, groups):
        return plain(g, x, w)
    return lax.platform_dependent(g, x, w, cpu=lambda g, x, w: _input_gradient_on_cpu(g, x, w, *where), default=plain)


def _grouped_weight_gradient(x: Any, g: Any, w: Any, where: tuple[Any, Any, Any], groups: int) -> jax.Array:
    plain = lambda x, g, w: _weight_gradient(x, g, w.shape[2:], *where, groups=groups)
    if groups == 1 or groups > _UNROLLED or groups == x.shape[1]:  # one channel a group gains nothing
        return plain(x, g, w)
    on_cpu = lambda x, g, w: _weight_gradient_on_cpu(x, g, w.shape[2:], where, groups)
    return lax.platform_dependent(x, g, w, cpu=on_cpu, default=plain)


def _unseen(x: Any, y: Any, w: Any, stride: Any, padding: Any, dilation: Any) -> list[int]:
    """Rows at the far end of each dim of `x` (padding included) that no window of the convolution `y` reached."""
    used = [s * (o - 1) + d * (k - 1) + 1 for s, o, d, k in zip(stride, y.shape[2:], dilation, w.shape[2:])]
    return [n + 2 * p - u for n, p, u in zip(x.shape[2:], padding, used)]


def bias_gradient(grad_output: jax.Array) -> jax.Array:
    axes = (0, *range(2, grad_output.ndim))
    return jnp.sum(grad_output, axes, dtype=dtypes.opmath(grad_output.dtype))


@lowers("aten.convolution_backward")
def _convolution_backward(grad_output: Any, input: Any, weight: Any, bias_sizes: Any, *rest: Any) -> Any:
    return convolution_backward(grad_output, input, weight, *rest)


# ---------------------------------------------------------------------------------------------------------------------
# Names of particular kernels: only code that calls them by name gets here.


@lowers("aten._slow_conv2d_forward", "aten.slow_conv3d_forward", "aten._conv_depthwise2d", "aten.conv_depthwise3d")
@lowers("aten.slow_conv_dilated2d", "aten.slow_conv_dilated3d")
def _kernel_convolution(
    self: jax.Array,
    weight: jax.Array,
    kernel_size: Sequence[int],
    bias: jax.Array | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> jax.Array:
    groups = self.shape[1] // weight.shape[1]  # the depthwise kernels imply it
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)


@lowers("aten.slow_conv_transpose2d", "aten.slow_conv_transpose3d")
def _kernel_transposed(
    self: jax.Array,
    weight: jax.Array,
    kernel_size: Sequence[int],
    bias: jax.Array | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> jax.Array:
    batched = self if self.ndim == weight.ndim else self[None]
    y = convolution(batched, weight, bias, stride, padding, dilation, True, output_padding, 1)
    return y if self.ndim == weight.ndim else y[0]


@lowers("aten.mkldnn_convolution")
def _mkldnn_convolution(
    self: Any, weight: Any, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int
) -> jax.Array:
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)


@lowers("aten.conv_tbc")
def conv_tbc(self: jax.Array, weight: jax.Array, bias: jax.Array, pad: int = 0) -> jax.Array:
    """Convolution over time of [time, batch, channels] with weight [width, in, out]."""
    numbers = lax.ConvDimensionNumbers((1, 2, 0), (2, 1, 0), (1, 2, 0))
    y = lax.conv_general_dilated(self, weight, (1,), [(pad, pad)], dimension_numbers=numbers)
    dtype = dtypes.opmath(y.dtype)
    return y.astype(dtype) + bias.astype(dtype)
