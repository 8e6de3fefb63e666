"""JAX functions as ops of a recording, and the optimisation barrier.

Note [Calls of JAX functions]
A call is traced to a jaxpr once for each function and input shapes, and gets a number, which is a constant of the row:
so a second step replays, and the function's Python is not run again. The function sees 64-bit types if an input has one
or the user has enabled them in JAX; else it is traced as JAX does by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from jax import lax

from torch_xla._src.ops.dtypes import torch_dtype
from torch_xla._src.ops.registry import lowers

_library = torch.library.Library("torch_xla", "FRAGMENT")
_library.define("call_jax(Tensor[] inputs, int number) -> Tensor[]")
_library.define("optimization_barrier(Tensor[] inputs) -> Tensor[]")


@dataclass
class Call:
    """A traced function: `jaxpr` (closed) takes the tensors in order; `tree` is the structure of what it returns.

    function: takes the tensors as arrays and returns the structure; kept so that its identity stays its own.
    pullback: the function for the backward pass, once there has been one.
    """

    function: Callable[..., Any]
    jaxpr: Any
    tree: Any
    pullback: Callable[..., Any] | None = None


CALLS: list[Call] = []


def trace(function: Callable[..., Any], inputs: Sequence[jax.ShapeDtypeStruct], wide: bool = False) -> int:
    """Traces a function of arrays; returns its number in `CALLS`. wide: with 64-bit types in any case."""
    wide = wide or bool(jax.config.jax_enable_x64) or any(s.dtype.itemsize == 8 and s.dtype.kind != "c" for s in inputs)
    with jax.enable_x64(wide or any(s.dtype.itemsize == 16 for s in inputs)):
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*inputs)
    CALLS.append(Call(function, jaxpr, jax.tree.structure(shapes)))
    return len(CALLS) - 1


@lowers("torch_xla.call_jax", static=("number",))
def call_jax(inputs: Sequence[Any], number: int) -> list[Any]:
    from jax.extend.core import jaxpr_as_fun  # imports much that nothing else here needs

    jaxpr = CALLS[number].jaxpr
    return list(jaxpr_as_fun(jaxpr)(*inputs))


@lowers("torch_xla.optimization_barrier")
def optimization_barrier(inputs: Sequence[Any]) -> list[Any]:
    return list(lax.optimization_barrier(tuple(inputs)))


def _outputs_of_call(inputs: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    avals = CALLS[number].jaxpr.out_avals
    return [torch.empty(aval.shape, dtype=torch_dtype(aval.dtype), device="meta") for aval in avals]


def _like(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in inputs]


_library.impl("call_jax", _outputs_of_call, "Meta")
_library.impl("optimization_barrier", _like, "Meta")
_library.impl("optimization_barrier", lambda inputs: [x.clone() for x in inputs], "CPU")
