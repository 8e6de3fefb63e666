"""Lowerings of ops that only move elements: copies of views, writes into views, joining, padding, windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes, update
from torch_xla._src.ops.compact import runs
from torch_xla._src.ops.registry import OutSpec, lowers

# ---- helpers shared with the sibling families


def wrap_dim(dim: int, ndim: int) -> int:
    """`dim` counted from the front; a 0-d tensor has the dims 0 and -1, as if it were one element long."""
    return dim % max(ndim, 1)


def at_least_1d(x: jax.Array) -> jax.Array:
    return x if x.ndim else x.reshape(1)


def transpose_linear(fn: Callable[[jax.Array], jax.Array], shape: Sequence[int], grad: jax.Array) -> jax.Array:
    """Gradient with respect to an input of `shape` of the linear `fn`; sums 16-bit floats in float32."""
    grad = grad.astype(dtypes.opmath(grad.dtype))
    return jax.linear_transpose(fn, jax.ShapeDtypeStruct(tuple(shape), grad.dtype))(grad)[0]


# ---- views that keep every element


@lowers("aten._fw_primal_copy")
def fw_primal_copy(x: jax.Array, level: int) -> jax.Array:
    return x


@lowers(
    "aten.view_copy",
    "aten._unsafe_view",
    "aten._reshape_copy",
    "aten.squeeze_copy",
    "aten.unsqueeze_copy",
    specs=True,
)
def reshape(spec: OutSpec, x: jax.Array, *_: Any) -> jax.Array:
    return lax.reshape(x, spec.shape)


@lowers("aten.view_copy.dtype", specs=True)
def view_dtype(spec: OutSpec, x: jax.Array, dtype: Any) -> jax.Array:
    """Reinterprets the bytes; the last dimension grows or shrinks with the ratio of the item sizes."""
    if dtypes.is_complex(x):
        parts = jnp.stack([lax.real(x), lax.imag(x)], axis=-1)
        x = parts.reshape(*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else parts
    if x.dtype == np.dtype(bool):
        x = x.astype(np.uint8)
    target = np.dtype(spec.dtype)
    if target.kind == "c":
        target = np.dtype(f"f{target.itemsize // 2}")
    elif target == np.dtype(bool):
        target = np.dtype(np.uint8)
    ratio = target.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio)
    x = lax.bitcast_convert_type(x, target)
    if spec.dtype.kind == "c":
        parts = x.reshape(*spec.shape, 2)
        return lax.complex(parts[..., 0], parts[..., 1])
    return x.reshape(spec.shape)


@lowers("aten.permute_copy")
def permute_copy(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.transpose(x, [wrap_dim(d, x.ndim) for d in dims])


@lowers("aten.transpose_copy")
def transpose_copy(x: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


@lowers("aten.t_copy")
def t_copy(x: jax.Array) -> jax.Array:
    return x.T


@lowers("aten.expand_copy", specs=True)
def expand_copy(spec: OutSpec, x: jax.Array, size: Sequence[int], *, implicit: bool = False) -> jax.Array:
    return jnp.broadcast_to(x, spec.shape)


@lowers("aten.flip")
def flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(x, [wrap_dim(d, x.ndim) for d in dims]) if x.ndim else x


@lowers("aten.rot90")
def rot90(x: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    return jnp.rot90(x, k, (dims[0], dims[1]))


@lowers("aten.roll")
def roll(x: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    if not x.ndim:
        return x
    for shift, dim in zip(shifts, dims, strict=True):
        dim = wrap_dim(dim, x.ndim)
        size = x.shape[dim]
        cut = -shift % size if size else 0
        if cut:  # two slices swapped: cheaper than the gather of a traced shift
            x = lax.concatenate(lax.split(x, (cut, size - cut), dim)[::-1], dim)
    return x


@lowers("aten.pixel_shuffle")
def pixel_shuffle(x: jax.Array, upscale_factor: int) -> jax.Array:
    *batch, channels, height, width = x.shape
    r = upscale_factor
    x = x.reshape(*batch, channels // (r * r), r, r, height, width)
    n = len(batch)
    x = x.transpose(*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*batch, channels // (r * r), height * r, width * r)


@lowers("aten.pixel_unshuffle")
def pixel_unshuffle(x: jax.Array, downscale_factor: int) -> jax.Array:
    *batch, channels, height, width = x.shape
    r = downscale_factor
    x = x.reshape(*batch, channels, height // r, r, width // r, r)
    n = len(batch)
    x = x.transpose(*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*batch, channels * r * r, height // r, width // r)


@lowers("aten.channel_shuffle", "aten.native_channel_shuffle")
def channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    split = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return jnp.swapaxes(split, 1, 2).reshape(x.shape)


# ---- views that choose elements, their gradients and writes into them


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    """(start, stop, number of elements) of a slice as PyTorch clamps it."""
    start, stop, step = slice(start, end, step).indices(size)
    return start, max(start, stop), max(0, -(-(stop - start) // step))


@lowers("aten.slice_copy")
def slice_copy(
    x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim = wrap_dim(dim, x.ndim)
    start, stop, _ = slice_bounds(x.shape[dim], start, end, step)
    return lax.slice_in_dim(x, start, stop, step, dim)


@lowers("aten.slice_backward")
def slice_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> jax.Array:
    return _spread(grad_output, wrap_dim(dim, len(input_sizes)), input_sizes, start, end, step)


def _spread(x: jax.Array, dim: int, sizes: Sequence[int], start: int | None, end: int | None, step: int) -> jax.Array:
    """Zeros of `sizes` with `x` written into a slice of `dim`, as one pad."""
    size = sizes[dim]
    start, _, count = slice_bounds(size, start, end, step)
    if not count:
        return jnp.zeros(sizes, x.dtype)
    pads = [(0, 0, 0)] * x.ndim
    pads[dim] = (start, size - start - (count - 1) * step - 1, step - 1)
    return lax.pad(x, jnp.zeros((), x.dtype), pads)


@lowers("aten.slice_scatter")
def slice_scatter(
    x: jax.Array, src: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim = wrap_dim(dim, x.ndim)
    first, _, count = slice_bounds(x.shape[dim], start, end, step)
    src = jnp.broadcast_to(dtypes.cast(src, x.dtype), (*x.shape[:dim], count, *x.shape[dim + 1 :]))
    if not count:
        return x
    if count == x.shape[dim]:
        return src
    if step == 1:
        return update.update_slice(x, src, first, dim)
    position = lax.broadcasted_iota(np.int32, x.shape, dim) - first
    written = (position >= 0) & (position % step == 0) & (position < count * step)
    return jnp.where(written, _spread(src, dim, x.shape, start, end, step), x)


@lowers("aten.select_copy")
def select_copy(x: jax.Array, dim: int, index: int) -> jax.Array:
    return lax.index_in_dim(x, index, wrap_dim(dim, x.ndim), keepdims=False)


@lowers("aten.select_backward")
def select_backward(grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: int) -> jax.Array:
    dim = wrap_dim(dim, len(input_sizes))
    index = index % input_sizes[dim]
    return _spread(jnp.expand_dims(grad_output, dim), dim, input_sizes, index, index + 1, 1)


@lowers("aten.select_scatter")
def select_scatter(x: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    dim = wrap_dim(dim, x.ndim)
    index = index % x.shape[dim]
    return slice_scatter(x, jnp.expand_dims(src, dim), dim, index, index + 1)


@lowers("aten.narrow_copy")
def narrow_copy(x: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    dim = wrap_dim(dim, x.ndim)
    start = start + x.shape[dim] if start < 0 else start
    return lax.slice_in_dim(x, start, start + length, 1, dim)


@lowers("aten.unbind_copy")
def unbind_copy(x: jax.Array, dim: int = 0) -> list[jax.Array]:
    dim = wrap_dim(dim, x.ndim)
    return [lax.index_in_dim(x, i, dim, keepdims=False) for i in range(x.shape[dim])]


@lowers("aten.split_copy", "aten.unsafe_split")
def split_copy(x: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    size = x.shape[wrap_dim(dim, x.ndim)]
    starts = range(0, size, split_size) if size else [0]
    return split_with_sizes_copy(x, [min(split_size, size - s) for s in starts], dim)


@lowers("aten.split_with_sizes_copy", "aten.unsafe_split_with_sizes")
def split_with_sizes_copy(x: jax.Array, split_sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    return list(lax.split(x, tuple(split_sizes), wrap_dim(dim, x.ndim)))


# Note [Diagonals]
# In a row-major matrix of `cols` columns the elements of a diagonal lie cols + 1 apart: reading one is a strided slice
# of the flattened matrix, writing one into zeros a pad with cols zeros between the elements. Neither needs a gather.


def _diagonal_span(rows: int, cols: int, offset: int) -> tuple[int, int]:
    """(position in the flattened matrix, length) of a diagonal."""
    length = max(0, min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols))
    return (offset if offset >= 0 else -offset * cols), length


@lowers("aten.diagonal_copy")
def diagonal_copy(x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    """See Note [Diagonals]."""
    x = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    *batch, rows, cols = x.shape
    start, length = _diagonal_span(rows, cols, offset)
    if not length:
        return jnp.zeros((*batch, 0), x.dtype)
    stop = start + (length - 1) * (cols + 1) + 1
    return lax.slice_in_dim(x.reshape(*batch, rows * cols), start, stop, cols + 1, len(batch))


def _place_diagonal(x: jax.Array, rows: int, cols: int, offset: int) -> jax.Array:
    """Matrices of zeros with the last dimension of `x` on a diagonal. See Note [Diagonals]."""
    *batch, length = x.shape
    if not length:
        return jnp.zeros((*batch, rows, cols), x.dtype)
    start, _ = _diagonal_span(rows, cols, offset)
    high = rows * cols - start - (length - 1) * (cols + 1) - 1
    pads = [(0, 0, 0)] * len(batch) + [(start, high, cols)]
    return lax.pad(x, jnp.zeros((), x.dtype), pads).reshape(*batch, rows, cols)


@lowers("aten.diag_embed")
def diag_embed(x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    side = x.shape[-1] + abs(offset)
    return jnp.moveaxis(_place_diagonal(x, side, side, offset), (-2, -1), (dim1, dim2))


@lowers("aten.diagonal_backward")
def diagonal_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> jax.Array:
    placed = _place_diagonal(grad_output, input_sizes[dim1], input_sizes[dim2], offset)
    return jnp.moveaxis(placed, (-2, -1), (dim1, dim2))


@lowers("aten.diagonal_scatter")
def diagonal_scatter(x: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    rows, cols = (
        lax.broadcasted_iota(np.int32, x.shape, dim1 % x.ndim),
        lax.broadcasted_iota(np.int32, x.shape, dim2 % x.ndim),
    )
    placed = diagonal_backward(dtypes.cast(src, x.dtype), x.shape, offset, dim1, dim2)
    return jnp.where(cols - rows == offset, placed, x)


@lowers("aten.tril")
def tril(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.where(_below(x.shape, diagonal), x, jnp.zeros((), x.dtype))


@lowers("aten.triu")
def triu(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.where(_below(x.shape, diagonal - 1), jnp.zeros((), x.dtype), x)


def _below(shape: Sequence[int], diagonal: int) -> jax.Array:
    """Which elements of the matrices in the last two dimensions lie on or below a diagonal."""
    rows, cols = (lax.broadcasted_iota(np.int32, shape[-2:], d) for d in (0, 1))
    return cols - rows <= diagonal


# ---- strides
# The input is taken as contiguous: a wrapper's own strides are not those of the XLA buffer.


def _dense_order(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """Dims by falling stride if the elements they reach fill a block of memory without gaps or repeats, else None."""
    order = sorted((d for d in range(len(size)) if stride[d]), key=lambda d: (stride[d], size[d] != 1), reverse=True)
    expected = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != expected:
            return None
        expected *= size[d]
    return order


def _strided_index(size: Sequence[int], stride: Sequence[int], offset: int) -> jax.Array:
    """Position in memory of each element; computed by the program rather than stored in it."""
    reach = offset + sum((n - 1) * s for n, s in zip(size, stride))
    dtype = np.int32 if reach < 2**31 else np.int64
    index = jnp.full(tuple(size), offset, dtype)
    for d, s in enumerate(stride):
        index = index + lax.broadcasted_iota(dtype, size, d) * s
    return index


@lowers("aten.as_strided_copy")
def as_strided_copy(
    x: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    flat, offset = x.reshape(-1), storage_offset or 0
    if 0 in size:
        return jnp.zeros(tuple(size), x.dtype)
    order = _dense_order(size, stride)
    if order is None:
        return jnp.take(flat, _strided_index(size, stride, offset), mode="clip")
    shape = [size[d] for d in order]
    block = lax.slice_in_dim(flat, offset, offset + math.prod(shape)).reshape(shape)
    return lax.broadcast_in_dim(lax.transpose(block, np.argsort(order)), tuple(size), sorted(order))


def _may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements may lie at the same place."""
    reach = 0
    for s, n in sorted((s, n) for s, n in zip(stride, size) if n > 1):
        if s <= reach:
            return True
        reach += (n - 1) * s
    return False


