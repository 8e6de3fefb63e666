"""One layer of a recurrent network, in one direction: a loop over time, forward and backward.

Note [Recurrent layers]
Composed of aten ops, a layer is some thirty ops for each time step, and a program that XLA takes a minute to compile. As
one op it is a product for all time steps, a loop with one small product a step, and backward the same in reverse:
gradients of the weights are products over all time steps. The loop forward saves the gates.

Equations and order of the gates: torch.nn.RNN, GRU, LSTM; projection: Sak et al., 2014 (arXiv:1402.1128).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xla._src.ops.dtypes import opmath
from torch_xla._src.ops.registry import lowers

_library = torch.library.Library("torch_xla", "FRAGMENT")
_INPUTS = (
    "Tensor x, Tensor h0, Tensor? c0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, Tensor? mask"
)
_library.define(f"rnn_layer({_INPUTS}, str mode, bool reverse, bool save) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    f"rnn_layer_backward({_INPUTS}, Tensor y, Tensor saved, Tensor? grad_y, Tensor? grad_h, Tensor? grad_c, str mode, "
    "bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)

# Widths, in hidden sizes: of the gates; of what is saved of a step.
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
_SAVED = {"rnn_tanh": 0, "rnn_relu": 0, "gru": 4, "lstm": 5}


def _layer_of_meta(
    x: Any, h0: Any, c0: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, mask: Any,
    mode: str, reverse: bool, save: bool,
) -> Any:  # fmt: skip
    time, batch = x.shape[:2]
    hidden = w_ih.shape[0] // GATES[mode]
    cell = x.new_empty(c0.shape if c0 is not None else (0,))
    dtype = torch.promote_types(x.dtype, torch.float32)
    saved = x.new_empty((time, batch, _SAVED[mode] * hidden if save else 0), dtype=dtype)
    return x.new_empty((time, batch, h0.shape[1])), x.new_empty(h0.shape), cell, saved


def _backward_of_meta(*args: Any) -> Any:
    return tuple(args[0].new_empty((0,) if a is None else a.shape) for a in args[:8])


_library.impl("rnn_layer", _layer_of_meta, "Meta")
_library.impl("rnn_layer_backward", _backward_of_meta, "Meta")


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    """a @ b.T, accumulated in float32 or wider."""
    return lax.dot_general(a, b, (((a.ndim - 1,), (1,)), ((), ())), preferred_element_type=opmath(a.dtype))


def _parts(gates: jax.Array, count: int) -> list[jax.Array]:
    return jnp.split(gates, count, axis=-1)


# ---- cells: gates from the input and from the state -> state, and what the gradient needs --------------------------------

State = tuple[jax.Array, Any]


def _lstm(gx: jax.Array, gh: jax.Array, state: State) -> tuple[State, jax.Array]:
    i, f, g, o = _parts(gx + gh, 4)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * state[1] + i * g
    return (o * jnp.tanh(c), c), jnp.concatenate([i, f, g, o, c], -1)


def _gru(gx: jax.Array, gh: jax.Array, state: State) -> tuple[State, jax.Array]:
    (rx, zx, nx), (rh, zh, nh) = _parts(gx, 3), _parts(gh, 3)
    r, z = jax.nn.sigmoid(rx + rh), jax.nn.sigmoid(zx + zh)
    n = jnp.tanh(nx + r * nh)
    return ((1 - z) * n + z * state[0], None), jnp.concatenate([r, z, n, nh], -1)


def _simple(activation: Callable[[jax.Array], jax.Array]) -> Callable[..., tuple[State, jax.Array]]:
    def cell(gx: jax.Array, gh: jax.Array, state: State) -> tuple[State, jax.Array]:
        h = activation(gx + gh)
        return (h, None), h[..., :0]

    return cell


_CELLS: dict[str, Callable[..., tuple[State, jax.Array]]] = {
    "lstm": _lstm, "gru": _gru, "rnn_tanh": _simple(jnp.tanh), "rnn_relu": _simple(jax.nn.relu),
}  # fmt: skip


class Step(NamedTuple):
    """What the gradient of a step is computed from: saved gates, state before it, output of it (before projection)."""

    saved: jax.Array
    h: jax.Array
    c: Any
    out: jax.Array


# Gradients of a cell: of (gx, gh, h before, c before) from those of its output and its c.


def _lstm_gradient(step: Step, dh: jax.Array, dc: Any) -> Any:
    i, f, g, o, c = _parts(step.saved, 5)
    t = jnp.tanh(c)
    dc = dc + dh * o * (1 - t * t)
    parts = [dc * g * i * (1 - i), dc * step.c * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)]
    gates = jnp.concatenate(parts, -1)
    return gates, gates, jnp.zeros_like(step.h), dc * f


def _gru_gradient(step: Step, dh: jax.Array, dc: Any) -> Any:
    r, z, n, nh = _parts(step.saved, 4)
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * nh * r * (1 - r), dh * (step.h - n) * z * (1 - z)
    return jnp.concatenate([dr, dz, dn], -1), jnp.concatenate([dr, dz, dn * r], -1), dh * z, None


def _tanh_gradient(step: Step, dh: jax.Array, dc: Any) -> Any:
    gates = dh * (1 - step.out * step.out)
    return gates, gates, jnp.zeros_like(step.h), None


def _relu_gradient(step: Step, dh: jax.Array, dc: Any) -> Any:
    gates = jnp.where(step.out > 0, dh, 0)
    return gates, gates, jnp.zeros_like(step.h), None


_GRADIENTS = {
    "lstm": _lstm_gradient, "gru": _gru_gradient, "rnn_tanh": _tanh_gradient, "rnn_relu": _relu_gradient,
}  # fmt: skip


# ---- layers -------------------------------------------------------------------------------------------------------------


def _kept(mask: Any, new: Any, old: Any) -> Any:
    """The new state where the sequence has not ended, else the old one."""
    return new if mask is None or new is None else jnp.where(mask[:, None], new, old)


def _wide(x: Any) -> Any:
    return None if x is None else x.astype(opmath(x.dtype))


@lowers("torch_xla.rnn_layer")
def rnn_layer(
    x: jax.Array, h0: jax.Array, c0: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, mask: Any,
    mode: str, reverse: bool, save: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """x [time, batch, input], h0 [batch, out], c0 [batch, hidden], mask [time, batch]: false where a sequence has ended.

    Returns the state after each step [time, batch, out], the last h and c, and what the gradient needs.
    """
    cell = _CELLS[mode]
    gates_x = _times(x, w_ih) if b_ih is None else _times(x, w_ih) + _wide(b_ih)

    def step(state: State, inputs: tuple[jax.Array, Any]) -> tuple[State, tuple[jax.Array, jax.Array]]:
        gx, valid = inputs
        gh = _times(state[0].astype(x.dtype), w_hh)
        (h, c), saved = cell(gx, gh if b_hh is None else gh + _wide(b_hh), state)
        if w_hr is not None:
            h = _times(h.astype(x.dtype), w_hr)
        state = _kept(valid, h, state[0]), _kept(valid, c, state[1])
        if save and c is not None and valid is not None:  # the state after the step, which the gradient starts from
            saved = jnp.concatenate([saved[:, : -c.shape[-1]], state[1]], -1)
        return state, (state[0].astype(x.dtype), saved if save else saved[:, :0])

    (h, c), (y, saved) = lax.scan(step, (_wide(h0), _wide(c0)), (gates_x, mask), reverse=reverse)
    return y, h, jnp.zeros((0,), x.dtype) if c is None else c, saved


@lowers("torch_xla.rnn_layer_backward")
def rnn_layer_backward(
    x: jax.Array, h0: jax.Array, c0: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, mask: Any,
    y: jax.Array, saved: jax.Array, grad_y: Any, grad_h: Any, grad_c: Any, mode: str, reverse: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr; empty for those that are not there."""
    wide = opmath(x.dtype)
    before = _before(y, h0, reverse).astype(wide)
    cells = saved[..., -c0.shape[-1] :] if c0 is not None else None
    cells_before = None if cells is None else _before(cells, c0.astype(wide), reverse)
    raw = _raw_output(saved, w_hr) if w_hr is not None else y.astype(wide)

    def step(carry: State, inputs: Any) -> tuple[State, Any]:
        (dh, dc), (moment, dy, valid) = carry, inputs
        dh = dh if dy is None else dh + dy
        d_raw = dh if w_hr is None else _times(dh.astype(x.dtype), w_hr.T)
        dgx, dgh, dh_before, dc_before = _GRADIENTS[mode](moment, d_raw, dc)
        if valid is not None:
            dgx, dgh = (jnp.where(valid[:, None], d, 0) for d in (dgx, dgh))
        dh_before = dh_before + _times(dgh.astype(x.dtype), w_hh.T)
        return (_kept(valid, dh_before, dh), _kept(valid, dc_before, dc)), (dgx, dgh, dh)

    zero = lambda like: None if like is None else jnp.zeros(like.shape, wide)
    start = (_wide(grad_h) if grad_h is not None else zero(h0)), (_wide(grad_c) if grad_c is not None else zero(c0))
    moments = Step(saved, before, cells_before, raw)
    (dh0, dc0), (dgx, dgh, dh) = lax.scan(step, start, (moments, _wide(grad_y), mask), reverse=not reverse)
    summed = lambda d, a: jnp.einsum("tbg,tbi->gi", d.astype(x.dtype), a.astype(x.dtype), preferred_element_type=wide)
    d_hr = None
    if w_hr is not None:
        d_hr = summed(dh if mask is None else jnp.where(mask[..., None], dh, 0), raw)
    gradients = (
        _times(dgx.astype(x.dtype), w_ih.T), dh0, dc0, summed(dgx, x), summed(dgh, before),
        None if b_ih is None else dgx.sum((0, 1)), None if b_hh is None else dgh.sum((0, 1)), d_hr,
    )  # fmt: skip
    return tuple(jnp.zeros((0,), x.dtype) if g is None else g for g in gradients)


def _before(states: jax.Array, first: jax.Array, reverse: bool) -> jax.Array:
    """The state before each step, from those after it."""
    first = first[None].astype(states.dtype)
    return jnp.concatenate([states[1:], first] if reverse else [first, states[:-1]], 0)


def _raw_output(saved: jax.Array, w_hr: jax.Array) -> jax.Array:
    """The output of an LSTM before its projection."""
    _, _, _, o, c = _parts(saved, 5)
    return o * jnp.tanh(c)
