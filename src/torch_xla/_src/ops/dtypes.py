"""torch dtypes and their JAX counterparts, and PyTorch's type promotion expressed over JAX arrays."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

_NAMES: tuple[str, ...] = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
_NAMES += ("uint16", "uint32", "uint64")
_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")

TO_NUMPY: dict[torch.dtype, np.dtype] = {getattr(torch, name): np.dtype(name) for name in _NAMES}
TO_NUMPY |= {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name))
    for name in _EXTENDED
    if hasattr(torch, name) and hasattr(ml_dtypes, name)
}
TO_TORCH: dict[np.dtype, torch.dtype] = {numpy_dtype: torch_dtype for torch_dtype, numpy_dtype in TO_NUMPY.items()}

# Note [Narrowed dtypes]
# 64 bits are kept, as the dtype says, unless the environment asks for less: with XLA_USE_32BIT_LONG=1 the device holds
# int64 tensors as int32 (uint64 as uint32), with XLA_DOWNCAST_BF16=1 float64 as float32 and float32 as bfloat16, with
# XLA_USE_BF16=1 both as bfloat16. The user's tensors keep their dtype, and a host copy has it; programs compute in what
# the device holds. Decided when the first xla tensor is made, which imports this module.


def _narrowed() -> dict[torch.dtype, torch.dtype]:
    """What the device holds, for each dtype that it does not hold as it is."""

    def asked(name: str) -> bool:
        return os.environ.get(name, "").lower() not in ("", "0", "false")

    narrowed: dict[torch.dtype, torch.dtype] = {}
    if asked("XLA_USE_32BIT_LONG"):
        narrowed |= {torch.int64: torch.int32, torch.uint64: torch.uint32}
    if asked("XLA_USE_BF16"):
        narrowed |= {torch.float32: torch.bfloat16, torch.float64: torch.bfloat16}
    elif asked("XLA_DOWNCAST_BF16"):
        narrowed |= {torch.float32: torch.bfloat16, torch.float64: torch.float32}
    return narrowed


NARROWED = _narrowed()
TO_NUMPY |= {wide: TO_NUMPY[narrow] for wide, narrow in NARROWED.items()}  # all are read before one is set

_LOW_PRECISION = {np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)}


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy (and so JAX) dtype for a torch dtype; TypeError where XLA has none."""
    try:
        return TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"device xla has no counterpart of dtype {dtype}") from None


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype for a numpy or JAX dtype."""
    return TO_TORCH[np.dtype(dtype)]


# Note [Scalars in lowerings]
# A `Scalar` or `float` argument of an aten schema reaches a lowering as a Python number while it is a constant, and as
# a 0-d *weakly typed* JAX array once it has become an input slot of the program. Arrays that stand for tensors are
# never weakly typed. A lowering that must branch on the number asks `constant(x)` or declares the argument `static`.


def is_scalar(x: Any) -> bool:
    """Whether `x` is a PyTorch "wrapped number": a Python number or a scalar slot. See Note [Scalars in lowerings]."""
    return isinstance(x, (bool, int, float, complex)) or (isinstance(x, jax.Array) and x.ndim == 0 and x.weak_type)


def constant(x: Any) -> Any:
    """The Python number that `x` is known to be when the program is built, or None."""
    return x if isinstance(x, (bool, int, float, complex)) else None


def is_floating(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def is_complex(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.complexfloating))


def is_integral(x: Any) -> bool:
    """Integers and booleans, as PyTorch's isIntegralType(includeBool=true)."""
    dtype = jnp.result_type(x)
    return bool(jnp.issubdtype(dtype, jnp.integer) or dtype == np.dtype(bool))


def _stand_in(x: Any) -> Any:
    """Something with the dtype and promotion category of `x` that torch.result_type understands."""
    if is_scalar(x):
        kind = np.dtype(type(x)).kind if not isinstance(x, jax.Array) else x.dtype.kind
        return {"b": True, "i": 1, "u": 1, "f": 1.0, "c": 1j}[kind]
    return torch.empty((1,) * x.ndim, dtype=torch_dtype(x.dtype), device="meta")


def promote(*operands: Any) -> np.dtype:
    """The dtype PyTorch computes in for these operands (dimensioned tensors, then 0-d tensors, then numbers)."""
    stand_ins = [_stand_in(x) for x in operands if x is not None]
    result = stand_ins[0]
    if len(stand_ins) == 1:
        return numpy_dtype(result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result))
    # result_type takes two operands: fold within each category, then across, as TensorIterator does.
    tensors = [s for s in stand_ins if isinstance(s, torch.Tensor)]
    numbers = [s for s in stand_ins if not isinstance(s, torch.Tensor)]
    ordered = [s for s in tensors if s.ndim] + [s for s in tensors if not s.ndim] + numbers
    result = ordered[0]
    for other in ordered[1:]:
        ndim = max(getattr(result, "ndim", 0), getattr(other, "ndim", 0))
        result = torch.empty((1,) * ndim, dtype=torch.result_type(result, other), device="meta")
    return numpy_dtype(result.dtype)


def opmath(dtype: Any) -> np.dtype:
    """The dtype PyTorch's CPU kernels compute in: float32 for the 16-bit floats, else the dtype itself."""
    dtype = np.dtype(dtype)
    return np.dtype("float32") if dtype in _LOW_PRECISION else dtype


def cast(x: Any, dtype: Any) -> Any:
    """`x` (array, number or slot) as a strongly typed array of `dtype`; complex to real drops the imaginary part.

    Float to integer follows C on out-of-range values only where XLA does.
    """
    if isinstance(x, jax.Array):
        if x.dtype == np.dtype(dtype) and not x.weak_type:
            return x
        if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
            x = x != 0 if np.dtype(dtype) == np.dtype(bool) else jnp.real(x)
        elif np.dtype(dtype) == np.dtype(bool):
            return x != 0
        return jax.lax.convert_element_type(x, dtype)
    if np.dtype(dtype).kind in "iu" and isinstance(x, int):
        return jnp.asarray(np.asarray(x & ((1 << 64) - 1), np.uint64).astype(np.dtype(dtype)))  # wrap as C does
    return jnp.asarray(x, dtype)
