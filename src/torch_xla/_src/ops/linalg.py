"""Matrix products: mm, bmm, addmm and their relatives. Factorizations are in linalg_decomp.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import lowers

# Note [Matrix products of 16-bit floats]
# The dot accumulates and returns float32, whatever follows (`beta * input`, an activation) is done in float32, and the
# result is rounded once, at the end. XLA folds the rounding into the dot, so this costs nothing on any device.


def dot(x: jax.Array, y: jax.Array, contract: tuple[Any, Any], batch: tuple[Any, Any] = ((), ())) -> jax.Array:
    """dot_general in the dtype the CPU kernels compute in. See Note [Matrix products of 16-bit floats]."""
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)
    return lax.dot_general(x, y, (contract, batch), preferred_element_type=dtypes.opmath(dtype))


def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """Product of matrices [..., M, K] and [..., K, N] with equal batch dims."""
    batch = tuple(range(x.ndim - 2))
    return dot(x, y, ((x.ndim - 1,), (y.ndim - 2,)), (batch, batch))


def times(x: jax.Array, factor: Any) -> jax.Array:
    """`factor * x` in the dtype of `x`; no multiplication where the factor is known to be one."""
    return x if dtypes.constant(factor) == 1 else x * dtypes.cast(factor, x.dtype)


def add_scaled(input: jax.Array, product: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """`beta * input + alpha * product`, where a beta of zero ignores NaN and infinity in `input`."""
    product = times(product, alpha)
    known = dtypes.constant(beta)
    if known == 0:
        return product
    scaled = times(input.astype(product.dtype), beta)
    if known is None:
        scaled = jnp.where(beta == 0, jnp.zeros_like(scaled), scaled)
    return scaled + product


def _out_dtype(x: jax.Array, y: jax.Array, out_dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Operands for the overloads that name a wider result dtype; 16-bit floats accumulate in float32 anyway."""
    if out_dtype is None or dtypes.is_floating(x):
        return x, y
    return x.astype(dtypes.numpy_dtype(out_dtype)), y.astype(dtypes.numpy_dtype(out_dtype))


@lowers("aten.mm", "aten.bmm")
def mm(self: jax.Array, mat2: jax.Array, out_dtype: Any = None) -> jax.Array:
    return matmul(*_out_dtype(self, mat2, out_dtype))


@lowers("aten.addmm", "aten.baddbmm")
def addmm(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, out_dtype: Any = None, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    return add_scaled(self, matmul(*_out_dtype(mat1, mat2, out_dtype)), beta, alpha)


@lowers("aten.addbmm")
def addbmm(self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return add_scaled(self, dot(batch1, batch2, ((0, 2), (0, 1))), beta, alpha)


@lowers("aten._addmm_activation")
def addmm_activation(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> jax.Array:
    result = addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    # NaN passes through maximum, as through PyTorch's relu.
    return jax.nn.gelu(result, approximate=False) if use_gelu else jnp.maximum(result, jnp.zeros((), result.dtype))


@lowers("aten._int_mm")
def int_mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


@lowers("aten.linear")
def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    product = dot(input, weight, ((input.ndim - 1,), (weight.ndim - 1,)))
    return product if bias is None else product + bias.astype(product.dtype)


@lowers("aten.linear_backward")
def linear_backward(
    self: jax.Array, grad_output: jax.Array, weight: jax.Array, output_mask: Sequence[bool]
) -> tuple[Any, Any, Any]:
    """Gradients of input [..., in], weight [out, in] and bias [out]; of what is not used XLA computes nothing."""
    leading = tuple(range(grad_output.ndim - 1))
    bias = jnp.sum(grad_output, leading, dtype=dtypes.opmath(grad_output.dtype))
    wanted = output_mask[1] or output_mask[2]
    return (
        dot(grad_output, weight, ((grad_output.ndim - 1,), (0,))) if output_mask[0] else None,
        dot(grad_output, self, (leading, leading)) if wanted else None,
        bias if wanted else None,
    )


@lowers("aten.mv")
def mv(self: jax.Array, vec: jax.Array) -> jax.Array:
    return dot(self, vec, ((1,), (0,)))


@lowers("aten.addmv")
def addmv(self: jax.Array, mat: jax.Array, vec: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return add_scaled(self, mv(mat, vec), beta, alpha)


@lowers("aten.dot")
def vector_dot(self: jax.Array, tensor: jax.Array) -> jax.Array:
    return dot(self, tensor, ((0,), (0,)))


@lowers("aten.vdot")
def vdot(self: jax.Array, other: jax.Array) -> jax.Array:
    return dot(self.conj(), other, ((0,), (0,)))


@lowers("aten.addr", specs=True)
def addr(spec: Any, self: jax.Array, vec1: jax.Array, vec2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    if spec.dtype == bool:
        return _addr_bool(self, vec1, vec2, beta, alpha)
    dtype = dtypes.opmath(spec.dtype)
    outer = vec1.astype(dtype)[:, None] * vec2.astype(dtype)[None, :]
    return add_scaled(self, outer, beta, alpha)


def _addr_bool(self: jax.Array, vec1: jax.Array, vec2: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    outer = vec1[:, None] & vec2[None, :] & dtypes.cast(alpha, bool)
    return outer | (self & dtypes.cast(beta, bool))


@lowers("aten._trilinear")
def trilinear(
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """Sum over `sumdim` of the product of the three, each broadcast along its `expand` dims: one einsum."""
    ndim = i1.ndim + len(expand1)
    operands: list[Any] = []
    for operand, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        operands += [operand.astype(dtypes.opmath(operand.dtype)), [d for d in range(ndim) if d not in expand]]
    return jnp.einsum(*operands, [d for d in range(ndim) if d not in sumdim])
