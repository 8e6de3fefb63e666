"""Reductions: sums, products, extrema and their indices, any/all, variance, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.dtypes import cast, constant, opmath
from torch_xla._src.ops.exact import quotient
from torch_xla._src.ops.registry import OutSpec, lowers

Dims = int | Sequence[int] | None


def axes_of(x: jax.Array, dim: Dims) -> tuple[int, ...]:
    """The non-negative axes that `dim` names; None and [] name all of them. A 0-d tensor accepts dim 0 and -1."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    if x.ndim == 0:
        return ()
    return tuple(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim))


def computing(x: jax.Array, dtype: Any) -> jax.Array:
    """`x` in the dtype that a reduction with a result of `dtype` accumulates in."""
    return cast(cast(x, dtype), opmath(dtype))


def _size(x: jax.Array, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


# ---- sums and products


@lowers("aten.sum", specs=True)
def sum_(spec: OutSpec, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    if x.dtype == np.bool_ and spec.dtype == np.int64:
        return count_nonzero(x, dim, keepdim)
    x = computing(x, spec.dtype)
    return jnp.sum(x, axes_of(x, dim), keepdims=keepdim, dtype=x.dtype)


@lowers("aten.nansum", specs=True)
def nansum(spec: OutSpec, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    x = computing(x, spec.dtype)
    x = x if dtypes.is_integral(x) else jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x)
    return jnp.sum(x, axes_of(x, dim), keepdims=keepdim, dtype=x.dtype)


@lowers("aten.mean", specs=True)
def mean(spec: OutSpec, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    x = computing(x, spec.dtype)
    axes = axes_of(x, dim)
    return quotient(jnp.sum(x, axes, keepdims=keepdim), _size(x, axes))


@lowers("aten.prod", specs=True)
def prod(spec: OutSpec, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    x = computing(x, spec.dtype)
    return jnp.prod(x, axes_of(x, dim), keepdims=keepdim, dtype=x.dtype)


@lowers("aten.count_nonzero")
def count_nonzero(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    dtype = np.int32 if x.size < 2**31 else np.int64  # half the bytes, twice the speed on CPU
    return jnp.sum(x != 0, axes_of(x, dim), dtype=dtype, keepdims=keepdim).astype(np.int64)


# ---- truth


def _truth(reduction: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lowering(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        # An explicit empty list of dims reduces nothing here, unlike for sums.
        axes = () if isinstance(dim, (list, tuple)) and not dim else axes_of(x, dim)
        return reduction(x != 0, axes, keepdims=keepdim)

    return lowering


for _name, _reduction in {"any": jnp.any, "all": jnp.all}.items():
    lowers(f"aten.{_name}")(_truth(_reduction))


@lowers("aten._is_all_true")
def _is_all_true(x: jax.Array) -> jax.Array:
    return jnp.all(x)


@lowers("aten._is_any_true")
def _is_any_true(x: jax.Array) -> jax.Array:
    return jnp.any(x)


# ---- extrema. NaN is larger than everything for max and smaller than everything for min.


@lowers("aten.amax")
def amax(x: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
    return jnp.max(x, axes_of(x, dim), keepdims=keepdim)


@lowers("aten.amin")
def amin(x: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
    return jnp.min(x, axes_of(x, dim), keepdims=keepdim)


@lowers("aten.aminmax")
def aminmax(x: jax.Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


lowers("aten.max.default")(amax)
lowers("aten.min.default")(amin)


@lowers("aten.max.other")
def max_other(x: jax.Array, other: jax.Array) -> jax.Array:
    dtype = dtypes.promote(x, other)
    return jnp.maximum(cast(x, dtype), cast(other, dtype))


@lowers("aten.min.other")
def min_other(x: jax.Array, other: jax.Array) -> jax.Array:
    dtype = dtypes.promote(x, other)
    return jnp.minimum(cast(x, dtype), cast(other, dtype))


def extremum(x: jax.Array, axis: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    """The extreme value along `axis` and the first index that holds it.

    Two plain reductions: XLA vectorizes them on CPU, where one reduction of (value, index) pairs takes many times as
    long, and the first index wins in whatever order elements are combined, which no pairwise comparison need ensure.
    """
    value = (jnp.max if largest else jnp.min)(x, axis, keepdims=True)
    held = x == value
    held = held | (x != x) if jnp.issubdtype(x.dtype, jnp.floating) else held  # if there is a NaN, `value` is NaN
    size = x.shape[axis]
    index_dtype = np.dtype("int32" if size < 2**31 else "int64")
    index = lax.broadcasted_iota(index_dtype, x.shape, axis)
    return jnp.squeeze(value, axis), jnp.min(jnp.where(held, index, np.asarray(size, index_dtype)), axis)


def _extremum_dim(x: jax.Array, dim: int, keepdim: bool, largest: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    axis = dim % x.ndim
    values, indices = extremum(x, axis, largest)
    return (jnp.expand_dims(values, axis), jnp.expand_dims(indices, axis)) if keepdim else (values, indices)


@lowers("aten.max.dim")
def max_dim(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return _extremum_dim(x, dim, keepdim, largest=True)


@lowers("aten.min.dim")
def min_dim(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return _extremum_dim(x, dim, keepdim, largest=False)


def _index_of_extremum(largest: bool) -> Callable[..., jax.Array]:
    def lowering(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        if dim is not None:
            return _extremum_dim(x, dim, keepdim, largest)[1]
        index = _extremum_dim(x.reshape(-1), 0, False, largest)[1]
        return index.reshape((1,) * x.ndim) if keepdim else index

    return lowering


lowers("aten.argmax")(_index_of_extremum(largest=True))
lowers("aten.argmin")(_index_of_extremum(largest=False))


# ---- variance


def _var_mean(x: jax.Array, dim: Dims, correction: Any, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    x = cast(x, opmath(x.dtype))
    axes = axes_of(x, dim)
    size = _size(x, axes)
    center = quotient(jnp.sum(x, axes, keepdims=True), size)
    deviation = x - center
    square = deviation * deviation
    if dtypes.is_complex(x):
        square = jnp.real(deviation) ** 2 + jnp.imag(deviation) ** 2
    # No degrees of freedom left: 0/0 or x/0, as PyTorch.
    correction = 1 if correction is None else correction
    known = constant(correction) is not None
    freedom = max(size - correction, 0) if known else cast(jnp.maximum(size - correction, 0), square.dtype)
    variance = quotient(jnp.sum(square, axes, keepdims=keepdim), freedom)
    return variance, center if keepdim else jnp.squeeze(center, axes)


@lowers("aten.var.correction")
def var(x: jax.Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> jax.Array:
    return _var_mean(x, dim, correction, keepdim)[0]


@lowers("aten.std.correction")
def std(x: jax.Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> jax.Array:
    return jnp.sqrt(var(x, dim, correction=correction, keepdim=keepdim))


@lowers("aten.var_mean.correction")
def var_mean(x: jax.Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _var_mean(x, dim, correction, keepdim)


@lowers("aten.std_mean.correction")
def std_mean(x: jax.Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, center = _var_mean(x, dim, correction, keepdim)
    return jnp.sqrt(variance), center


# ---- norms


def vector_norm(x: jax.Array, p: float, axes: tuple[int, ...], keepdim: bool) -> jax.Array:
    """The p-norm of `x` (floating or complex, in its computing dtype) over `axes`; p is a Python number."""
    if p == 2 and dtypes.is_complex(x):
        return jnp.sqrt(jnp.sum(jnp.real(x) ** 2 + jnp.imag(x) ** 2, axes, keepdims=keepdim))
    if p == 2:
        return jnp.sqrt(jnp.sum(x * x, axes, keepdims=keepdim))
    magnitude = jnp.abs(x)
    if p == 0:
        return jnp.sum(magnitude != 0, axes, keepdims=keepdim, dtype=magnitude.dtype)
    if p == 1:
        return jnp.sum(magnitude, axes, keepdims=keepdim)
    if math.isinf(p):
        return (jnp.max if p > 0 else jnp.min)(magnitude, axes, keepdims=keepdim, initial=0.0 if p > 0 else jnp.inf)
    return jnp.sum(magnitude**p, axes, keepdims=keepdim) ** (1.0 / p)


def _norm(spec: OutSpec, x: jax.Array, p: Any, dim: Dims, keepdim: bool, dtype: Any) -> jax.Array:
    x = cast(x, x.dtype if dtype is None else dtypes.numpy_dtype(dtype))
    return vector_norm(cast(x, opmath(x.dtype)), 2 if p is None else p, axes_of(x, dim), keepdim)


@lowers("aten.norm.Scalar", "aten.norm.ScalarOpt_dtype", specs=True, static=("p",))
def norm(spec: OutSpec, x: jax.Array, p: Any = 2, *, dtype: Any = None) -> jax.Array:
    return _norm(spec, x, p, None, False, dtype)


@lowers("aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dim_dtype", specs=True, static=("p",))
def norm_dim(spec: OutSpec, x: jax.Array, p: Any, dim: Dims, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    return _norm(spec, x, p, dim, keepdim, dtype)


@lowers("aten.logsumexp", specs=True)
def logsumexp(spec: OutSpec, x: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    x = cast(x, opmath(spec.dtype))
    axes = axes_of(x, dim)
    largest = jnp.max(jnp.real(x), axes, keepdims=True, initial=-jnp.inf)
    largest = jnp.where(jnp.isinf(largest), jnp.zeros((), largest.dtype), largest)  # inf - inf would be NaN
    total = jnp.log(jnp.sum(jnp.exp(x - largest), axes, keepdims=True)) + largest
    return total if keepdim else jnp.squeeze(total, axes)


@lowers("aten.hash_tensor")
def hash_tensor(x: jax.Array, dim: Dims = (), *, keepdim: bool = False, mode: int = 0) -> jax.Array:
    """XOR of the 64-bit patterns of the elements, floats widened to float64 and integers to 64 bits."""
    wide = cast(x, jnp.float64) if dtypes.is_floating(x) else x if x.dtype == np.dtype("uint64") else cast(x, jnp.int64)
    bits = lax.bitcast_convert_type(wide, jnp.uint64)
    axes = axes_of(x, dim)
    hashed = lax.reduce(bits, np.zeros((), np.uint64), lax.bitwise_xor, axes)
    return jnp.expand_dims(hashed, axes) if keepdim else hashed
