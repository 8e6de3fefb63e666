"""Histograms and bin counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._src.ops.dtypes import cast
from torch_xla._src.ops.registry import OutSpec, lowers


@lowers("aten.bincount", specs=True)
def bincount(spec: OutSpec, x: jax.Array, weights: jax.Array | None = None, minlength: int = 0) -> jax.Array:
    """The length of the result depends on data: the caller has read it and states it in the spec."""
    amounts = jnp.ones((), spec.dtype) if weights is None else cast(weights, spec.dtype)
    return jnp.zeros(spec.shape, spec.dtype).at[x].add(amounts, mode="drop")


@lowers("aten.histc", static=("min", "max"))
def histc(x: jax.Array, bins: int = 100, min: Any = 0, max: Any = 0) -> jax.Array:
    x = x.reshape(-1)
    low, high = _data_range(x, 1.0) if min == max else (cast(min, x.dtype), cast(max, x.dtype))
    position = jnp.floor((x - low) * np.asarray(bins, x.dtype) / (high - low))
    index = jnp.minimum(cast(position, jnp.int32), bins - 1)  # the last bin is closed on both sides
    index = jnp.where((x >= low) & (x <= high), index, bins)  # outside, or NaN: dropped below
    return jnp.zeros(bins, x.dtype).at[index].add(1, mode="drop")


def _data_range(x: jax.Array, margin: float) -> tuple[jax.Array, jax.Array]:
    """Least and greatest element, moved apart by `margin` each if they are equal; [0, 1] of nothing."""
    if x.size == 0:
        return jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    low, high = jnp.min(x), jnp.max(x)
    apart = jnp.where(low == high, np.asarray(margin, x.dtype), np.asarray(0, x.dtype))
    return low - apart, high + apart


def _edges(x: jax.Array, bins: Sequence[int], limits: Sequence[float] | None) -> list[jax.Array]:
    """Evenly spaced edges of each column of `x`; `limits` holds two numbers a column."""
    edges = []
    for column, number in enumerate(bins):
        # A range that is given counts as data that spans it.
        span = x[:, column] if limits is None else jnp.asarray(limits[2 * column : 2 * column + 2], x.dtype)
        low, high = _data_range(span, 0.5)
        edges.append(jnp.linspace(low, high, number + 1, dtype=x.dtype))
    return edges


def _count(x: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool) -> jax.Array:
    """The histogram of the rows of `x`, one axis a column."""
    inside, index = jnp.ones(x.shape[0], bool), []
    for column, edge in zip(x.T, edges):
        inside = inside & (column >= edge[0]) & (column <= edge[-1])
        index.append(jnp.clip(jnp.searchsorted(edge, column, side="right") - 1, 0, edge.size - 2))
    amounts = jnp.ones(x.shape[0], x.dtype) if weight is None else cast(weight.reshape(-1), x.dtype)
    shape = [edge.size - 1 for edge in edges]
    counts = jnp.zeros(shape, x.dtype).at[tuple(index)].add(jnp.where(inside, amounts, jnp.zeros((), x.dtype)))
    return _density(counts, edges) if density else counts


def _density(counts: jax.Array, edges: Sequence[jax.Array]) -> jax.Array:
    counts = counts / jnp.sum(counts)
    for axis, edge in enumerate(edges):
        widths = jnp.diff(edge)
        counts = counts / widths.reshape([-1 if a == axis else 1 for a in range(counts.ndim)])
    return counts


@lowers("aten.histogram.bin_ct")
def histogram(
    x: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    edges = _edges(x.reshape(-1, 1), [bins], range)
    return _count(x.reshape(-1, 1), edges, weight, density), edges[0]


@lowers("aten.histogram.bins_tensor")
def histogram_bins_tensor(
    x: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _count(x.reshape(-1, 1), [bins], weight, density), bins


@lowers("aten._histogramdd_bin_edges")
def _histogramdd_bin_edges(
    x: jax.Array, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: Any
) -> list[jax.Array]:
    return _edges(x.reshape(-1, x.shape[-1]), bins, range)


@lowers("aten._histogramdd_from_bin_cts")
def _histogramdd_from_bin_cts(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    x = x.reshape(-1, x.shape[-1])
    return _count(x, _edges(x, bins, range), weight, density)


@lowers("aten._histogramdd_from_bin_tensors")
def _histogramdd_from_bin_tensors(
    x: jax.Array, bins: Sequence[jax.Array], *, weight: jax.Array | None = None, density: bool = False
) -> jax.Array:
    return _count(x.reshape(-1, x.shape[-1]), bins, weight, density)
