"""`_foreach_*`: lists of tensors, element by element through the lowering of the op of the same name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xla._src.ops.cast import convert
from torch_xla._src.ops.dtypes import cast, constant, numpy_dtype, opmath
from torch_xla._src.ops.registry import OutSpec, lookup, lowers


def apply(name: str, spec: OutSpec, *args: Any, **kwargs: Any) -> Any:
    """The lowering of packet or overload `name` ("aten.mul"), looked up late: families load in any order."""
    packet, _, overload = name.partition("aten.")[2].partition(".")
    packet = getattr(torch.ops.aten, packet)
    lowering = lookup(getattr(packet, overload or packet.overloads()[0]))
    assert lowering is not None, name
    return lowering.fn(spec, *args, **kwargs) if lowering.specs else lowering.fn(*args, **kwargs)


def as_list(specs: Any) -> list[OutSpec]:
    """`lower` gives the bare spec for a list of one."""
    return specs if isinstance(specs, list) else [specs]


def _each(x: Any, index: int) -> Any:
    return x[index] if isinstance(x, (list, tuple)) else x


def _register(name: str) -> None:
    def foreach(specs: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [
            apply(f"aten.{name}", spec, *(_each(x, i) for x in args), **kwargs) for i, spec in enumerate(as_list(specs))
        ]

    lowers(f"aten._foreach_{name}", specs=True)(foreach)


_UNARY = "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal"
_UNARY += " round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc clone"
_BINARY = "add sub mul div clamp_max clamp_min maximum minimum pow lerp addcmul addcdiv"

for _name in f"{_UNARY} {_BINARY}".split():
    _register(_name)


def _addc(name: str) -> None:
    """The overload whose scalars are one tensor: each stays a tensor element, so it need not come to the host."""

    def foreach(specs: Any, self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> list[Any]:
        rows = zip(as_list(specs), self, tensor1, tensor2, strict=True)
        return [apply(f"aten.{name}", spec, x, a, b, value=scalars[i]) for i, (spec, x, a, b) in enumerate(rows)]

    lowers(f"aten._foreach_{name}.Tensor", specs=True)(foreach)


_addc("addcmul")
_addc("addcdiv")


@lowers("aten._foreach_copy")
def foreach_copy(self: Any, src: Any, non_blocking: bool = False) -> list[Any]:
    return [jnp.broadcast_to(convert(y, x.dtype), x.shape) for x, y in zip(self, src, strict=True)]


@lowers("aten._foreach_zero")
def foreach_zero(self: Any) -> list[Any]:
    return [jnp.zeros_like(x) for x in self]


@lowers("aten._foreach_max")
def foreach_max(self: Any) -> list[Any]:
    return [jnp.max(x) for x in self]


@lowers("aten._foreach_mm")
def foreach_mm(self: Any, mat2: Any) -> list[Any]:
    return [jnp.matmul(a, b, preferred_element_type=opmath(a.dtype)) for a, b in zip(self, mat2, strict=True)]


def _power_sum(x: jax.Array, order: Any, dtype: Any) -> jax.Array:
    """sum(|x| ** order), accumulated in the compute dtype of `dtype` (default: that of x)."""
    size = jnp.abs(cast(x, opmath(dtype or x.dtype)))
    if constant(order) == 2:
        return jnp.sum(size * size)
    if constant(order) == 1:
        return jnp.sum(size)
    return jnp.sum(size ** cast(order, size.dtype))


def _norm(x: jax.Array, order: Any, dtype: Any) -> jax.Array:
    size = jnp.abs(cast(x, opmath(dtype or x.dtype)))
    if order == float("inf"):
        return jnp.max(size, initial=0)
    if order == float("-inf"):
        return jnp.min(size, initial=jnp.inf)
    if order == 0:
        return jnp.sum(size != 0)
    total = _power_sum(x, order, dtype)
    return total if order == 1 else jnp.sqrt(total) if order == 2 else total ** (1 / order)


@lowers("aten._foreach_norm", static=("ord",))
def foreach_norm(self: Any, ord: Any = 2, dtype: torch.dtype | None = None) -> list[Any]:
    return [_norm(x, ord, dtype and numpy_dtype(dtype)) for x in self]


@lowers("aten._foreach_powsum", static=("ord",))
def foreach_powsum(self: Any, ord: Any = 2, dtype: torch.dtype | None = None) -> list[Any]:
    return [_power_sum(x, ord, dtype and numpy_dtype(dtype)) for x in self]
