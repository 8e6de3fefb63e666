"""Loops of torch functions inside a program, by JAX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xla._src import placement
from torch_xla._src.ops.dtypes import cast
from torch_xla._src.ops.lower import DrawsNumbers
from torch_xla._src.torch_function import call_with, of_function

KEPT = {  # by name of a policy, what the backward pass finds kept of an iteration, beside the carry it began with
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


def scan(fn: Callable[..., Any], init: Any, xs: Any, remat: str | None = None) -> Any:
    """`lax.scan` of a torch function, whose iterations draw numbers of their own. remat: a policy of `KEPT`, or None."""
    # On CPU there is no other memory to put anything into.
    kept_as = "dots" if remat == "offload" and not placement.has_two_memories() else remat
    policy = None if kept_as is None else KEPT[kept_as]

    def make(body: Callable[..., Any]) -> Callable[..., Any]:
        def run(captured: Any, init: Any, xs: Any, seed: Any) -> Any:
            def step(carry: Any, given: Any) -> Any:
                x, number = given
                key = None if seed is None else jax.random.fold_in(jax.random.key(seed), number)
                after, y = body(captured, carry, x, key=key)
                return _in_dtypes_of(carry, after), y

            # prevent_cse=False: within a loop XLA cannot merge the repetition with the original.
            kept = step if policy is None else jax.checkpoint(step, policy=policy, prevent_cse=False)
            length = next(leaf.shape[0] for leaf in jax.tree.leaves(xs))
            return lax.scan(kept, init, (xs, jnp.arange(length)))

        return run

    if of_function(fn) not in _draws:
        try:
            return call_with([fn], make, (init, xs, None), ("scan", remat))
        except DrawsNumbers:  # so no number is drawn for the loops that do not
            _draws.add(of_function(fn))
    seed = torch.randint(0, 2**62, (), device="xla")
    return call_with([fn], make, (init, xs, seed), ("scan", remat))


def _in_dtypes_of(before: Any, after: Any) -> Any:
    """What is carried on, in the dtypes that it had: autocast changes those, and a loop cannot."""
    if not torch.is_autocast_enabled("xla") or jax.tree.structure(before) != jax.tree.structure(after):
        return after
    return jax.tree.map(lambda old, new: cast(new, old.dtype) if _both_float(old, new) else new, before, after)


def _both_float(*arrays: Any) -> bool:
    return all(hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating) for x in arrays)


_draws: set[Any] = set()  # functions that draw random numbers


def while_loop(cond: Callable[..., Any], body: Callable[..., Any], carried: Sequence[Any], extra: Sequence[Any]) -> Any:
    """`lax.while_loop` of torch functions of `(*carried, *extra)`; the body gives a new `carried`."""
    count = len(carried)

    def make(condition: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
        def run(captured: Any, *arrays: Any) -> Any:
            start, fixed = tuple(arrays[:count]), arrays[count:]

            def advance(state: Any) -> Any:
                new = step(captured, *state, *fixed)
                return _in_dtypes_of(state, tuple(new) if isinstance(new, (tuple, list)) else (new,))

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
