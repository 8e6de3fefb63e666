"""Complex numbers: parts, polar form, conjugation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops.dtypes import cast, is_complex, opmath
from torch_xla._src.ops.pointwise import operands
from torch_xla._src.ops.registry import OutSpec, lowers


@lowers("aten.real")
def real(self: Any) -> Any:
    return jnp.real(self)


@lowers("aten.imag")
def imag(self: Any) -> Any:
    return jnp.imag(self)


@lowers("aten.view_as_real_copy")
def view_as_real(self: Any) -> Any:
    return jnp.stack([jnp.real(self), jnp.imag(self)], axis=-1)


@lowers("aten.view_as_complex_copy")
def view_as_complex(self: Any) -> Any:
    x = cast(self, opmath(self.dtype))
    return lax.complex(x[..., 0], x[..., 1])


@lowers("aten.complex")
def complex_(real: Any, imag: Any) -> Any:
    dtype = np.promote_types(opmath(real.dtype), opmath(imag.dtype))
    return lax.complex(*jnp.broadcast_arrays(cast(real, dtype), cast(imag, dtype)))


@lowers("aten.polar")
def polar(abs: Any, angle: Any) -> Any:
    return lax.complex(*jnp.broadcast_arrays(abs * jnp.cos(angle), abs * jnp.sin(angle)))


@lowers("aten.angle", specs=True)
def angle(spec: OutSpec, self: Any) -> Any:
    if is_complex(self):
        return jnp.arctan2(jnp.imag(self), jnp.real(self))
    (x,) = operands(spec, self)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.pi, 0).astype(x.dtype))


@lowers("aten._conj_copy", "aten.conj_physical", "aten._conj_physical", "aten.conj")
def conj(self: Any) -> Any:
    return jnp.conj(self) if is_complex(self) else self


@lowers("aten._neg_view_copy")
def neg_view(self: Any) -> Any:
    return jnp.negative(self)


@lowers("aten.resolve_conj", "aten.resolve_neg")
def resolved(self: Any) -> Any:
    return self  # functionalization leaves no lazy bits
