"""Running sums, products, extrema and log-sum-exps along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.reduce import computing
from torch_xla._src.ops.registry import OutSpec, lowers


def _scan(primitive: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lowering(spec: OutSpec, x: jax.Array, dim: int, *, dtype: Any = None) -> jax.Array:
        x = computing(x, spec.dtype)
        return primitive(x, axis=dim % x.ndim) if x.ndim and x.size else x

    return lowering


for _name, _primitive in {"cumsum": lax.cumsum, "cumprod": lax.cumprod}.items():
    lowers(f"aten.{_name}", specs=True)(_scan(_primitive))


def _running_extremum(largest: bool) -> Callable[..., Any]:
    def later_wins(a: jax.Array, b: jax.Array) -> jax.Array:
        """Whether `b`, which stands later, replaces `a`: among equals the last index counts, as in the CPU kernel."""
        wins = (b >= a) if largest else (b <= a)
        return wins | (b != b) if jnp.issubdtype(b.dtype, jnp.floating) else wins

    def combine(a: Any, b: Any) -> Any:
        wins = later_wins(a[0], b[0])
        return jnp.where(wins, b[0], a[0]), jnp.where(wins, b[1], a[1])

    def lowering(x: jax.Array, dim: int) -> Any:
        if x.ndim == 0 or x.size == 0:
            return x, jnp.zeros(x.shape, jnp.int64)
        axis = dim % x.ndim
        index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        return lax.associative_scan(combine, (x, index), axis=axis)

    return lowering


lowers("aten.cummax")(_running_extremum(largest=True))
lowers("aten.cummin")(_running_extremum(largest=False))


def _add_exponents(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(exp(a) + exp(b)) for complex numbers."""
    larger = jnp.where(jnp.real(a) >= jnp.real(b), a, b)
    smaller = jnp.where(jnp.real(a) >= jnp.real(b), b, a)
    return jnp.where(jnp.isneginf(jnp.real(smaller)), larger, larger + jnp.log1p(jnp.exp(smaller - larger)))


@lowers("aten.logcumsumexp", "aten._logcumsumexp")
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    x = cast(x, opmath(x.dtype))
    if x.ndim == 0 or x.size == 0:
        return x
    if dtypes.is_complex(x):
        return lax.associative_scan(_add_exponents, x, axis=dim % x.ndim)
    return lax.cumlogsumexp(x, axis=dim % x.ndim)
