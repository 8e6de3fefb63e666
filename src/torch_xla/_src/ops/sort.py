"""Lowerings of ops that order elements: sort, top-k, order statistics, mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops.registry import lowers
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
    return tuple(picked) if keepdim else tuple(jnp.squeeze(t, dim) for t in picked)


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
