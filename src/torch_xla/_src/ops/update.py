"""Writes of a slice into an array.

Note [Writes to a view]
XLA on CPU (seen in jaxlib 0.10) computes the wrong thing for `y = dynamic_update_slice(reshape(x), reduce(x))`: it fuses
the two and works in the memory of x, so that later elements of the reduction see what has been written. Barriers do not
help, since they are gone before fusion. So the target of a write that shows another array in another way is not written
to in place: the new elements are placed among zeros and selected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_to_a_view = False  # recordings are lowered one at a time, under the recorder's lock


@contextlib.contextmanager
def to_a_view(is_view: bool) -> Iterator[None]:
    """Says whether the row that is being lowered writes to what a view shows. See Note [Writes to a view]."""
    global _to_a_view
    before, _to_a_view = _to_a_view, is_view
    try:
        yield
    finally:
        _to_a_view = before


def update_slice(x: jax.Array, src: jax.Array, start: Any, dim: int) -> jax.Array:
    """`x` with `src` at `start` along a dim; the other dims are those of `x`."""
    return place(x, src, start, dim) if _to_a_view else lax.dynamic_update_slice_in_dim(x, src, start, dim)


def place(x: jax.Array, src: jax.Array, start: Any, dim: int) -> jax.Array:
    """The same whatever `src` is computed from."""
    placed = lax.dynamic_update_slice_in_dim(jnp.zeros_like(x), src, start, dim)
    # Where the slice does not fit it is moved, as XLA does.
    first = jnp.clip(jnp.asarray(start, np.int32), 0, x.shape[dim] - src.shape[dim])
    position = lax.broadcasted_iota(np.int32, x.shape, dim) - first
    return jnp.where((position >= 0) & (position < src.shape[dim]), placed, x)
