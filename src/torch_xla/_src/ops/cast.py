"""Copies and dtype conversions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops.dtypes import cast, is_complex, is_floating
from torch_xla._src.ops.registry import OutSpec, lowers


def convert(x: Any, dtype: Any) -> Any:
    """`x.to(dtype)` as PyTorch does it: floats reach narrow and unsigned integers by way of int64, so they wrap.

    XLA's own conversion saturates. Beyond int64 (undefined in C), and for int32 and int64 themselves, it still does.
    """
    dtype = np.dtype(dtype)
    if is_complex(x) and dtype.kind in "iu":
        x = jnp.real(x)
    if is_floating(x) and (dtype.kind == "u" or (dtype.kind == "i" and dtype.itemsize < 4)):
        x = lax.convert_element_type(x, np.dtype("int64"))
    return cast(x, dtype)


@lowers("aten._to_copy", specs=True)
def to_copy(spec: OutSpec, self: Any, **_: Any) -> Any:
    return convert(self, spec.dtype)


@lowers("aten.copy")
def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    return jnp.broadcast_to(convert(src, self.dtype), self.shape)


@lowers("aten.clone", "aten.contiguous", "aten._lazy_clone", "aten.alias_copy", "aten.detach_copy")
@lowers("aten.lift", "aten.lift_fresh", "aten.lift_fresh_copy")
def identity(self: Any, **_: Any) -> Any:
    return self
