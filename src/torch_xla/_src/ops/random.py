"""Ops that draw random numbers. Each takes a JAX key first; equal keys give equal numbers.

Note [Random bits]
Keys are threefry keys: the numbers depend on key and shape alone, not on the backend or on how a tensor is sharded
(`jax_threefry_partitionable`), and the generator fuses with what consumes it. Nobody else in the project names one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.reduce import extremum
from torch_xla._src.ops.registry import OutSpec, lowers

PRNG_IMPLEMENTATION = "threefry2x32"

# ---- draws that the ops below share


def _unit(key: Any, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Uniform on [0, 1): multiples of a power of two, so never rounded up to 1."""
    return jax.random.uniform(key, tuple(shape), dtype)


def _open_unit(key: Any, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Uniform on the open interval (0, 1), float32 or float64: the midpoints of the steps of `_unit`."""
    return _unit(key, shape, dtype) + np.asarray(np.finfo(dtype).epsneg, dtype)


def _computing(dtype: np.dtype) -> np.dtype:
    """The floating dtype to draw in for a result of `dtype`: integer results need float64."""
    return opmath(dtype) if jnp.issubdtype(dtype, jnp.inexact) else np.dtype("float64")


def _real(dtype: np.dtype) -> np.dtype:
    return np.finfo(dtype).dtype if dtype.kind == "c" else dtype


def _exponential(key: Any, shape: Sequence[int], dtype: Any) -> jax.Array:
    return -jnp.log(_open_unit(key, shape, dtype))


def _integers(key: Any, shape: Sequence[int], low: Any, span: Any, dtype: np.dtype) -> jax.Array:
    """low + (random bits mod span), modulo 2**64, as `dtype`; a Python int span above 2**64 - 1 means all values."""
    small = isinstance(span, int) and span <= 2**16  # 32 bits leave a bias below 2**-16
    bits = jax.random.bits(key, tuple(shape), jnp.uint32 if small else jnp.uint64)
    if not isinstance(span, int):
        bits = bits % cast(span, jnp.uint64)
    elif span < 2**64:
        bits = bits & bits.dtype.type(span - 1) if span & (span - 1) == 0 else bits % bits.dtype.type(span)
    drawn = cast(bits, jnp.uint64) + cast(low, jnp.uint64)
    return drawn if dtype.kind == "u" else lax.bitcast_convert_type(drawn, jnp.int64)


# ---- uniform, normal and what follows from them. `self` gives shape and dtype only.


def _uniform(key: Any, shape: Sequence[int], dtype: np.dtype, low: Any = 0.0, high: Any = 1.0) -> jax.Array:
    if dtype.kind == "c":
        real, imaginary = (_uniform(k, shape, _real(dtype), low, high) for k in jax.random.split(key))
        return lax.complex(real, imaginary)
    unit = _unit(key, shape, dtype)
    if dtypes.constant(low) == 0 and dtypes.constant(high) == 1:
        return unit
    low, high = (cast(bound, opmath(dtype)) for bound in (low, high))
    drawn = cast(cast(unit, low.dtype) * (high - low) + low, dtype)
    return jnp.where(drawn < cast(high, dtype), drawn, cast(low, dtype))  # rounding can reach the open end


def _normal(key: Any, shape: Sequence[int], dtype: np.dtype, mean: Any = 0.0, std: Any = 1.0) -> jax.Array:
    """Complex normals have variance std**2 in all, half of it in each part."""
    drawn = jax.random.normal(key, tuple(shape), _computing(dtype))
    drawn = drawn if dtypes.constant(std) == 1 else drawn * std
    return drawn if dtypes.constant(mean) == 0 else drawn + mean


@lowers("aten.uniform", random=True)
def uniform(key: Any, x: jax.Array, from_: Any = 0.0, to: Any = 1.0, *, generator: Any = None, **named: Any) -> Any:
    return _uniform(key, x.shape, x.dtype, named.get("from", from_), to)  # `from` is no Python identifier


@lowers("aten.rand", random=True, specs=True)
def rand(key: Any, spec: OutSpec, size: Any, **_: Any) -> jax.Array:
    return _uniform(key, spec.shape, spec.dtype)


lowers("aten.rand_like", random=True, specs=True)(rand)


@lowers("aten.randn", random=True, specs=True)
def randn(key: Any, spec: OutSpec, size: Any, **_: Any) -> jax.Array:
    return _normal(key, spec.shape, spec.dtype)


lowers("aten.randn_like", random=True, specs=True)(randn)


@lowers("aten.normal_functional", random=True)
def normal_functional(key: Any, x: jax.Array, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> jax.Array:
    return _normal(key, x.shape, x.dtype, mean, std)


@lowers("aten.normal", random=True, specs=True)
def normal(key: Any, spec: OutSpec, mean: Any, std: Any = 1.0, size: Any = None, **_: Any) -> jax.Array:
    """Every overload of `normal`: mean and std are tensors, numbers or one of each."""
    wide = lambda a: cast(a, _computing(spec.dtype)) if isinstance(a, jax.Array) and a.ndim else a
    return _normal(key, spec.shape, spec.dtype, wide(mean), wide(std))


@lowers("aten.log_normal", random=True)
def log_normal(key: Any, x: jax.Array, mean: Any = 1.0, std: Any = 2.0, *, generator: Any = None) -> jax.Array:
    return jnp.exp(_normal(key, x.shape, x.dtype, mean, std))


@lowers("aten.exponential", random=True)
def exponential(key: Any, x: jax.Array, lambd: Any = 1.0, *, generator: Any = None) -> jax.Array:
    drawn = _exponential(key, x.shape, _computing(x.dtype)) / lambd
    # Never 0, not even after rounding to a 16-bit dtype.
    return jnp.maximum(drawn, cast(float(jnp.finfo(x.dtype).tiny), drawn.dtype))


@lowers("aten.cauchy", random=True)
def cauchy(key: Any, x: jax.Array, median: Any = 0.0, sigma: Any = 1.0, *, generator: Any = None) -> jax.Array:
    return median + sigma * jnp.tan(np.pi * (_open_unit(key, x.shape, _computing(x.dtype)) - 0.5))


@lowers("aten.geometric", random=True)
def geometric(key: Any, x: jax.Array, p: Any, *, generator: Any = None) -> jax.Array:
    """Number of trials up to the first success: 1, 2, ..."""
    dtype = _computing(x.dtype)
    failure = jnp.log1p(-cast(p, dtype))
    return jnp.maximum(jnp.ceil(jnp.log(_open_unit(key, x.shape, dtype)) / failure), 1)


# ---- integers


def _random_limit(dtype: np.dtype) -> int:
    """The largest number that `random_()` gives a tensor of `dtype`."""
    if dtype == np.dtype(bool):
        return 1
    return int(jnp.iinfo(dtype).max) if dtype.kind in "iu" else 2 ** (jnp.finfo(dtype).nmant + 1)


@lowers("aten.random.default", random=True)
def random(key: Any, x: jax.Array, *, generator: Any = None) -> jax.Array:
    return _integers(key, x.shape, 0, _random_limit(x.dtype) + 1, x.dtype)


@lowers("aten.random.to", random=True)
def random_to(key: Any, x: jax.Array, to: int, *, generator: Any = None) -> jax.Array:
    return _integers(key, x.shape, 0, to, x.dtype)


@lowers("aten.random.from", random=True)
def random_from(key: Any, x: jax.Array, low: int, to: int | None, *, generator: Any = None) -> jax.Array:
    end = _random_limit(x.dtype) + 1 if to is None else to
    return _integers(key, x.shape, low, end - low, x.dtype)


@lowers("aten.randint.default", "aten.randint.generator", random=True, specs=True)
def randint(key: Any, spec: OutSpec, high: int, size: Any, **_: Any) -> jax.Array:
    return _integers(key, spec.shape, 0, high, spec.dtype)


@lowers("aten.randint.low", "aten.randint.low_generator", random=True, specs=True)
def randint_low(key: Any, spec: OutSpec, low: int, high: int, size: Any, **_: Any) -> jax.Array:
    return _integers(key, spec.shape, low, high - low, spec.dtype)


@lowers("aten.randint_like.low_dtype", "aten.randint_like.low_generator_dtype", random=True, specs=True)
def randint_like_low(key: Any, spec: OutSpec, x: jax.Array, low: int, high: int, **_: Any) -> jax.Array:
    return _integers(key, spec.shape, low, high - low, spec.dtype)


@lowers("aten.randint_like", random=True, specs=True)
def randint_like(key: Any, spec: OutSpec, x: jax.Array, high: Any, **_: Any) -> jax.Array:
    return _integers(key, spec.shape, 0, high, spec.dtype)


@lowers("aten.randperm", random=True)
def randperm(key: Any, n: int, **_: Any) -> jax.Array:
    return jax.random.permutation(key, n)


# ---- trials and dropout


@lowers("aten.bernoulli.default", random=True)
def bernoulli(key: Any, x: jax.Array, *, generator: Any = None) -> jax.Array:
    probability = cast(x, _computing(x.dtype))
    return _unit(key, x.shape, probability.dtype) < probability


@lowers("aten.bernoulli.p", random=True)
def bernoulli_p(key: Any, x: jax.Array, p: Any, *, generator: Any = None) -> jax.Array:
    return _unit(key, x.shape, jnp.float32) < cast(p, jnp.float32)


@lowers("aten.bernoulli.Tensor", random=True)
def bernoulli_tensor(key: Any, x: jax.Array, p: jax.Array, *, generator: Any = None) -> jax.Array:
    probability = cast(p, _computing(p.dtype))
    return _unit(key, x.shape, probability.dtype) < probability


@lowers("aten.native_dropout", random=True)
def native_dropout(key: Any, x: jax.Array, p: Any, train: bool | None) -> tuple[jax.Array, jax.Array]:
    if train is False:
        return x, jnp.ones(x.shape, bool)
    wide = cast(x, opmath(x.dtype))
    keep = cast(1.0 - p, _real(wide.dtype))
    mask = _unit(key, x.shape, jnp.float32) < cast(keep, jnp.float32)
    scale = jnp.where(keep == 0, keep, 1 / keep)  # p = 1 gives zeros, not NaN
    return wide * mask * scale, mask


@lowers("aten.native_dropout_backward")
def native_dropout_backward(grad_output: jax.Array, mask: jax.Array, scale: Any) -> jax.Array:
    return cast(grad_output, opmath(grad_output.dtype)) * mask * scale


@lowers("aten._fused_dropout", random=True)
def _fused_dropout(key: Any, x: jax.Array, p: Any, generator: Any = None) -> tuple[jax.Array, jax.Array]:
    """Here p is the probability to keep an element."""
    wide = cast(x, opmath(x.dtype))
    mask = _unit(key, x.shape, jnp.float32) < cast(p, jnp.float32)
    return wide * mask / p, mask


@lowers("aten.rrelu_with_noise_functional", random=True)
def rrelu_with_noise_functional(
    key: Any,
    x: jax.Array,
    noise: jax.Array,
    lower: Any = 0.125,
    upper: Any = 1.0 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[jax.Array, jax.Array]:
    wide = cast(x, opmath(x.dtype))
    if not training:
        return jnp.where(wide > 0, wide, wide * ((lower + upper) / 2)), noise
    slope = jnp.where(wide <= 0, _uniform(key, x.shape, wide.dtype, lower, upper), jnp.ones((), wide.dtype))
    return wide * slope, slope


# ---- distributions over categories and counts


@lowers("aten.multinomial", random=True)
def multinomial(
    key: Any, x: jax.Array, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> jax.Array:
    weights = cast(x, opmath(x.dtype))
    if replacement and num_samples > 1:
        return _draw_from_distribution(key, weights, num_samples)
    # A race of exponentials: the order of arrival is a draw without replacement; weight 0 never arrives first.
    arrival = jnp.log(weights) + jax.random.gumbel(key, weights.shape, weights.dtype, mode="high")
    if num_samples == 1:
        return extremum(arrival, arrival.ndim - 1, largest=True)[1][..., None]
    return lax.top_k(arrival, num_samples)[1]


def _draw_from_distribution(key: Any, weights: jax.Array, num_samples: int) -> jax.Array:
    """Inverts the distribution function; float64 so that a category of weight 0 keeps an empty interval."""
    sums = lax.cummax(jnp.cumsum(cast(weights, jnp.float64), -1), axis=weights.ndim - 1)
    draws = _unit(key, (*weights.shape[:-1], num_samples), jnp.float64)
    find = lambda row, draw: jnp.searchsorted(row / row[-1], draw, side="right")
    return find(sums, draws) if weights.ndim == 1 else jax.vmap(find)(sums, draws)


@lowers("aten.poisson", random=True)
def poisson(key: Any, x: jax.Array, generator: Any = None) -> jax.Array:
    return jax.random.poisson(key, cast(x, _computing(x.dtype)), dtype=jnp.int64)


@lowers("aten.binomial", random=True)
def binomial(key: Any, count: jax.Array, prob: jax.Array, generator: Any = None) -> jax.Array:
    dtype = _computing(dtypes.promote(count, prob))
    return jax.random.binomial(key, cast(count, dtype), cast(prob, dtype), dtype=dtype)


@lowers("aten._standard_gamma", random=True)
def _standard_gamma(key: Any, x: jax.Array, generator: Any = None) -> jax.Array:
    drawn = jax.random.gamma(key, cast(x, _computing(x.dtype)))
    return jnp.maximum(drawn, cast(float(jnp.finfo(x.dtype).tiny), drawn.dtype))


@lowers("aten._standard_gamma_grad")
def _standard_gamma_grad(x: jax.Array, output: jax.Array) -> jax.Array:
    wide = opmath(x.dtype)
    return lax.random_gamma_grad(cast(x, wide), cast(output, wide))


@lowers("aten._sample_dirichlet", random=True)
def _sample_dirichlet(key: Any, x: jax.Array, generator: Any = None) -> jax.Array:
    """Gammas, normalized; in logarithms, which keep small concentrations from underflowing to 0/0."""
    return jax.nn.softmax(jax.random.loggamma(key, cast(x, opmath(x.dtype))), axis=-1)
