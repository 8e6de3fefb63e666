"""Connectionist temporal classification: the forward variables, and the gradient from them and the backward ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.registry import OutSpec, lowers

# Shapes here: T steps, N sequences, C classes, S = 2 * longest target + 1 states (a blank around every label).


def _states(targets: jax.Array, lengths: jax.Array, longest: int, blank: int) -> jax.Array:
    """The class [N, S] of each state, `blank` past the end. `targets` is padded [N, L] or concatenated."""
    positions = jnp.arange(longest)
    if targets.ndim == 1:
        starts = jnp.cumsum(lengths) - lengths
        labels = (
            jnp.take(targets, starts[:, None] + positions, mode="clip") if targets.size else positions[None] + blank
        )
    else:
        labels = targets[:, :longest]
    labels = jnp.where(positions < lengths[:, None], labels, blank)
    return jnp.full((lengths.shape[0], 2 * longest + 1), blank, labels.dtype).at[:, 1::2].set(labels)


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """`x` [N, S] moved `by` states to the right (left if negative), -inf entering."""
    size = x.shape[1]
    filler = jnp.full((x.shape[0], min(abs(by), size)), -jnp.inf, x.dtype)
    return jnp.concatenate([filler, x[:, : max(size - by, 0)]] if by > 0 else [x[:, -by:], filler], 1)


def _log_sum(*terms: jax.Array) -> jax.Array:
    largest = jnp.maximum(terms[0], jnp.maximum(*terms[1:]))
    largest = jnp.where(jnp.isneginf(largest), jnp.zeros((), largest.dtype), largest)
    return jnp.log(sum(jnp.exp(term - largest) for term in terms)) + largest


def _emissions(log_probs: jax.Array, states: jax.Array) -> jax.Array:
    """log_probs [T, N, C] at the class of each state: [T, N, S]."""
    index = jnp.broadcast_to(states, (log_probs.shape[0], *states.shape))
    return jnp.take_along_axis(log_probs, index, 2, mode="clip")


def _skips(states: jax.Array, blank: int) -> jax.Array:
    """Whether state s can be entered from s - 2, past a blank: it is a label that differs from the one before."""
    before = jnp.concatenate([jnp.full((states.shape[0], min(2, states.shape[1])), blank, states.dtype), states], 1)
    return (states != blank) & (states != before[:, : states.shape[1]])


def _forward(log_probs: jax.Array, states: jax.Array, blank: int) -> jax.Array:
    """alpha [T, N, S]: log-probability of all ways to be in state s after step t."""
    emissions, skip = _emissions(log_probs, states), _skips(states, blank)
    first = jnp.where(jnp.arange(states.shape[1]) < 2, emissions[0], -jnp.inf)

    def step(alpha: jax.Array, emission: jax.Array) -> tuple[jax.Array, jax.Array]:
        from_two_back = jnp.where(skip, _shifted(alpha, 2), -jnp.inf)
        alpha = _log_sum(alpha, _shifted(alpha, 1), from_two_back) + emission
        return alpha, alpha

    return jnp.concatenate([first[None], lax.scan(step, first, emissions[1:])[1]])


def _backward(
    log_probs: jax.Array, states: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array, blank: int
) -> jax.Array:
    """beta [T, N, S]: log-probability of all ways to go on from state s at step t, emission of step t included."""
    emissions = _emissions(log_probs, states)
    skip = _shifted(jnp.where(_skips(states, blank), 0.0, -jnp.inf), -2) == 0
    state, last = jnp.arange(states.shape[1]), 2 * target_lengths[:, None]
    final = (state == last) | (state == last - 1)

    def step(beta: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        emission, t = inputs
        to_two_ahead = jnp.where(skip, _shifted(beta, -2), -jnp.inf)
        going_on = _log_sum(beta, _shifted(beta, -1), to_two_ahead) + emission
        at_end = jnp.where(final, emission, -jnp.inf)
        beta = jnp.where((t == input_lengths - 1)[:, None], at_end, going_on)
        return beta, beta

    start = jnp.full(states.shape, -jnp.inf, log_probs.dtype)
    return lax.scan(step, start, (emissions, jnp.arange(log_probs.shape[0])), reverse=True)[1]


def _batched(log_probs: jax.Array, *lengths: Any) -> list[jax.Array]:
    batch = log_probs if log_probs.ndim == 3 else log_probs[:, None]
    return [cast(batch, opmath(log_probs.dtype)), *(jnp.asarray(n, jnp.int64).reshape(-1) for n in lengths)]


@lowers("aten._ctc_loss", specs=True)
def _ctc_loss(
    specs: list[OutSpec],
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    longest = specs[1].shape[-1] // 2
    batch, input_lengths, target_lengths = _batched(log_probs, input_lengths, target_lengths)
    targets = targets[None] if log_probs.ndim == 2 else targets
    states = _states(targets, target_lengths, longest, blank)
    log_alpha = jnp.swapaxes(_forward(batch, states, blank), 0, 1)
    at_end = jnp.take_along_axis(log_alpha, jnp.maximum(input_lengths - 1, 0)[:, None, None], 1, mode="clip")[:, 0]
    state = jnp.arange(states.shape[1])
    final = (state == 2 * target_lengths[:, None]) | (state == 2 * target_lengths[:, None] - 1)
    loss = -jax.nn.logsumexp(jnp.where(final, at_end, -jnp.inf), 1)
    empty = jnp.where(target_lengths == 0, np.asarray(0, loss.dtype), np.asarray(np.inf, loss.dtype))
    loss = jnp.where(input_lengths == 0, empty, loss)
    return loss.reshape(specs[0].shape), log_alpha.reshape(specs[1].shape)


@lowers("aten._ctc_loss_backward")
def _ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    batch, input_lengths, target_lengths = _batched(log_probs, input_lengths, target_lengths)
    dtype = batch.dtype
    targets = targets[None] if log_probs.ndim == 2 else targets
    states = _states(targets, target_lengths, log_alpha.shape[-1] // 2, blank)
    alpha = cast(log_alpha, dtype).reshape(states.shape[0], -1, states.shape[1])
    paths = jnp.swapaxes(alpha, 0, 1) + _backward(batch, states, input_lengths, target_lengths, blank)
    loss = cast(neg_log_likelihood, dtype).reshape(-1, 1)
    # alpha and beta both hold the emission of step t: divide one out. Summed over the states of each class.
    occupancy = jnp.exp(paths + loss - _emissions(batch, states))
    occupancy = jnp.where(jnp.isneginf(paths) & jnp.isfinite(loss)[None], jnp.zeros((), dtype), occupancy)
    by_class = jax.nn.one_hot(states, batch.shape[2], dtype=dtype)
    per_class = jnp.einsum("tns,nsc->tnc", occupancy, by_class, precision=lax.Precision.HIGHEST)
    result = (jnp.exp(batch) - per_class) * cast(grad, dtype).reshape(-1, 1)
    running = (jnp.arange(batch.shape[0])[:, None] < input_lengths)[:, :, None]
    running = running & jnp.isfinite(loss) if zero_infinity else running
    return jnp.where(running, result, jnp.zeros((), dtype)).reshape(log_probs.shape)
