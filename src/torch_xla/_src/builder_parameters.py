"""Ops on parameters that stand before there is a computation: `mkparam`, methods of Op, then `Op.build`.

A computation is a function (see `builder.py`), but PyTorch/XLA lets one write parameters first, apply methods to them, and
call `build` on the result. Such an Op holds an Expression, which is evaluated when the computation is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from torch_xla._src.builder_shapes import Shape, dtype_of

if TYPE_CHECKING:
    from torch_xla._src.builder import Builder

Environment = dict[int, Any]  # arrays, by the id of the Expression that they are the value of


class Expression:
    """A value that is known when the parameters are. evaluate: computes it, given what has been evaluated before."""

    def __init__(self, builder: Builder, evaluate: Callable[[Environment], Any]) -> None:
        self.builder, self._evaluate = builder, evaluate

    def value(self, environment: Environment) -> Any:
        """The array, or tuple of arrays."""
        if id(self) not in environment:
            environment[id(self)] = self._evaluate(environment)
        return environment[id(self)]

    def on_arrays(self, *arrays: Any) -> Any:
        """The value for these parameters."""
        mine = self.builder.parameters
        return self.value({id(mine[number][0]): array for number, array in zip(sorted(mine), arrays, strict=True)})

    def shapes(self) -> list[Shape]:
        """Those of the builder's parameters. ValueError if they are not numbered from 0."""
        mine = self.builder.parameters
        if sorted(mine) != list(range(len(mine))):
            raise ValueError(f"parameters of a computation are numbered from 0: there are {sorted(mine)}")
        return [mine[number][1] for number in sorted(mine)]

    def struct(self) -> Any:
        """Its shapes and dtypes, as jax.ShapeDtypeStruct."""
        mine = self.builder.parameters
        given = [jax.ShapeDtypeStruct(tuple(s.sizes), dtype_of(s.dtype)) for _, (_, s) in sorted(mine.items())]
        with jax.enable_x64(True):
            return jax.eval_shape(self.on_arrays, *given)


def parameter(builder: Builder, number: int, shape: Shape) -> Expression:
    """The parameter `number` of what the builder builds. ValueError if it has one of that number."""
    if number in builder.parameters:
        raise ValueError(f"the builder {builder.name!r} has a parameter {number} already")

    def unknown(environment: Environment) -> Any:
        raise ValueError(f"parameter {number} of builder {builder.name!r} belongs to another computation")

    made = Expression(builder, unknown)
    builder.parameters[number] = made, shape
    return made


def _found(x: Any) -> Expression | None:
    """An Expression among nested arguments, if there is one."""
    if isinstance(x, (tuple, list)):
        return next(filter(None, map(_found, x)), None)
    held = getattr(x, "op", x)
    return held if isinstance(held, Expression) else _found(held) if isinstance(held, (tuple, list)) else None


def can_wait(function: Callable[..., Any], make: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function of Ops that gives an Op on an Expression if one of its arguments holds one. make: an Op that holds this."""

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        waiting = _found((args, tuple(kwargs.values())))
        if waiting is None:
            return function(*args, **kwargs)

        def evaluate(environment: Environment) -> Any:
            def known(x: Any) -> Any:
                if isinstance(x, (tuple, list)):
                    return type(x)(map(known, x))
                if isinstance(held := getattr(x, "op", x), (Expression, tuple, list)):
                    return make(known(held)) if held is not x else held.value(environment)
                return x

            return function(*map(known, args), **{n: known(x) for n, x in kwargs.items()}).op

        return make(Expression(waiting.builder, evaluate))

    return method
