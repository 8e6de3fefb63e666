"""Torch functions as JAX functions: traced once, by lowering each op as it is called, and usable inside JAX's loops.

Note [Captured tensors]
A function may use tensors that it was not given: variables of the function around it, global ones, parameters of a
module. They change from step to step, so they must not become constants of the trace. They are found (closures, globals
that the function names, and modules among these or the function itself), passed as further inputs, and the traced
arrays stand in their places while the function is traced. An xla tensor that is captured in another way, such as in a
list, is an error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils import stateless
from torch.utils._pytree import tree_leaves

from torch_xla._src.jax_function import call
from torch_xla._src.ops.lower import CapturedTensor, carried, expand


class _Place:
    """Where a function finds a captured tensor or module: a cell of its closure, or a global name."""

    def __init__(self, cell: Any = None, names: dict[str, Any] | None = None, name: str = "") -> None:
        self.cell, self.names, self.name = cell, names, name

    def get(self) -> Any:
        return self.cell.cell_contents if self.names is None else self.names[self.name]

    def set(self, value: Any) -> None:
        if self.names is None:
            self.cell.cell_contents = value
        else:
            self.names[self.name] = value


def _places(function: Callable[..., Any]) -> list[_Place]:
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(plain, functools.partial):
        return _places(plain.func)
    code = getattr(plain, "__code__", None)
    if code is None:
        return []
    cells = [_Place(cell=cell) for cell in plain.__closure__ or () if _holds_something(cell)]
    known = plain.__globals__
    return cells + [_Place(names=known, name=name) for name in code.co_names if name in known]


def _holds_something(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a variable that has yet to be assigned
        return False
    return True


class Captures:
    """The tensors that functions use without being given them. See Note [Captured tensors]."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.places: list[_Place] = []
        self.modules: list[torch.nn.Module] = []
        seen: set[int] = set()
        for function in functions:
            self._add_owner(function, seen)
            self._add_owner(getattr(function, "__self__", None), seen)
            self._add(function, seen)

    def _add_owner(self, owner: Any, seen: set[int]) -> None:
        if isinstance(owner, torch.nn.Module) and id(owner) not in seen:
            seen.add(id(owner))
            self.modules.append(owner)

    def _add(self, function: Callable[..., Any], seen: set[int]) -> None:
        for place in _places(function):
            value = place.get()
            if isinstance(value, torch.Tensor):
                if value.is_xla:
                    self.places.append(place)
            elif isinstance(value, torch.nn.Module):
                self._add_owner(value, seen)
            elif inspect.isfunction(value) and id(value) not in seen:
                seen.add(id(value))
                self._add(value, seen)

    def _named(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if t.is_xla}

    def tensors(self) -> list[Any]:
        """The tensors, nested in the way that `replaced` takes them."""
        return [[place.get() for place in self.places], [self._named(module) for module in self.modules]]

    def modes(self) -> tuple[bool, ...]:
        """Which modules train: another trace if that changes."""
        return tuple(part.training for module in self.modules for part in module.modules())

    @contextlib.contextmanager
    def replaced(self, tensors: Any) -> Iterator[None]:
        """A context in which the functions find other tensors."""
        values, of_modules = tensors
        before = [place.get() for place in self.places]
        with contextlib.ExitStack() as stack:
            for module, named in zip(self.modules, of_modules, strict=True):
                stack.enter_context(stateless._reparametrize_module(module, dict(named), tie_weights=True))
            try:
                for place, value in zip(self.places, values, strict=True):
                    place.set(value)
                yield
            finally:
                for place, value in zip(self.places, before, strict=True):
                    place.set(value)


def on_arrays(function: Callable[..., Any], captures: Captures) -> Callable[..., Any]:
    """The torch function as one of arrays: `(captured, *args, key=None)`. ValueError if it writes to what it is given."""
    name = getattr(inspect.unwrap(function), "__qualname__", type(function).__name__)

    def run(captured: Any, *args: Any) -> Any:
        given = [x for x in tree_leaves((captured, args)) if isinstance(x, torch.Tensor)]
        before = [carried(x) for x in given]
        with captures.replaced(captured):
            result = function(*args)
        if any(carried(x) is not array for x, array in zip(given, before, strict=True)):
            raise ValueError(
                f"{name} writes in place to a tensor that it was given or captures (a batch norm that trains does), and a trace "
                "would lose that: return the new value instead"
            )
        return result

    def traced(captured: Any, *args: Any, key: Any = None) -> Any:
        try:
            return expand(run, (captured, *args), {}, key)
        except CapturedTensor as error:
            raise ValueError(
                f"{name} uses an xla tensor of shape {error.args[0]} that it was not given: pass it as an argument, or let it be "
                "a variable of its own rather than part of a list or an object"
            ) from None

    return traced


def of_function(function: Any) -> Any:
    """What tells a function apart: a lambda that is made anew in each step is the same one if it captures the same.

    Captured tensors are inputs, so they do not count.
    """
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        return id(function)
    cells = [cell.cell_contents if _holds_something(cell) else None for cell in function.__closure__ or ()]
    return function.__code__, tuple(map(_of_value, (*(function.__defaults__ or ()), *cells)))


def _of_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_xla:
        return "tensor"
    if inspect.isfunction(value):
        return of_function(value)
    if isinstance(value, (bool, int, str, type(None))):
        return type(value), value
    return (float, repr(value)) if isinstance(value, float) else id(value)


def _settings() -> Any:
    """What PyTorch is set to, as far as the ops that a function calls depend on it."""
    autocast = torch.is_autocast_enabled("xla")
    return autocast, torch.get_autocast_dtype("xla") if autocast else None, torch.get_default_dtype()


def call_with(
    functions: Sequence[Callable[..., Any]], make: Callable[..., Callable[..., Any]], args: Sequence[Any], name: Any
) -> Any:
    """Records a JAX function of torch functions.

    make: takes the functions as functions of arrays (`on_arrays`) and gives one of `(captured, *args)`. name: tells it
    apart from others made of the same functions.
    """
    captures = Captures(functions)
    function = make(*(on_arrays(f, captures) for f in functions))
    identity = (name, *map(of_function, functions), captures.modes(), _settings())
    _kept.setdefault(identity, functions)  # so that no other object gets one of these identities
    return call(function, (captures.tensors(), *args), override_hash=identity, wide=True)


_kept: dict[Any, Sequence[Callable[..., Any]]] = {}
