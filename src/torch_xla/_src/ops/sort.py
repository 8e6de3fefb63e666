"""Lowerings of ops that order elements: sort, top-k, order statistics, mode, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import OutSpec, lowers
from torch_xla._src.ops.shape import at_least_1d, wrap_dim

# Note [Order of NaN]
# PyTorch orders NaN, of either sign, above every number. XLA's sort puts NaN last as well, but its top-k compares bits:
# there a NaN with the sign bit set (what 0/0 gives on x86) would come out smallest.

Pair = tuple[jax.Array, jax.Array]


# ---- sort


def _index_dtype(size: int) -> np.dtype:
    return np.dtype(np.int32 if size < 2**31 else np.int64)


def sort_pairs(x: jax.Array, dim: int, descending: bool = False) -> Pair:
    """(values, indices) sorted stably along `dim` of an array with at least one dimension."""
    position = lax.broadcasted_iota(_index_dtype(x.shape[dim]), x.shape, dim)
    key = x.astype(np.uint8) if x.dtype == np.dtype(bool) else x
    if descending:  # reversing before and after keeps equal elements in order, for every dtype
        key, position = lax.rev(key, [dim]), lax.rev(position, [dim])
    values, indices = lax.sort((key, position), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, indices = lax.rev(values, [dim]), lax.rev(indices, [dim])
    return values.astype(x.dtype), indices


@lowers("aten.sort")
def sort(x: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Pair:
    values, indices = sort_pairs(at_least_1d(x), wrap_dim(dim, x.ndim), descending)
    return values.reshape(x.shape), indices.reshape(x.shape)


@lowers("aten.sort.stable")
def sort_stable(x: jax.Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Pair:
    return sort(x, dim, descending)


@lowers("aten.argsort")
def argsort(x: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool = False) -> jax.Array:
    return sort(x, dim, descending)[1]


@lowers("aten.argsort.stable")
def argsort_stable(x: jax.Array, *, stable: bool, dim: int = -1, descending: bool = False) -> jax.Array:
    return sort(x, dim, descending)[1]


@lowers("aten.msort")
def msort(x: jax.Array) -> jax.Array:
    return lax.sort(x, dimension=0) if x.ndim else x


# ---- the k largest


def _ranking_key(x: jax.Array, largest: bool) -> jax.Array:
    """Something whose k largest are the k elements wanted. See Note [Order of NaN]."""
    if x.dtype == np.dtype(bool):
        x = x.astype(np.uint8)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x if largest else ~x
    nan = jnp.asarray(np.nan, x.dtype)
    return jnp.where(jnp.isnan(x), nan if largest else -nan, x if largest else -x)


@lowers("aten.topk")
def topk(x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    dim, wide = wrap_dim(dim, x.ndim), jnp.moveaxis(at_least_1d(x), dim, -1)
    key = _ranking_key(wide, largest)
    best, indices = lax.top_k(key, k)
    if not largest:
        best = -best if jnp.issubdtype(best.dtype, jnp.floating) else ~best
    values, indices = (jnp.moveaxis(t, -1, dim) for t in (best, indices))
    return (values, indices) if x.ndim else (values.reshape(k and ()), indices.reshape(k and ()))


# ---- order statistics


def _pick(pairs: Pair, position: jax.Array, dim: int, keepdim: bool) -> Pair:
    """The pair at `position` (one for each line along `dim`, that dimension kept as 1)."""
    picked = [jnp.take_along_axis(t, position, dim, mode="clip") for t in pairs]
    return tuple(picked) if keepdim else tuple(jnp.squeeze(t, dim) for t in picked)  # type: ignore[return-value]


@lowers("aten.kthvalue")
def kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    dim = wrap_dim(dim, x.ndim)
    values, indices = (lax.slice_in_dim(t, k - 1, k, 1, dim) for t in sort_pairs(x, dim))
    return (values, indices) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(indices, dim))


def _median(x: jax.Array, dim: int, keepdim: bool, ignore_nan: bool) -> Pair:
    """The lower median; a NaN, sorted last, wins unless ignored."""
    pairs, size = sort_pairs(x, dim), x.shape[dim]
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _pick(pairs, jnp.full(shape, (size - 1) // 2, np.int32), dim, keepdim)
    numbers = jnp.sum(~jnp.isnan(x), axis=dim, keepdims=True, dtype=np.int32)
    if ignore_nan:
        return _pick(pairs, jnp.maximum(numbers - 1, 0) // 2, dim, keepdim)
    return _pick(pairs, jnp.where(numbers < size, numbers, (size - 1) // 2), dim, keepdim)


def _register_median(name: str, ignore_nan: bool) -> None:
    @lowers(f"aten.{name}.dim")
    def along(x: jax.Array, dim: int, keepdim: bool = False) -> Pair:
        if not x.ndim:
            return x, jnp.zeros((), np.int64)
        return _median(x, wrap_dim(dim, x.ndim), keepdim, ignore_nan)

    @lowers(f"aten.{name}")
    def overall(x: jax.Array) -> jax.Array:
        if not x.size:
            floating = jnp.issubdtype(x.dtype, jnp.floating)
            return jnp.asarray(np.nan if floating else jnp.iinfo(x.dtype).min, x.dtype)
        return _median(x.reshape(-1), 0, False, ignore_nan)[0]


_register_median("median", False)
_register_median("nanmedian", True)


@lowers("aten.mode")
def mode(x: jax.Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent value, the smallest of several; the index is that of its last occurrence."""
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    dim = wrap_dim(dim, x.ndim)
    values, indices = sort_pairs(x, dim)
    position = lax.broadcasted_iota(np.int32, x.shape, dim)
    before, after = (lax.slice_in_dim(values, a, x.shape[dim] - 1 + a, 1, dim) for a in (0, 1))
    edge = jnp.ones((*x.shape[:dim], 1, *x.shape[dim + 1 :]), bool)
    starts = lax.concatenate([edge, before != after], dim)
    ends = lax.concatenate([before != after, edge], dim)
    run_start = lax.cummax(jnp.where(starts, position, 0), axis=dim)
    length = jnp.where(ends, position - run_start, -1)
    return _pick((values, indices), jnp.argmax(length, axis=dim, keepdims=True), dim, keepdim)


