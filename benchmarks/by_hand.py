"""The same models, losses and optimizers hand-written in JAX: one jitted step that donates its state.

Parameters are a dict by the names that PyTorch gives them, with PyTorch's shapes, so that both start from the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import models

Params = dict[str, jax.Array]


def _linear(p: Params, name: str, x: jax.Array) -> jax.Array:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _layer_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    logits, target = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    picked = jnp.take_along_axis(logits, target[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def _mlp20(p: Params, batch: Any) -> Any:
    x = batch[0]
    for i in range(20):
        x = _linear(p, str(i), x)
    return jnp.square(x).mean(), {}


def _many_small(p: Params, batch: Any) -> Any:
    x = batch[0]
    for i in range(0, 300, 3):
        x = jnp.tanh(_layer_norm(p, str(i + 1), _linear(p, str(i), x)))
    return jnp.square(x).mean(), {}


def _conv(p: Params, name: str, x: jax.Array, stride: int = 1) -> jax.Array:
    weight = p[f"{name}.weight"]
    padding = [(weight.shape[-1] // 2,) * 2] * 2
    return lax.conv_general_dilated(x, weight, (stride, stride), padding, dimension_numbers=("NCHW", "OIHW", "NCHW"))


def _batch_norm(p: Params, new: Params, name: str, x: jax.Array) -> jax.Array:
    mean, count = x.mean((0, 2, 3)), x.size // x.shape[1]
    variance = jnp.square(x - mean[:, None, None]).mean((0, 2, 3))
    new[f"{name}.running_mean"] = 0.9 * p[f"{name}.running_mean"] + 0.1 * mean
    new[f"{name}.running_var"] = 0.9 * p[f"{name}.running_var"] + 0.1 * variance * count / (count - 1)
    scale = lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"]
    return x * scale[:, None, None] + (p[f"{name}.bias"] - mean * scale)[:, None, None]


def _resnet18(p: Params, batch: Any) -> Any:
    new: Params = {}
    x = jax.nn.relu(_batch_norm(p, new, "bn", _conv(p, "conv", batch[0])))
    for i in range(8):
        name, stride = f"blocks.{i}", 2 if i in (2, 4, 6) else 1
        y = jax.nn.relu(_batch_norm(p, new, f"{name}.bn1", _conv(p, f"{name}.conv1", x, stride)))
        y = _batch_norm(p, new, f"{name}.bn2", _conv(p, f"{name}.conv2", y))
        if f"{name}.shortcut.0.weight" in p:
            x = _batch_norm(p, new, f"{name}.shortcut.1", _conv(p, f"{name}.shortcut.0", x, stride))
        x = jax.nn.relu(x + y)
    return _cross_entropy(_linear(p, "head", x.mean((2, 3))), batch[1]), new


def _block(p: Params, name: str, x: jax.Array, attend: Callable[..., jax.Array]) -> jax.Array:
    heads = 4
    qkv = _linear(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm1", x))
    q, k, v = (t.reshape(*t.shape[:-1], heads, -1).swapaxes(-2, -3) for t in jnp.split(qkv, 3, -1))
    attended = attend(q, k, v).swapaxes(-2, -3)
    x = x + _linear(p, f"{name}.out", attended.reshape(x.shape))
    return x + _linear(p, f"{name}.down", jax.nn.gelu(_linear(p, f"{name}.up", _layer_norm(p, f"{name}.norm2", x))))


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: Any = None) -> jax.Array:
    scores = jnp.einsum("...qd,...kd->...qk", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -jnp.inf)) @ v


def _transformer(layers: int, causal: bool, p: Params, batch: Any) -> Any:
    tokens, target = batch
    time = tokens.shape[1]
    x = p["tokens.weight"][tokens] + p["positions.weight"][:time]
    mask = jnp.tril(jnp.ones((time, time), bool)) if causal else None
    for i in range(layers):
        x = _block(p, f"blocks.{i}", x, partial(_attention, mask=mask))
    return _cross_entropy(_layer_norm(p, "norm", x) @ p["tokens.weight"].T, target), {}


def _lstm(p: Params, batch: Any) -> Any:
    x = batch[0].swapaxes(0, 1)
    for layer in range(2):
        w_ih, w_hh = p[f"lstm.weight_ih_l{layer}"], p[f"lstm.weight_hh_l{layer}"]
        gates_x = x @ w_ih.T + p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]

        def step(state: Any, gates: jax.Array, w_hh: jax.Array = w_hh) -> Any:
            h, c = state
            i, f, g, o = jnp.split(gates + h @ w_hh.T, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], w_hh.shape[1]))
        x = lax.scan(step, (zeros, zeros), gates_x)[1]
    return _cross_entropy(_linear(p, "head", x[-1]), batch[1]), {}


def _decode(p: Params, batch: Any) -> Any:
    position, context = p["position"], p["keys"].shape[3]
    x = p["model.tokens.weight"][p["token"]] + p["model.positions.weight"][position]
    new = {"keys": p["keys"], "values": p["values"]}
    mask = jnp.arange(context) <= position
    for i in range(p["keys"].shape[0]):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, i: int = i) -> jax.Array:
            at = (i, 0, 0, position[0].astype(jnp.int32), 0)
            new["keys"] = lax.dynamic_update_slice(new["keys"], k[None, None], at)
            new["values"] = lax.dynamic_update_slice(new["values"], v[None, None], at)
            return _attention(q[None], new["keys"][i], new["values"][i], mask)[0]

        x = _block(p, f"model.blocks.{i}", x, lambda q, k, v, attend=attend: attend(q, k, v))
    logits = _layer_norm(p, "model.norm", x) @ p["model.tokens.weight"].T
    new |= {"token": logits.argmax(-1).astype(position.dtype), "position": (position + 1) % context}
    return logits.max(), new


LOSSES: dict[str, Callable[[Params, Any], Any]] = {
    "mlp20": _mlp20,
    "many_small": _many_small,
    "resnet18": _resnet18,
    "gpt": partial(_transformer, 6, True),
    "bert": partial(_transformer, 4, False),
    "lstm": _lstm,
    "decode": _decode,
}


def _sgd(params: Params, grads: Params, state: Any) -> Any:
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, state), state


def _adamw(params: Params, grads: Params, state: Any) -> Any:
    first, second, count = state
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    scale, root = 1e-3 / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p * (1 - 1e-5) - scale * m / (jnp.sqrt(v) / root + 1e-8)

    return jax.tree.map(update, params, first, second), (first, second, count)


def _zeros(params: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, params)


class Trainer:
    """A model with its optimizer; `step()` starts one step."""

    def __init__(self, name: str, optimizer: str) -> None:
        case = models.CASES[name]
        model = case.model()
        trained = {n: jnp.asarray(p.detach().numpy()) for n, p in model.named_parameters()} if case.trains else {}
        everything = {n: jnp.asarray(t.numpy()) for n, t in model.state_dict().items()}
        # The head of a language model is tied to the embedding.
        buffers = {n: t for n, t in everything.items() if n not in trained and not n.endswith("head.weight")}
        self.batch = tuple(jnp.asarray(t.numpy()) for t in case.batch())
        loss = LOSSES[name]

        def train(params: Params, buffers: Params, state: Any, batch: Any) -> Any:
            of = lambda params: loss(params | buffers, batch)
            (value, new), grads = jax.value_and_grad(of, has_aux=True)(params)
            params, state = (_sgd if optimizer == "sgd" else _adamw)(params, grads, state)
            return params, buffers | new, state, value

        def run(params: Params, buffers: Params, state: Any, batch: Any) -> Any:
            value, new = loss(buffers, batch)
            return params, buffers | new, state, value

        state: Any = (_zeros(trained), _zeros(trained), jnp.float32(0)) if optimizer == "adamw" else _zeros(trained)
        self.carry = (trained, buffers, state)
        self.function = jax.jit(train if case.trains else run, donate_argnums=(0, 1, 2))
        self.loss: Any = None

    def arguments(self) -> tuple[Any, ...]:
        """What the next step is called with."""
        return *self.carry, self.batch

    def step(self) -> None:
        *carry, self.loss = self.function(*self.arguments())
        self.carry = tuple(carry)

    def wait(self) -> None:
        jax.block_until_ready((self.carry, self.loss))
