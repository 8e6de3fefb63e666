"""Lowerings of ops that read or write elements chosen by index tensors: indexing, gather/scatter, embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.compact import true_positions
from torch_xla._src.ops.registry import OutSpec, lowers
from torch_xla._src.ops.shape import at_least_1d, wrap_dim

# Note [Indices out of range]
# PyTorch raises for them; a compiled program cannot, but may return that it met one: Note [Failed checks]. Reads clamp
# and writes are dropped, which is what XLA's gather and scatter do by themselves (mode="clip" and mode="drop" add no
# work). Negative indices count from the end only in the ops where PyTorch's do.

_IDENTITY: dict[str, Callable[[np.dtype], Any]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "min": lambda dtype: np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max,
    "max": lambda dtype: -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min,
}
_KINDS = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amin": "min", "amax": "max"}


def _accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which repeated writes combine: booleans count, 16-bit floats sum in float32."""
    return np.dtype(np.int32) if dtype == np.dtype(bool) else dtypes.opmath(dtype)


# ---- indexing by a list of tensors (x[i, :, j])


def _key(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (np.dtype(bool), np.dtype(np.uint8))


def _expand_masks(indices: Sequence[Any], count: int) -> list[Any]:
    """Replaces each mask by the indices of its first `count` true elements, then indices that are out of range."""
    expanded: list[Any] = []
    for index in indices:
        expanded += jnp.nonzero(index, size=count, fill_value=np.iinfo(np.int32).max) if _is_mask(index) else [index]
    return expanded


def _mask_count(spec: OutSpec, x: jax.Array, indices: Sequence[Any]) -> int:
    """How many elements the masks choose, read off the shape of the result."""
    rank = sum(i.ndim if _is_mask(i) else 1 for i in indices)
    fixed = [d for d in range(x.ndim) if d >= rank or _spans(indices)[d]]
    leading = next((d for d, spanned in enumerate(_spans(indices)) if not spanned), 0)
    adjacent = all(not s for s in _trimmed(_spans(indices)))
    others = [i.ndim for i in indices if i is not None and not _is_mask(i)]
    broadcast_rank = max([1, *others])
    assert len(spec.shape) == len(fixed) + broadcast_rank
    return spec.shape[(leading if adjacent else 0) + broadcast_rank - 1]


def _spans(indices: Sequence[Any]) -> list[bool]:
    """For each dimension the indices cover, whether it is kept whole (a None)."""
    spans: list[bool] = []
    for index in indices:
        spans += [index is None] * (index.ndim if _is_mask(index) else 1)
    return spans


def _trimmed(spans: list[bool]) -> list[bool]:
    first, last = spans.index(False), len(spans) - spans[::-1].index(False)
    return spans[first:last]


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor", specs=True)
def index(spec: OutSpec, x: jax.Array, indices: Sequence[Any]) -> jax.Array:
    """See Note [Indices out of range]. Masks work where the caller knows the size of the result."""
    if any(_is_mask(i) for i in indices):
        indices = _expand_masks(indices, _mask_count(spec, x, indices))
    if not indices or all(i is None for i in indices):
        return x
    return x.at[_key(indices)].get(mode="clip")


def _masked_put(x: jax.Array, mask: jax.Array, dim: int, values: jax.Array, accumulate: bool) -> jax.Array:
    """x[:, ..., mask] = values without a scatter: element k of `values` goes to the k-th true position."""
    whole = mask.reshape((1,) * dim + mask.shape + (1,) * (x.ndim - dim - mask.ndim))
    rest = x.shape[dim + mask.ndim :]
    if values.ndim > len(rest) and values.shape[-len(rest) - 1] != 1:
        position = jnp.cumsum(mask.reshape(-1), dtype=np.int32) - 1
        values = jnp.take(values, position, axis=values.ndim - len(rest) - 1, mode="clip")
        values = values.reshape(*values.shape[: -len(rest) - 1], *mask.shape, *rest)
    elif values.ndim > len(rest):  # one value for every true position: broadcast over the dimensions of the mask
        at = values.ndim - len(rest) - 1
        values = values.reshape(*values.shape[:at], *(1,) * mask.ndim, *values.shape[at + 1 :])
    return jnp.where(whole, x + values if accumulate else values, x)


def _put_count(x: jax.Array, indices: Sequence[Any], values: jax.Array) -> int:
    """How many elements the masks of a write choose, or at most choose if neither indices nor values tell."""
    whole = x.ndim - sum(not spanned for spanned in _spans(indices))
    counts = [i.shape[-1] for i in indices if i is not None and i.ndim and not _is_mask(i)]
    counts += [values.shape[0]] if values.ndim > whole else []
    telling = [count for count in counts if count != 1]
    return telling[0] if telling else max(i.size for i in indices if _is_mask(i))


@lowers("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    x: jax.Array, indices: Sequence[Any], values: jax.Array, accumulate: bool = False, unsafe: bool = False
) -> jax.Array:
    values = dtypes.cast(values, x.dtype)
    used = [d for d, i in enumerate(indices) if i is not None]
    if len(used) == 1 and _is_mask(indices[used[0]]):
        return _masked_put(x, indices[used[0]] != 0, used[0], values, accumulate)
    if any(_is_mask(i) for i in indices):
        indices = _expand_masks(indices, _put_count(x, indices, values))
    if not used:
        return x + values if accumulate else jnp.broadcast_to(values, x.shape)
    if not accumulate:
        if len(used) == 1 and indices[used[0]].size == 1 and x.size:  # x[:, position] = values
            place = used[0]
            one = jnp.broadcast_to(values, (*x.shape[:place], *indices[place].shape, *x.shape[place + 1 :]))
            one = one.reshape(*x.shape[:place], 1, *x.shape[place + 1 :])
            return _write_one(x, place, indices[place].reshape(()), one)
        return x.at[_key(indices)].set(values, mode="drop")
    wide = _accumulator(x.dtype)
    return dtypes.cast(x.astype(wide).at[_key(indices)].add(values.astype(wide), mode="drop"), x.dtype)


@lowers("aten._unsafe_masked_index")
def unsafe_masked_index(x: jax.Array, mask: jax.Array, indices: Sequence[Any], fill: Any) -> jax.Array:
    taken = x.at[_key(indices)].get(mode="clip")
    return jnp.where(mask, taken, dtypes.cast(fill, x.dtype))


@lowers("aten._unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(
    x: jax.Array, mask: jax.Array, indices: Sequence[Any], values: jax.Array
) -> jax.Array:
    clipped = [i if i is None else jnp.clip(i, -x.shape[d], x.shape[d] - 1) for d, i in enumerate(indices)]
    return index_put(x, clipped, jnp.where(mask, values, jnp.zeros((), values.dtype)), True)


@lowers("aten.take")
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    return x.reshape(-1).at[index].get(mode="clip")


@lowers("aten.put")
def put(x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    return index_put(x.reshape(-1), [index], source.reshape(index.shape), accumulate).reshape(x.shape)


# ---- one index tensor for whole slices of a dimension


@lowers("aten.index_select")
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    taken = jnp.take(at_least_1d(x), at_least_1d(index), axis=wrap_dim(dim, x.ndim), mode="clip")
    return taken if x.ndim else taken.reshape(())


def _write(x: jax.Array, dim: int, index: jax.Array, source: Any, kind: str) -> jax.Array:
    """Writes slices of `source` at `index` of `dim`; kind: set, add, mul, min, max."""
    dim, wide, index = wrap_dim(dim, x.ndim), at_least_1d(x), at_least_1d(index)
    shape = (*wide.shape[:dim], index.shape[0], *wide.shape[dim + 1 :])
    source = jnp.broadcast_to(source.reshape(shape) if source.ndim else source, shape)
    if kind == "set" and index.shape[0] == 1 and 0 not in shape:
        return _write_one(wide, dim, index[0], source).reshape(x.shape)
    ref = wide.at[(slice(None),) * dim + (index,)]
    written: jax.Array = getattr(ref, kind)(source, mode="drop")
    return written.reshape(x.shape)


def _write_one(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    """Writes one slice: XLA updates that in place, where a scatter is a loop on CPU. See Note [Indices out of range]."""
    size = x.shape[dim]
    at = jnp.where(index < 0, index + size, index)
    old = lax.dynamic_slice_in_dim(x, at, 1, dim)  # which clamps
    return lax.dynamic_update_slice_in_dim(x, jnp.where((at >= 0) & (at < size), source, old), at, dim)


@lowers("aten.index_add")
def index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Any = 1) -> jax.Array:
    dtype = _accumulator(x.dtype)
    source = source.astype(dtype) * dtypes.cast(alpha, dtype)
    return dtypes.cast(_write(x.astype(dtype), dim, index, source, "add"), x.dtype)


@lowers("aten.index_copy")
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _write(x, dim, index, dtypes.cast(source, x.dtype), "set")


@lowers("aten.index_fill")
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    return _write(x, dim, index, dtypes.cast(value, x.dtype), "set")


@lowers("aten.index_reduce")
def index_reduce(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    return _reduce_into(_write, x, dim, index, source, reduce, include_self)


# ---- one index per element


@lowers("aten.gather")
def gather(x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    dim, shape = wrap_dim(dim, x.ndim), index.shape
    x, index = at_least_1d(x), at_least_1d(index)
    if index.size == 0:
        return jnp.zeros(shape, x.dtype)
    x = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))]
    return jnp.take_along_axis(x, index, dim, mode="clip").reshape(shape)


_SCATTERS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


def _scatter(x: jax.Array, dim: int, index: jax.Array, src: Any, kind: str) -> jax.Array:
    """Writes each element of `src` (of at least the shape of `index`, or one number) at its index of `dim`."""
    dim, shape = wrap_dim(dim, x.ndim), x.shape
    x, index = at_least_1d(x), at_least_1d(index)
    if index.size == 0:
        return x.reshape(shape)
    src = at_least_1d(src)[tuple(map(slice, index.shape))] if src.ndim else jnp.broadcast_to(src, index.shape)
    head = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))]
    others = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.ScatterDimensionNumbers((), (dim,), (dim,), others, others)
    head = _SCATTERS[kind](head, index[..., None], src.reshape(index.shape), numbers, mode="drop")
    return (head if head.shape == x.shape else lax.dynamic_update_slice(x, head, (0,) * x.ndim)).reshape(shape)


