"""Lowerings of ops that make tensors from numbers: constants, ranges, identity matrices, window functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import i0

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import OutSpec, lowers

# ---- one value everywhere
# "Empty" tensors are zeros: XLA has no unwritten memory, and zeros cost no more than a fill that fuses away.


def _register_constant(value: int, names: Sequence[str]) -> None:
    @lowers(*(f"aten.{name}" for name in names), specs=True)
    def constant(spec: OutSpec, *_: Any, **__: Any) -> jax.Array:
        return jnp.full(spec.shape, value, spec.dtype)


_ZEROS = ("zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor", "_new_zeros_with_same_feature_meta")
_register_constant(0, _ZEROS)
_register_constant(1, ("ones", "ones_like", "new_ones"))
_register_constant(0, ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))


@lowers("aten.full", "aten.full_like", "aten.fill", specs=True)
def full(spec: OutSpec, _: Any, fill_value: Any, **__: Any) -> jax.Array:
    return jnp.broadcast_to(dtypes.cast(fill_value, spec.dtype), spec.shape)


@lowers("aten.new_full", specs=True)
def new_full(spec: OutSpec, _: Any, size: Sequence[int], fill_value: Any, **__: Any) -> jax.Array:
    return jnp.broadcast_to(dtypes.cast(fill_value, spec.dtype), spec.shape)


@lowers("aten.scalar_tensor", specs=True)
def scalar_tensor(spec: OutSpec, s: Any, **_: Any) -> jax.Array:
    return dtypes.cast(s, spec.dtype)


# ---- ranges


def _count_from(spec: OutSpec, start: Any, step: Any) -> jax.Array:
    """start + i * step for each element of a 1-d `spec`, exact for integers, else in float64 as the CPU does."""
    size, dtype = spec.shape[0], np.dtype(spec.dtype)
    ends = [dtypes.constant(start), dtypes.constant(step)]
    if all(isinstance(x, int) for x in ends) and max(abs(ends[0]), abs(ends[0] + size * ends[1])) < 2**31:
        exact = np.dtype(np.int32) if dtype.kind not in "iu" or dtype.itemsize < 8 else dtype
    elif dtypes.is_integral(start) and dtypes.is_integral(step) and dtype.kind in "iu":
        exact = np.dtype(np.int64)
    else:
        exact = np.dtype(np.float64)
    index = lax.iota(exact, size)
    if ends[1] != 1:
        index = index * dtypes.cast(step, exact)
    return index if ends[0] == 0 else index + dtypes.cast(start, exact)


# Bounds that determine a shape are constants: see Note [Scalar slots].
@lowers("aten.arange", specs=True, static=("end",))
def arange(spec: OutSpec, end: Any, **_: Any) -> jax.Array:
    return _count_from(spec, 0, 1)


@lowers(
    "aten.arange.start", "aten.arange.start_step", "aten.range", "aten.range.step", specs=True, static=("start", "end", "step")
)  # fmt: skip
def arange_start(spec: OutSpec, start: Any, end: Any, step: Any = 1, **_: Any) -> jax.Array:
    return _count_from(spec, start, step)


@lowers("aten.linspace", specs=True)
def linspace(spec: OutSpec, start: Any, end: Any, steps: int, **_: Any) -> jax.Array:
    """Counts up from `start` in the first half and down from `end` in the second, as PyTorch does: ends are exact."""
    kind = np.dtype(spec.dtype).kind
    dtype = np.dtype(np.float64) if kind in "iu" else dtypes.opmath(spec.dtype)
    start, end = (dtypes.cast(dtypes.cast(x, spec.dtype), dtype).reshape(()) for x in (start, end))
    if steps < 2:
        return jnp.broadcast_to(start, spec.shape)
    index = lax.iota(np.int32, steps)
    step = (end - start) / (steps - 1)
    return jnp.where(index < steps // 2, start + step * index, end - step * (steps - 1 - index)).astype(dtype)


@lowers("aten.logspace", specs=True)
def logspace(spec: OutSpec, start: Any, end: Any, steps: int, base: Any = 10.0, **_: Any) -> jax.Array:
    exponent = linspace(spec, start, end, steps)
    return jnp.power(dtypes.cast(base, exponent.dtype), exponent)


@lowers("aten.eye", specs=True)
def eye(spec: OutSpec, *_: Any, **__: Any) -> jax.Array:
    rows, cols = (lax.broadcasted_iota(np.int32, spec.shape, d) for d in (0, 1))
    return rows == cols


def _register_triangle(name: str, indices: Callable[..., Any]) -> None:
    @lowers(f"aten.{name}", specs=True)
    def triangle_indices(spec: OutSpec, row: int, col: int, offset: int = 0, **_: Any) -> jax.Array:
        return jnp.asarray(np.stack(indices(row, offset, col)).astype(spec.dtype))


_register_triangle("tril_indices", np.tril_indices)
_register_triangle("triu_indices", np.triu_indices)


# ---- window functions: f(position as a fraction of the window), computed in float32 at least


def _register_window(name: str, window: Callable[..., jax.Array]) -> None:
    @lowers(f"aten.{name}", specs=True)
    def lowering(spec: OutSpec, window_length: int, periodic: bool = True, *params: Any, **_: Any) -> jax.Array:
        dtype = dtypes.opmath(spec.dtype)
        if window_length < 2:
            return jnp.ones(spec.shape, dtype)
        last = window_length if periodic else window_length - 1
        return window(lax.iota(dtype, window_length) / last, *params).astype(dtype)


def _cosines(fraction: jax.Array, *weights: Any) -> jax.Array:
    total = jnp.zeros_like(fraction)
    for harmonic, weight in enumerate(weights):
        total = total + (-1) ** harmonic * weight * jnp.cos(2 * np.pi * harmonic * fraction)
    return total


def _hamming(fraction: jax.Array, alpha: Any = 0.54, beta: Any = 0.46) -> jax.Array:
    return _cosines(fraction, alpha, beta)


def _kaiser(fraction: jax.Array, beta: Any = 12.0) -> jax.Array:
    beta = dtypes.cast(beta, fraction.dtype)
    return i0(beta * jnp.sqrt(jnp.maximum(0, 1 - (2 * fraction - 1) ** 2))) / i0(beta)


_register_window("hann_window", lambda fraction: _cosines(fraction, 0.5, 0.5))
_register_window("hamming_window", _hamming)
_register_window("blackman_window", lambda fraction: _cosines(fraction, 0.42, 0.5, 0.08))
_register_window("bartlett_window", lambda fraction: 1 - jnp.abs(2 * fraction - 1))
_register_window("kaiser_window", _kaiser)
