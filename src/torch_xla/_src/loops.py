"""Loops of torch functions inside a program, by JAX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from torch_xla._src.torch_function import call_with


def scan(fn: Callable[..., Any], init: Any, xs: Any) -> Any:
    """`lax.scan` of a torch function."""

    def make(body: Callable[..., Any]) -> Callable[..., Any]:
        return lambda captured, init, xs: lax.scan(lambda c, x: tuple(body(captured, c, x)), init, xs)

    return call_with([fn], make, (init, xs), "scan")


def while_loop(cond: Callable[..., Any], body: Callable[..., Any], carried: Sequence[Any], extra: Sequence[Any]) -> Any:
    """`lax.while_loop` of torch functions of `(*carried, *extra)`; the body gives a new `carried`."""
    count = len(carried)

    def make(condition: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
        def run(captured: Any, *arrays: Any) -> Any:
            start, fixed = tuple(arrays[:count]), arrays[count:]

            def advance(state: Any) -> Any:
                new = step(captured, *state, *fixed)
                return tuple(new) if isinstance(new, (tuple, list)) else (new,)

            return lax.while_loop(lambda s: condition(captured, *s, *fixed).reshape(()), advance, start)

        return run

    return call_with([cond, body], make, (*carried, *extra), ("while", count))


def pure(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], seed: Any) -> Any:
    """A torch function, traced once. seed: an integer tensor for its random numbers, or None."""

    def make(traced: Callable[..., Any]) -> Callable[..., Any]:
        def run(captured: Any, args: Any, kwargs: Any, seed: Any) -> Any:
            key = None if seed is None else jax.random.key(seed)
            return traced(captured, args, kwargs, key=key)

        return run

    return call_with([fn], make, (tuple(args), dict(kwargs), seed), "pure")
