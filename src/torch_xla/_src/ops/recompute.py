"""Regions of a recording that compute again what the forward pass has not kept: gradient checkpointing.

Note [Recomputation]
A recording holds the forward pass, the backward pass and, under `torch.utils.checkpoint`, what the backward pass computes
again. To XLA the latter is the former once more: it would compute it once, and keep it, which is what checkpointing is to
avoid. So two rows with neither result nor cost mark each recomputation, and when the program is built all that it reads
from outside passes through a barrier, together with what the backward pass computed last: the recomputation is then
another computation than the first, and cannot start before the gradient has come that far. Values, and so gradients, are
what they were.

The barrier is an `optimization_barrier`. XLA's CPU backend removes those before it looks for common subexpressions, so
there each tensor is also selected by a condition that always holds, which XLA does not see: no square is 2 or 3 modulo 4.
A selection costs a copy at most, which cannot be measured in a training step; parameters pass through it, too, since a
recording that was cut before the backward pass has activations among its inputs, and nothing else tells them apart.

Random numbers depend on keys alone, which are inputs: nothing would keep XLA from drawing all of them at the start, and
holding them until they are used. So a recomputation gets its keys through the barrier as well, and in a program that
has one, each other draw gets its key through a barrier with what was computed before it.

Method: Chen et al., 2016 (arXiv:1604.06174).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xla._src.ops.registry import lowers

_library = torch.library.Library("torch_xla", "FRAGMENT")
_library.define("recompute_begin(Tensor[] after) -> ()")
_library.define("recompute_end() -> ()")
BEGIN, END = torch.ops.torch_xla.recompute_begin.default, torch.ops.torch_xla.recompute_end.default


@lowers("torch_xla.recompute_begin", "torch_xla.recompute_end")
def _marker(*_: Any) -> tuple[()]:
    return ()


def barrier(values: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """`values`, such that nothing computed from them is known to be equal to what was computed from the originals, nor can
    be computed before `after` has been. See Note [Recomputation].
    """
    held = lax.optimization_barrier((*values, *after))[: len(values)]
    signals = [x for x in after if x.size]
    if not signals:
        return list(held)

    def on_cpu(*held: Any) -> tuple[Any, ...]:
        condition = _always(signals)
        return tuple(lax.select(jnp.broadcast_to(condition, x.shape), x, jnp.zeros_like(x)) for x in held)

    return list(lax.platform_dependent(*held, cpu=on_cpu, default=lambda *held: held))


def _always(signals: Sequence[Any]) -> jax.Array:
    """bool[], true: computed from an element of each signal, in a way that XLA does not simplify."""
    number = jnp.zeros((), jnp.uint32)
    for x in signals:
        number = number + _bits(lax.reshape(lax.slice(x, (0,) * x.ndim, (1,) * x.ndim), ()))
    return (number * number & 2) == 0


def _bits(x: jax.Array) -> jax.Array:
    """An element as a uint32: its bits, or some of them."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.real(x)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return x.astype(jnp.uint32)
