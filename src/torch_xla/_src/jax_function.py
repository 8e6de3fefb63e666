"""Calls of JAX functions on xla tensors: recorded like any op, differentiable through JAX. See Note [Calls of JAX functions]."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.extend.core import jaxpr_as_fun

from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import as_user, inner_of, inner_of_value
from torch_xla._src.graph.value import Spec, Value
from torch_xla._src.ops import jax_call
from torch_xla._src.ops.dtypes import numpy_dtype, torch_dtype
from torch_xla._src.step.reach import names_in

_numbers: dict[Any, int] = {}


def call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    override_hash: Any = None,
    wide: bool = False,
) -> Any:
    """`function(*args, **kwargs)` where xla tensors anywhere inside become arrays; returns tensors for arrays.

    What is neither a tensor nor an array is a constant of the call and has to be hashable. Raises what tracing raises.
    wide: the function is traced with 64-bit types in any case.
    """
    flat, tree = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, (torch.Tensor, jax.Array, np.ndarray))]
    tensors = [_as_tensor(flat[i]) for i in places]
    constants = tuple((i, type(leaf), _hashable(leaf)) for i, leaf in enumerate(flat) if i not in set(places))

    def on_arrays(*arrays: Any) -> Any:
        filled = list(flat_constants)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        inner_args, inner_kwargs = jax.tree.unflatten(tree, filled)
        return function(*inner_args, **inner_kwargs)

    flat_constants = [None if i in set(places) else leaf for i, leaf in enumerate(flat)]
    identity = ("hash", override_hash) if override_hash is not None else _identity(function)
    key = (identity, tree, tuple(places), constants, tuple((tuple(t.shape), t.dtype) for t in tensors))
    if key not in _numbers:
        shapes = [jax.ShapeDtypeStruct(tuple(t.shape), numpy_dtype(t.dtype)) for t in tensors]
        _numbers[key] = jax_call.trace(on_arrays, shapes, wide)
    number = _numbers[key]
    outputs = _Differentiable.apply(number, *tensors)
    return jax.tree.unflatten(jax_call.CALLS[number].tree, outputs)


def _identity(function: Any) -> Any:
    """Equal for functions that trace alike: those made by the same code that reads the same, like a lambda in a loop.

    A function that reads something which may change (a list, an object) is equal to itself alone. What is named by
    address here has to live as long as the answer is used: a traced function is kept (`jax_call.Call`).
    """
    if isinstance(function, types.MethodType):
        return "method", id(function.__self__), _identity(function.__func__)
    if isinstance(function, functools.partial):
        given = [function.func, *function.args, *function.keywords.values()]
        return _of_code(function, "partial", given, tuple(function.keywords))
    if not isinstance(function, types.FunctionType) or vars(function):
        return "id", id(function)
    try:
        read = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable that has not been assigned yet
        return "id", id(function)
    read += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    names: set[str] = set()
    names_in(function.__code__, names)
    held = function.__globals__
    read += [held.get(name, _MISSING) for name in sorted(names)]
    return _of_code(function, "code", read, (id(function.__code__), id(held)))


def _of_code(function: Any, kind: str, read: Sequence[Any], rest: Any) -> Any:
    """What identifies a function that reads these things: itself, unless none of them can change."""
    if all(held is None or isinstance(held, _CONSTANT) or type(held).__module__.startswith("jax") for held in read):
        return kind, tuple((type(x), repr(x)) if type(x) in _PLAIN else (object, id(x)) for x in read), rest
    return "id", id(function)


_PLAIN = (bool, int, str, bytes, float, complex)
_MISSING = np.dtype  # stands for a global that is not there
_CONSTANT = (
    *_PLAIN,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    jax.Array,
    np.dtype,
    torch.dtype,
)


def _hashable(leaf: Any) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"an argument of type {type(leaf).__name__} is neither an xla tensor nor hashable: a JAX function takes tensors, "
            "and constants that can be told apart"
        ) from None
    return repr(leaf) if isinstance(leaf, (float, complex)) else leaf  # -0.0 is not 0.0


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        if leaf.device.type != "xla":
            raise ValueError(
                f"a JAX function on device xla was given a tensor on {leaf.device}: move it with .to('xla')"
            )
        return leaf
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf.copy()).to("xla")
    return as_user(inner_of_value(Value(Spec(tuple(leaf.shape), torch_dtype(leaf.dtype)), leaf)))


def record(number: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Records the call `number` on user tensors."""
    outs = RECORDER.record(torch.ops.torch_xla.call_jax.default, [[inner_of(t) for t in tensors], number], {})
    return [as_user(out) for out in outs]


class _Differentiable(torch.autograd.Function):
    """The call, with its derivative by JAX: the backward pass is another call, of the pullback."""

    @staticmethod
    def forward(ctx: Any, number: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.number = number
        ctx.save_for_backward(*tensors)
        outputs = tuple(record(number, tensors))
        ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point() and not o.is_complex()])
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        jaxpr_call = jax_call.CALLS[ctx.number]
        tensors = ctx.saved_tensors
        floating = tuple(i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex())
        if jaxpr_call.pullback is None:
            jaxpr_call.pullback = _pullback(jaxpr_call.jaxpr, floating)
        given = [c for c in cotangents if c.is_floating_point() or c.is_complex()]
        found = dict(zip(floating, call(jaxpr_call.pullback, (list(tensors), given), None), strict=True))
        return (None, *(found.get(i) for i in range(len(tensors))))


def _pullback(jaxpr: Any, floating: tuple[int, ...]) -> Callable[[list[Any], list[Any]], Any]:
    """A function of inputs and cotangents (of floating outputs) that gives the cotangents of the floating inputs."""

    def pullback(inputs: list[Any], cotangents: list[Any]) -> Any:
        def outputs_of(*chosen: Any) -> list[Any]:
            filled = list(inputs)
            for i, x in zip(floating, chosen, strict=True):
                filled[i] = x
            outs = jaxpr_as_fun(jaxpr)(*filled)
            return [
                o for o in outs if np.issubdtype(o.dtype, np.inexact) or o.dtype.name.startswith(("bfloat", "float8"))
            ]

        _, pull = jax.vjp(outputs_of, *(inputs[i] for i in floating))
        return list(pull(cotangents))

    return pullback