def _changed(old: jax.Array, new: jax.Array) -> jax.Array:
    return (old != new) & ~((old != old) & (new != new))  # NaN that stays NaN has not changed


@lowers("aten.as_strided_scatter")
def as_strided_scatter(
    x: jax.Array, src: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    flat, offset, src = x.reshape(-1), storage_offset or 0, dtypes.cast(src, x.dtype)
    if 0 in size:
        return x
    order = _dense_order(size, stride)
    if order is None or len(order) < len(size):
        index = _strided_index(size, stride, offset)
        if not _may_overlap(size, stride):
            return flat.at[index].set(src, mode="promise_in_bounds").reshape(x.shape)
        # An element that appears more than once takes the value that was written, not that of an untouched appearance.
        index = jnp.where(_changed(jnp.take(flat, index, mode="clip"), src), index, flat.size)
        return flat.at[index].set(src, mode="drop").reshape(x.shape)
    block = lax.transpose(src, order).reshape(-1)
    return update.place(flat, block, offset, 0).reshape(x.shape)


@lowers("aten.resize", specs=True)
def resize(spec: OutSpec, x: jax.Array, size: Sequence[int], *, memory_format: Any = None) -> jax.Array:
    """The first elements, followed by zeros where PyTorch would expose memory it has not written."""
    missing = math.prod(spec.shape) - x.size
    return lax.pad(x.reshape(-1), jnp.zeros((), x.dtype), [(0, missing, 0)]).reshape(spec.shape)


# ---- joining and repeating


@lowers("aten.cat", specs=True)
def cat(spec: OutSpec, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    # PyTorch lets an empty 1-d tensor join tensors of any rank.
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    return lax.concatenate([dtypes.cast(t, spec.dtype) for t in kept], wrap_dim(dim, len(spec.shape)))


@lowers("aten.stack", specs=True)
def stack(spec: OutSpec, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    # Joined in front and then moved: XLA's CPU code for joining along the last dim takes twice as long.
    joined = lax.concatenate([dtypes.cast(t, spec.dtype)[None] for t in tensors], 0)
    return jnp.moveaxis(joined, 0, wrap_dim(dim, len(spec.shape)))


@lowers("aten.repeat", "aten.tile")
def repeat(x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(x, tuple(repeats))


@lowers("aten.repeat_interleave.Tensor", specs=True)
def repeat_interleave(spec: OutSpec, repeats: jax.Array, *, output_size: int | None = None) -> jax.Array:
    if spec.shape[0] < 2**31:
        repeats = repeats.astype(np.int32)  # half the bytes
    return runs(lax.associative_scan(jnp.add, repeats) - repeats, spec.shape[0])


@lowers("aten.repeat_interleave.self_int")
def repeat_interleave_int(
    x: jax.Array, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> jax.Array:
    x = x.reshape(-1) if dim is None else at_least_1d(x)
    dim = wrap_dim(dim or 0, x.ndim)
    shape = (*x.shape[: dim + 1], repeats, *x.shape[dim + 1 :])
    kept = [d for d in range(len(shape)) if d != dim + 1]
    return lax.broadcast_in_dim(x, shape, kept).reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :])


@lowers("aten.block_diag", specs=True)
def block_diag(spec: OutSpec, tensors: Sequence[jax.Array]) -> jax.Array:
    out, row, col = jnp.zeros(spec.shape, spec.dtype), 0, 0
    for t in tensors:
        t = dtypes.cast(t.reshape((1,) * (2 - t.ndim) + t.shape), spec.dtype)
        out = lax.dynamic_update_slice(out, t, (row, col))
        row, col = row + t.shape[0], col + t.shape[1]
    return out


# ---- padding


def _pairs(padding: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """(before, after) for each dimension from PyTorch's list, which starts at the last one."""
    pairs = [(before, after) for before, after in zip(padding[::2], padding[1::2])]
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


@lowers("aten.constant_pad_nd")
def constant_pad_nd(x: jax.Array, pad: Sequence[int], value: Any = 0) -> jax.Array:
    return lax.pad(x, dtypes.cast(value, x.dtype), [(before, after, 0) for before, after in _pairs(pad, x.ndim)])


def _reflect_edge(x: jax.Array, dim: int, count: int, after: bool) -> jax.Array:
    size = x.shape[dim]
    start = size - 1 - count if after else 1
    return lax.rev(lax.slice_in_dim(x, start, start + count, 1, dim), [dim])


def _replicate_edge(x: jax.Array, dim: int, count: int, after: bool) -> jax.Array:
    start = x.shape[dim] - 1 if after else 0
    edge = lax.slice_in_dim(x, start, start + 1, 1, dim)
    return jnp.broadcast_to(edge, (*x.shape[:dim], count, *x.shape[dim + 1 :]))


def replicate_edges(x: jax.Array, dim: int, before: int, after: int) -> jax.Array:
    """Repeats the first element of `dim` before it and the last one after it."""
    if before:
        x = lax.concatenate([_replicate_edge(x, dim, before, False), x], dim)
    return lax.concatenate([x, _replicate_edge(x, dim, after, True)], dim) if after else x


def _pad_edges(x: jax.Array, padding: Sequence[int], edge: Callable[..., jax.Array]) -> jax.Array:
    """Pads with what `edge` makes of the data; negative amounts crop."""
    for dim, (before, after) in enumerate(_pairs(padding, x.ndim)):
        parts = [edge(x, dim, before, False)] if before > 0 else []
        parts += [x] + ([edge(x, dim, after, True)] if after > 0 else [])
        padded = lax.concatenate(parts, dim) if len(parts) > 1 else x
        x = lax.slice_in_dim(padded, max(0, -before), padded.shape[dim] - max(0, -after), 1, dim)
    return x


def _register_padding(name: str, edge: Callable[..., jax.Array]) -> None:
    @lowers(f"aten.{name}")
    def forward(x: jax.Array, padding: Sequence[int]) -> jax.Array:
        return _pad_edges(x, padding, edge)

    @lowers(f"aten.{name}_backward")
    def backward(grad_output: jax.Array, x: jax.Array, padding: Sequence[int]) -> jax.Array:
        return transpose_linear(lambda x: _pad_edges(x, padding, edge), x.shape, grad_output)


for _rank in (1, 2, 3):
    _register_padding(f"reflection_pad{_rank}d", _reflect_edge)
    _register_padding(f"replication_pad{_rank}d", _replicate_edge)


# ---- sliding windows

_MAX_SLICES = 32  # more strided slices than this cost more to compile than one gather costs to run


def _windows(x: jax.Array, dim: int, kernel: int, stride: int, dilation: int = 1) -> jax.Array:
    """Replaces `dim` by (kernel, number of windows): element [k, w] is the one at w * stride + k * dilation."""
    count = (x.shape[dim] - dilation * (kernel - 1) - 1) // stride + 1
    if kernel == stride and dilation == 1:  # windows do not overlap: no copy
        x = lax.slice_in_dim(x, 0, count * stride, 1, dim)
        return jnp.swapaxes(x.reshape(*x.shape[:dim], count, kernel, *x.shape[dim + 1 :]), dim, dim + 1)
    if kernel > _MAX_SLICES:
        shape = (kernel, count)
        index = lax.broadcasted_iota(np.int32, shape, 0) * dilation + lax.broadcasted_iota(np.int32, shape, 1) * stride
        return jnp.take(x, index, axis=dim, mode="clip")
    span = (count - 1) * stride + 1
    starts = range(0, kernel * dilation, dilation)
    return jnp.stack([lax.slice_in_dim(x, s, s + span, stride, dim) for s in starts], axis=dim)


@lowers("aten.unfold_copy")
def unfold_copy(x: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    dim, wide = wrap_dim(dimension, x.ndim), at_least_1d(x)
    if not size:
        return jnp.zeros((*wide.shape[:dim], wide.shape[dim] // step + 1, *wide.shape[dim + 1 :], 0), x.dtype)
    windows = jnp.moveaxis(_windows(wide, dim, size, step), dim, -1)
    return windows if x.ndim else windows.reshape(size)


@lowers("aten.unfold_backward")
def unfold_backward(grad_in: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> jax.Array:
    return transpose_linear(lambda x: unfold_copy(x, dim, size, step), input_sizes, grad_in)


Pair = Sequence[int]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


@lowers("aten.im2col")
def im2col(x: jax.Array, kernel_size: Pair, dilation: Pair, padding: Pair, stride: Pair) -> jax.Array:
    """(N, C, H, W) -> (N, C * kernel, windows); the batch dimension is optional."""
    kernel, dilate, pad, step = (_pair(v) for v in (kernel_size, dilation, padding, stride))
    *batch, channels, _, _ = x.shape
    x = constant_pad_nd(x, [pad[1], pad[1], pad[0], pad[0]])
    x = _windows(x, x.ndim - 1, kernel[1], step[1], dilate[1])  # ..., H, kw, w
    x = _windows(x, x.ndim - 3, kernel[0], step[0], dilate[0])  # ..., kh, h, kw, w
    windows = x.shape[-3] * x.shape[-1]
    return jnp.swapaxes(x, -3, -2).reshape(*batch, channels * kernel[0] * kernel[1], windows)


@lowers("aten.col2im")
def col2im(
    x: jax.Array, output_size: Pair, kernel_size: Pair, dilation: Pair, padding: Pair, stride: Pair
) -> jax.Array:
    """The transpose of im2col: windows that overlap add up."""
    height, width = _pair(output_size)
    kernel = _pair(kernel_size)
    shape = (*x.shape[:-2], x.shape[-2] // (kernel[0] * kernel[1]), height, width)
    return transpose_linear(lambda y: im2col(y, kernel_size, dilation, padding, stride), shape, x)