# ---- histograms


def _limits(x: jax.Array, low: Any, high: Any, margin: float) -> tuple[jax.Array, jax.Array]:
    """The range of a histogram: equal limits mean that of the data, a single value is widened by the margin."""
    low, high = (dtypes.cast(v, x.dtype) for v in (low, high))
    if x.size:
        same = low == high
        low, high = jnp.where(same, jnp.min(x), low), jnp.where(same, jnp.max(x), high)
    return jnp.where(low == high, low - margin, low), jnp.where(low == high, high + margin, high)


def _count_between(x: jax.Array, edges: jax.Array, weight: jax.Array | None, dtype: Any) -> jax.Array:
    """Total weight in each bin [edge, next edge), the last bin closed; NaN and values outside count nowhere."""
    bins = edges.shape[0] - 1
    position = jnp.searchsorted(edges, x, side="right") - 1
    position = jnp.where(x == edges[-1], bins - 1, position)
    inside = (x >= edges[0]) & (x <= edges[-1])
    amount = jnp.ones((), dtype) if weight is None else weight.reshape(-1).astype(dtype)
    return jnp.zeros(bins, dtype).at[jnp.where(inside, position, bins)].add(amount, mode="drop")


def _even_edges(low: jax.Array, high: jax.Array, bins: int, dtype: Any) -> jax.Array:
    step = (high - low) / bins
    edges = low + step * lax.iota(dtype, bins + 1)
    return jnp.where(lax.iota(np.int32, bins + 1) == bins, high, edges).astype(dtype)


@lowers("aten.histc")
def histc(x: jax.Array, bins: int = 100, min: Any = 0, max: Any = 0) -> jax.Array:
    """Bins by the position within the range, as PyTorch does, not by comparing with rounded edges."""
    dtype = x.dtype
    x = x.reshape(-1).astype(dtypes.opmath(dtype) if jnp.issubdtype(dtype, jnp.floating) else np.float64)
    low, high = _limits(x, min, max, 1.0)
    position = jnp.floor((x - low) * (bins / (high - low)))
    inside = (x >= low) & (x <= high)
    target = jnp.where(inside, jnp.minimum(position, bins - 1), bins).astype(np.int32)
    return jnp.zeros(bins, np.int32).at[target].add(1, mode="drop").astype(dtype)


def _histogram(x: jax.Array, edges: jax.Array, weight: jax.Array | None, density: bool) -> Pair:
    counts = _count_between(x.reshape(-1), edges, weight, x.dtype)
    if density:
        counts = counts / jnp.sum(counts) / jnp.diff(edges)
    return counts, edges


@lowers("aten.histogram.bins_tensor")
def histogram(x: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False) -> Pair:
    return _histogram(x, bins, weight, density)


@lowers("aten.histogram.bin_ct")
def histogram_bin_ct(
    x: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> Pair:
    low, high = _limits(x, *(range or (0, 0)), 0.5)
    return _histogram(x, _even_edges(low, high, bins, x.dtype), weight, density)


@lowers("aten._histogramdd_bin_edges", specs=True)
def histogramdd_bin_edges(
    specs: list[OutSpec] | OutSpec, x: jax.Array, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: Any
) -> list[jax.Array]:
    columns, edges = x.reshape(-1, x.shape[-1]), []
    for d, count in enumerate(bins):
        low, high = _limits(columns[:, d], *(range[2 * d : 2 * d + 2] if range else (0, 0)), 0.5)
        edges.append(_even_edges(low, high, count, x.dtype))
    return edges


@lowers("aten._histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    return histogramdd_from_bin_tensors(
        x, histogramdd_bin_edges([], x, bins, range=range), weight=weight, density=density
    )


@lowers("aten._histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(
    x: jax.Array, bins: Sequence[jax.Array], *, weight: jax.Array | None = None, density: bool = False
) -> jax.Array:
    """Flattens the bins of all dimensions into one row, counts, and folds back."""
    columns, shape = x.reshape(-1, x.shape[-1]), tuple(edges.shape[0] - 1 for edges in bins)
    flat, inside = jnp.zeros(columns.shape[0], np.int64), jnp.ones(columns.shape[0], bool)
    for d, edges in enumerate(bins):
        column = columns[:, d]
        position = jnp.minimum(jnp.searchsorted(edges, column, side="right") - 1, shape[d] - 1)
        flat = flat * shape[d] + position
        inside &= (column >= edges[0]) & (column <= edges[-1])
    size = int(np.prod(shape))
    amount = jnp.ones((), x.dtype) if weight is None else weight.reshape(-1).astype(x.dtype)
    counts = jnp.zeros(size, x.dtype).at[jnp.where(inside, flat, size)].add(amount, mode="drop").reshape(shape)
    if density:
        counts = counts / jnp.sum(counts)
        for d, edges in enumerate(bins):
            counts = counts / jnp.expand_dims(jnp.diff(edges), [a for a in np.arange(len(shape)) if a != d])
    return counts
