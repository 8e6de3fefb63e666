"""Ops of no larger family: grouped (mixture of experts) and scaled (8-bit float) matrix products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.registry import OutSpec, lowers


@lowers("aten._masked_scale")
def _masked_scale(x: jax.Array, mask: jax.Array, scale: Any) -> jax.Array:
    return cast(x, opmath(x.dtype)) * mask * scale


@lowers("aten._grouped_mm", specs=True)
def _grouped_mm(
    spec: OutSpec,
    x: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: Any = None,
) -> jax.Array:
    """Products of groups of rows, columns or terms; `offs` holds where each group ends."""
    wide = opmath(spec.dtype)
    if offs is None:
        return jnp.matmul(x, mat2, preferred_element_type=wide)
    sizes = jnp.diff(offs, prepend=jnp.zeros(1, offs.dtype))
    if x.ndim == 2 and mat2.ndim == 3:  # groups of rows
        return lax.ragged_dot(x, mat2, sizes, preferred_element_type=wide)
    if x.ndim == 3:  # groups of columns: the transposed product
        return lax.ragged_dot(mat2.T, jnp.swapaxes(x, 1, 2), sizes, preferred_element_type=wide).T
    terms = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    return lax.ragged_dot_general(x, mat2, sizes, terms, preferred_element_type=wide)


@lowers("aten._scaled_mm")
def _scaled_mm(
    x: jax.Array,
    mat2: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    bias: jax.Array | None = None,
    scale_result: jax.Array | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    """Scales are one number, one a row ([M, 1]) of `x`, or one a column ([1, N]) of `mat2`."""
    product = jnp.matmul(x, mat2, preferred_element_type=jnp.float32) * scale_a * scale_b
    product = product if bias is None else product + cast(bias, jnp.float32)
    return product if scale_result is None else product * scale_result
