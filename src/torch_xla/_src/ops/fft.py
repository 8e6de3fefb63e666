"""Discrete Fourier transforms over any number of dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xla._src.ops.registry import lowers

# PyTorch's `fft_norm_mode`: factor by which a transform over n elements is multiplied, whatever its direction.
_FACTORS = {0: lambda n: 1.0, 1: lambda n: 1 / math.sqrt(n), 2: lambda n: 1 / n}


def _scaled(x: jax.Array, mode: int, count: int) -> jax.Array:
    factor = _FACTORS[mode](count) if count else 1.0
    return x if factor == 1.0 else x * jnp.asarray(factor, x.real.dtype)


def _count(x: jax.Array, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _transform(x: jax.Array, dims: Sequence[int], forward: bool) -> jax.Array:
    """Unscaled transform of complex `x`, three dims at a time, which is as many as XLA's FFT takes."""
    for start in range(0, len(dims), 3):
        chunk = dims[start : start + 3]
        # norm names the direction that carries the factor: the one we do not take.
        x = jnp.fft.fftn(x, axes=chunk) if forward else jnp.fft.ifftn(x, axes=chunk, norm="forward")
    return x


@lowers("aten._fft_c2c")
def fft_c2c(self: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    dims = [d % self.ndim for d in dim]
    if self.size == 0:
        return self
    return _scaled(_transform(self, dims, forward), normalization, _count(self, dims))


@lowers("aten._fft_r2c", specs=True)
def fft_r2c(spec: Any, self: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    dims = [d % self.ndim for d in dim]
    if self.size == 0:
        return jnp.zeros(spec.shape, spec.dtype)
    if onesided:
        half = jnp.fft.rfft(self, axis=dims[-1])
        return _scaled(_transform(half, dims[:-1], True), normalization, _count(self, dims))
    return _scaled(_transform(self.astype(spec.dtype), dims, True), normalization, _count(self, dims))


@lowers("aten._fft_c2r", specs=True)
def fft_c2r(spec: Any, self: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    dims = [d % self.ndim for d in dim]
    if 0 in spec.shape or self.size == 0:
        return jnp.zeros(spec.shape, spec.dtype)
    half = _transform(self, dims[:-1], False)
    full = jnp.fft.irfft(half, n=last_dim_size, axis=dims[-1], norm="forward")
    return _scaled(full, normalization, _count(full, dims))