@lowers("aten.scatter")
def scatter(x: jax.Array, dim: int, index: jax.Array, src: Any, *, reduce: str | None = None) -> jax.Array:
    dtype = _accumulator(x.dtype) if reduce else x.dtype
    kind = _KINDS[reduce] if reduce else "set"
    return dtypes.cast(_scatter(dtypes.cast(x, dtype), dim, index, dtypes.cast(src, dtype), kind), x.dtype)


@lowers("aten.scatter_add")
def scatter_add(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return scatter(x, dim, index, src, reduce="add")


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    x: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    return _reduce_into(_scatter, x, dim, index, src, reduce, include_self)


def _reduce_into(
    write: Callable[..., jax.Array],
    x: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    reduce: str,
    include_self: bool,
) -> jax.Array:
    """Combines `src` into `x`; without include_self the elements written start from the identity instead."""
    dtype, kind = _accumulator(x.dtype), _KINDS[reduce]
    base, src = dtypes.cast(x, dtype), dtypes.cast(src, dtype)
    ones = jnp.ones((), np.int32)
    counted = reduce == "mean" or not include_self
    count = write(jnp.zeros(x.shape, np.int32), dim, index, ones, "add") if counted else jnp.zeros((), np.int32)
    if not include_self:
        base = jnp.where(count > 0, jnp.asarray(_IDENTITY[kind](dtype), dtype), base)
    out = write(base, dim, index, src, kind)
    if reduce == "mean":
        count = jnp.maximum(count + int(include_self), 1).astype(dtype)
        out = out / count if jnp.issubdtype(dtype, jnp.inexact) else out // count
    return dtypes.cast(out, x.dtype)


# ---- masks


def _rank_of(mask: jax.Array) -> jax.Array:
    """For each element, how many true elements come before it (itself not counted), in row-major order."""
    return (jnp.cumsum(mask.reshape(-1), dtype=np.int32) - mask.reshape(-1)).reshape(mask.shape)


@lowers("aten.masked_scatter")
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    if not source.size:
        return jnp.broadcast_to(x, shape)
    mask = jnp.broadcast_to(mask != 0, shape)
    taken = jnp.take(source.reshape(-1), _rank_of(mask), mode="clip")
    return jnp.where(mask, dtypes.cast(taken, x.dtype), x)


@lowers("aten.masked_scatter_backward")
def masked_scatter_backward(grad_output: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    mask = jnp.broadcast_to(mask, grad_output.shape)
    size = math.prod(sizes)
    target = jnp.where(mask, _rank_of(mask), size)
    return jnp.zeros(size, grad_output.dtype).at[target].set(grad_output, mode="drop").reshape(tuple(sizes))


@lowers("aten.nonzero_static")
def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    if not x.ndim or not x.size or not size:
        return jnp.full((size, x.ndim), fill_value, np.int64)
    flat, found = true_positions(x.reshape(-1) != 0, size)
    flat = lax.optimization_barrier(flat)  # else it is computed again for each dim
    if x.ndim == 1:
        return jnp.where(found, flat.astype(np.int64), np.int64(fill_value))[:, None]
    return jnp.where(found[:, None], _coordinates(flat, x.shape).astype(np.int64), np.int64(fill_value))


def _coordinates(flat: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Positions in a flattened array as [positions, dims], of their dtype; none is negative."""
    # Unsigned: XLA turns a division by a constant into a multiplication, without the cases of negative numbers.
    rest = flat.astype(np.uint32 if flat.dtype == np.int32 else np.uint64)
    columns = []
    for n in shape[:0:-1]:
        columns.append(lax.rem(rest, rest.dtype.type(n)))
        rest = lax.div(rest, rest.dtype.type(n))
    return jnp.stack([rest, *columns[::-1]], 1).astype(flat.dtype)


# ---- embeddings


@lowers("aten.embedding")
def embedding(
    weight: jax.Array, indices: jax.Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> jax.Array:
    return jnp.take(weight, indices, axis=0, mode="clip")


@lowers("aten.embedding_dense_backward")
def embedding_dense_backward(
    grad_output: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    indices = indices.reshape(-1)
    grad = grad_output.reshape(indices.shape[0], -1).astype(dtypes.opmath(grad_output.dtype))
    if padding_idx >= 0:
        indices = jnp.where(indices == padding_idx, num_weights, indices)  # out of range: dropped
    if scale_grad_by_freq:
        grad = grad / _frequency(indices, num_weights, grad.dtype)
    return jnp.zeros((num_weights, grad_output.shape[-1]), grad.dtype).at[indices].add(grad, mode="drop")


def _frequency(indices: jax.Array, num_weights: int, dtype: Any) -> jax.Array:
    """How often each index occurs, as a column."""
    counts = jnp.zeros(num_weights, np.int32).at[indices].add(1, mode="drop")
    return jnp.maximum(jnp.take(counts, indices, mode="clip"), 1).astype(dtype)[:, None]


@lowers("aten.embedding_renorm")
def embedding_renorm(x: jax.Array, indices: jax.Array, max_norm: Any, norm_type: Any) -> jax.Array:
    """Rescales the rows named by `indices`; a row named twice is written twice with the same value."""
    indices = indices.reshape(-1)
    rows = jnp.take(x, indices, axis=0, mode="clip").astype(dtypes.opmath(x.dtype))
    norm = jnp.linalg.norm(rows, norm_type, axis=1, keepdims=True)
    scaled = jnp.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)
    return x.at[indices].set(scaled.astype(x.dtype), mode="drop")


# ---- bags: embeddings reduced over consecutive runs of indices
_SUM, _MEAN, _MAX = 0, 1, 2


@lowers("aten._embedding_bag", "aten._embedding_bag_forward_only", specs=True)
def embedding_bag(
    specs: list[OutSpec],
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[jax.Array]:
    """(output, bag of each index, size of each bag, row that gave each maximum)."""
    num_bags, wide = specs[0].shape[0], dtypes.opmath(weight.dtype)
    bag = jnp.searchsorted(offsets[:num_bags], lax.iota(offsets.dtype, indices.shape[0]), side="right") - 1
    rows = jnp.take(weight, indices, axis=0, mode="clip").astype(wide)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(wide)[:, None]
    used = jnp.where(indices == padding_idx, num_bags, bag) if padding_idx >= 0 else bag  # num_bags: dropped
    size = jnp.zeros(num_bags, np.int32).at[used].add(1, mode="drop")
    winner = jnp.zeros((num_bags, weight.shape[1]), np.int64)
    if mode == _MAX:
        out, winner = _bag_maximum(rows, indices, used, size)
    else:
        out = jnp.zeros((num_bags, weight.shape[1]), wide).at[used].add(rows, mode="drop")
        out = out / jnp.maximum(size, 1).astype(wide)[:, None] if mode == _MEAN else out
    return [out] + [_bookkeeping(spec, x) for spec, x in zip(specs[1:], (bag, size, winner))]


def _bookkeeping(spec: OutSpec, x: jax.Array) -> jax.Array:
    """PyTorch leaves an output empty or zero-filled where the mode does not need it."""
    return x if x.shape == spec.shape else jnp.zeros(spec.shape, spec.dtype)


def _bag_maximum(rows: jax.Array, indices: jax.Array, bag: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    best = jnp.full((size.shape[0], rows.shape[1]), -np.inf, rows.dtype).at[bag].max(rows, mode="drop")
    position = lax.broadcasted_iota(np.int32, rows.shape, 0)
    is_best = rows == jnp.take(best, bag, axis=0, mode="clip")
    first = jnp.full(best.shape, rows.shape[0], np.int32)
    first = first.at[bag].min(jnp.where(is_best, position, rows.shape[0]), mode="drop")
    filled = (size > 0)[:, None]
    winner = jnp.where(filled, jnp.take(indices, first, mode="clip"), 0) if indices.size else jnp.zeros_like(first)
    return jnp.where(filled, best, 0), winner


@lowers("aten._embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    wide = dtypes.opmath(grad.dtype)
    out = jnp.zeros((num_weights, grad.shape[1]), wide)
    grad = grad.astype(wide)
    if mode == _MAX:
        column = lax.broadcasted_iota(np.int32, grad.shape, 1)
        row = jnp.where((bag_size > 0)[:, None], maximum_indices, num_weights)
        return out.at[row, column].add(grad, mode="drop")
    if mode == _MEAN:
        grad = grad / jnp.maximum(bag_size, 1).astype(wide)[:, None]
    rows = jnp.take(grad, offset2bag, axis=0, mode="clip")
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(wide)[:, None]
    if scale_grad_by_freq:
        rows = rows / _frequency(indices, num_weights, wide)
    target = jnp.where(indices == padding_idx, num_weights, indices) if padding_idx >= 0 else indices
    return out.at[target].add(rows, mode="drop")


@lowers("aten._embedding_bag_backward")
def embedding_bag_backward(
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    """The dense gradient, whatever `sparse`: device xla has no sparse tensors."""
    if offset2bag.shape != indices.shape:  # the forward pass did not need it
        offset2bag = jnp.searchsorted(offsets, lax.iota(offsets.dtype, indices.shape[0]), side="right") - 1
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers("aten._embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    wide = dtypes.opmath(grad.dtype)
    if offset2bag.shape != indices.shape:
        offset2bag = jnp.searchsorted(offsets, lax.iota(offsets.dtype, indices.shape[0]), side="right") - 1
    grads, rows = (jnp.take(t, i, axis=0, mode="clip").astype(wide) for t, i in ((grad, offset2bag), (weight, indices)))
    out = jnp.sum(grads * rows, axis=1)
    return jnp.where(indices == padding_idx, 0, out) if padding_idx >= 0 else out


# ---- searching sorted sequences


def _search(boundaries: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    return jnp.searchsorted(boundaries, values, side="right" if right else "left")


@lowers("aten.bucketize")
def bucketize(x: Any, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False) -> jax.Array:
    return searchsorted(boundaries, x, right=right)


@lowers("aten.searchsorted")
def searchsorted(
    sorted_sequence: jax.Array,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """A 1-d sequence serves all values; otherwise row i of the sequence serves row i of the values."""
    sequence = sorted_sequence if sorter is None else jnp.take_along_axis(sorted_sequence, sorter, -1)
    dtype = dtypes.promote(sequence, x)
    sequence, values, right = dtypes.cast(sequence, dtype), dtypes.cast(x, dtype), right or side == "right"
    if sequence.ndim == 1:
        return _search(sequence, values, right)
    rows = sequence.reshape(-1, sequence.shape[-1]), values.reshape(math.prod(values.shape[:-1]), values.shape[-1])
    return jax.vmap(lambda s, v: _search(s, v, right))(*rows).reshape(values.shape)
