"""Reductions of consecutive segments of one axis, given by their lengths or by where they start and end."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import lowers

_NEUTRAL = {"max": -math.inf, "min": math.inf, "sum": 0.0, "mean": 0.0, "prod": 1.0}


def _bounds(lengths: Any, offsets: Any) -> jax.Array:
    """[..., segments + 1]: where each segment starts, and the end of the last."""
    if offsets is not None:
        return offsets
    ends = jnp.cumsum(lengths, axis=-1)
    return jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends], axis=-1)


def _segment_of(bounds: jax.Array, size: int) -> jax.Array:
    """[..., size]: the segment each position is in; the number of segments for a position in none."""
    position = jnp.arange(size)
    find = lambda row: jnp.searchsorted(row, position, side="right") - 1
    flat = jax.vmap(find)(bounds.reshape(-1, bounds.shape[-1]))
    return jnp.where(flat < 0, bounds.shape[-1] - 1, flat).reshape(*bounds.shape[:-1], size)


def _flat(x: jax.Array, axis: int) -> jax.Array:
    """[outer, axis, inner]."""
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


class _Segments:
    """Where the segments of `data` along `axis` lie. Lengths and offsets have the dims of `data` up to `axis`."""

    def __init__(self, data: jax.Array, lengths: Any, offsets: Any, axis: int) -> None:
        self.axis = axis % data.ndim
        bounds = _bounds(lengths, offsets)
        self.bounds = bounds.reshape(-1, bounds.shape[-1])
        self.count = bounds.shape[-1] - 1
        self.lengths = jnp.diff(self.bounds, axis=-1)[..., None]  # [outer, segments, 1]
        self.of = _segment_of(self.bounds, data.shape[self.axis])  # [outer, axis]
        self.outer = jnp.arange(self.bounds.shape[0])[:, None]

    def reduce(self, x: jax.Array, kind: str, start: Any) -> jax.Array:
        """[outer, axis, inner] -> [outer, segments, inner], beginning with `start`."""
        blank = jnp.full((x.shape[0], self.count, x.shape[2]), start, x.dtype)
        ref = blank.at[self.outer, self.of]
        reduced: jax.Array = getattr(ref, kind)(x, mode="drop")
        return reduced

    def spread(self, x: jax.Array) -> jax.Array:
        """[outer, segments, inner] -> [outer, axis, inner], zero outside of every segment."""
        return x.at[self.outer, self.of].get(mode="fill", fill_value=0)


_SCATTERS = {"max": "max", "min": "min", "sum": "add", "mean": "add", "prod": "multiply"}


@lowers("aten.segment_reduce", static=("initial",))
def segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> jax.Array:
    segments = _Segments(data, lengths, offsets, axis)
    x = _flat(data, segments.axis).astype(dtypes.opmath(data.dtype))
    out = segments.reduce(x, _SCATTERS[reduce], _NEUTRAL[reduce] if initial is None else initial)
    if reduce == "mean":
        empty = jnp.where(segments.lengths == 0, np.nan if initial is None else out, out)
        out = jnp.where(segments.lengths > 0, out / segments.lengths.astype(x.dtype), empty)
    shape = (*data.shape[: segments.axis], segments.count, *data.shape[segments.axis + 1 :])
    return out.reshape(shape).astype(data.dtype)


def _product_of_others(segments: _Segments, x: jax.Array, initial: Any) -> jax.Array:
    """For each element the product of the others of its segment."""
    zero, nan = x == 0, jnp.isnan(x)
    others = lambda mask: segments.spread(segments.reduce(mask.astype(np.int32), "add", 0)) - mask > 0
    plain = jnp.where(zero | nan, 1, x)
    product = segments.spread(segments.reduce(plain, "multiply", 1 if initial is None else initial)) / plain
    return jnp.where(others(nan), jnp.nan, jnp.where(others(zero), 0, product))


@lowers("aten._segment_reduce_backward", static=("initial",))
def segment_reduce_backward(
    grad: Any,
    output: Any,
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
) -> jax.Array:
    segments = _Segments(data, lengths, offsets, axis)
    wide = dtypes.opmath(data.dtype)
    g, y, x = (_flat(t, segments.axis).astype(wide) for t in (grad, output, data))
    spread = segments.spread(g)
    if reduce == "mean":
        spread = segments.spread(g / jnp.maximum(segments.lengths, 1).astype(wide))
    elif reduce in ("max", "min"):
        chosen = (x == segments.spread(y)) | jnp.isnan(x)
        ties = segments.reduce(chosen.astype(wide), "add", 0)
        share = jnp.where(g > 0, g / jnp.maximum(ties, 1), g)  # the CPU kernel shares positive gradients only
        spread = jnp.where(chosen, segments.spread(share), 0)
    elif reduce == "prod":
        others = segments.spread(y) / jnp.where(x == 0, 1, x)
        plain = (x != 0) & ~jnp.isnan(x)
        spread = spread * jnp.where(plain, others, _product_of_others(segments, x, initial))
    return spread.reshape(data.shape).astype(data.dtype)
