"""Scaled dot-product attention and its gradient, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import lowers

# Note [Attention]
# Scores and softmax are in the opmath dtype (float32 for 16-bit inputs); the probabilities go back to the dtype of the
# inputs for the product with the values, as in every fused kernel. A row with nothing to attend to gives zero.

# Note [Dropout of attention]
# The forward op draws two words, returns them packed as `philox_seed`, and expands them into the mask with threefry
# (explicitly: JAX's default generator may differ between forward and backward programs). The backward op gets the seed
# back and expands it again, so the mask is never kept.


def _scale(query: jax.Array, scale: Any) -> Any:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _product(pattern: str, a: jax.Array, b: jax.Array, dtype: Any) -> jax.Array:
    return jnp.einsum(pattern, a, b, preferred_element_type=dtype)


def _scores(query: Any, key: Any, bias: Any, is_causal: bool, scale: Any) -> jax.Array:
    dtype = dtypes.opmath(query.dtype)
    scores = _product("...qd,...kd->...qk", query, key, dtype) * dtypes.cast(_scale(query, scale), dtype)
    lowest = jnp.asarray(-jnp.inf, dtype)
    if bias is not None:
        scores = jnp.where(bias, scores, lowest) if bias.dtype == bool else scores + bias.astype(dtype)
    return jnp.where(_causal(scores.shape), scores, lowest) if is_causal else scores


def _causal(shape: tuple[int, ...]) -> jax.Array:
    """Query i sees keys 0..i, counted from the top left corner also where there are more keys than queries."""
    queries = lax.broadcasted_iota(jnp.int32, shape[-2:], 0)
    return queries >= lax.broadcasted_iota(jnp.int32, shape[-2:], 1)


def _softmax(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Probabilities and logsumexp [..., queries]; zero and -inf in a row that is all -inf."""
    top = jnp.max(scores, -1, keepdims=True, initial=-jnp.inf)
    top = jnp.where(top == -jnp.inf, jnp.zeros((), top.dtype), top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, -1, keepdims=True)
    probabilities = weights / jnp.where(total == 0, jnp.ones((), total.dtype), total)
    return probabilities, (top + jnp.log(total))[..., 0]


def _kept(seed: Any, shape: tuple[int, ...], dropout_p: Any, dtype: Any) -> jax.Array:
    """0 where dropped, else 1 / (1 - p). See Note [Dropout of attention]."""
    words = lax.bitcast_convert_type(jnp.asarray(seed, jnp.int64), jnp.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    keep = jax.random.uniform(key, shape, jnp.float32) >= dropout_p
    # With p = 1 nothing is kept and the factor must not be infinite.
    return jnp.where(keep, 1 / (1 - jnp.where(keep, dropout_p, 0)), 0).astype(dtype)


def _attend(query: Any, key: Any, value: Any, bias: Any, is_causal: bool, scale: Any, kept: Any) -> tuple[Any, Any]:
    probabilities, logsumexp = _softmax(_scores(query, key, bias, is_causal, scale))
    weights = probabilities if kept is None else probabilities * kept
    out = _product("...qk,...kd->...qd", weights.astype(value.dtype), value, weights.dtype)
    return out, logsumexp


def _gradients(
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    out: Any,
    logsumexp: Any,
    is_causal: bool,
    scale: Any,
    kept: Any,
) -> tuple[Any, Any, Any, Any]:
    """Gradients of query, key, value and scores."""
    dtype, low = dtypes.opmath(query.dtype), query.dtype
    scores = _scores(query, key, bias, is_causal, scale)
    probabilities = _softmax(scores)[0] if logsumexp is None else _from_logsumexp(scores, logsumexp)
    dropped = probabilities if kept is None else probabilities * kept
    grad_value = _product("...qk,...qd->...kd", dropped.astype(low), g, dtype)
    grad_weights = _product("...qd,...kd->...qk", g, value, dtype)
    grad_weights = grad_weights if kept is None else grad_weights * kept
    # Sum over keys of weight and its gradient, which is the product of output and its gradient.
    along = jnp.sum(g.astype(dtype) * out.astype(dtype), -1, keepdims=True)
    grad_scores = probabilities * (grad_weights - along)
    scaled = (grad_scores * dtypes.cast(_scale(query, scale), dtype)).astype(low)
    grad_query = _product("...qk,...kd->...qd", scaled, key, dtype)
    grad_key = _product("...qk,...qd->...kd", scaled, query, dtype)
    return grad_query, grad_key, grad_value, grad_scores


def _from_logsumexp(scores: jax.Array, logsumexp: jax.Array) -> jax.Array:
    logsumexp = logsumexp.reshape(*scores.shape[:-1], 1).astype(scores.dtype)
    return jnp.where(logsumexp == -jnp.inf, jnp.zeros((), scores.dtype), jnp.exp(scores - logsumexp))


def _sum_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sums away the dims along which an operand of `shape` was broadcast."""
    x = jnp.sum(x, tuple(range(x.ndim - len(shape))))
    return jnp.sum(x, tuple(i for i, n in enumerate(shape) if n == 1 != x.shape[i]), keepdims=True)


@lowers("aten._scaled_dot_product_fused_attention_overrideable", random=True, specs=True, static=("dropout_p",))
def fused_attention(
    rng: Any, specs: Any, query: Any, key: Any, value: Any, attn_bias: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    seed, kept = jnp.zeros((), jnp.int64), None
    if dropout_p:
        seed = lax.bitcast_convert_type(jax.random.bits(rng, (2,), jnp.uint32), jnp.int64)
        shape = (*query.shape[:-1], key.shape[-2])
        kept = _kept(seed, shape, dropout_p, dtypes.opmath(query.dtype))
    out, logsumexp = _attend(query, key, value, attn_bias, is_causal, scale, kept)
    logsumexp = logsumexp.reshape(specs[1].shape)
    offset = jnp.zeros((), jnp.int64)
    return out, logsumexp, None, None, query.shape[-2], key.shape[-2], seed, offset, None


@lowers("aten._scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p",))
def fused_attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, attn_bias: Any, grad_input_mask: Sequence[bool], out: Any,
    logsumexp: Any, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    philox_seed: Any, philox_offset: Any, *, scale: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    shape = (*query.shape[:-1], key.shape[-2])
    kept = _kept(philox_seed, shape, dropout_p, dtypes.opmath(query.dtype)) if dropout_p else None
    # The meta kernel makes logsumexp float32 whatever the inputs: too little for float64.
    saved = logsumexp if query.dtype != jnp.float64 else None
    *grads, grad_scores = _gradients(grad_out, query, key, value, attn_bias, out, saved, is_causal, scale, kept)
    if attn_bias is not None and grad_input_mask[3]:
        grads.append(_sum_to(grad_scores, attn_bias.shape))
    else:
        grads.append(None)
    return tuple(g if wanted else None for g, wanted in zip(grads, grad_input_mask))


@lowers("aten._scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    query: Any, key: Any, value: Any, dropout_p: Any = 0.0, is_causal: bool = False, *, attn_mask: Any = None,
    scale: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    return _attend(query, key, value, attn_mask, is_causal, scale, None)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, dropout_p: Any, is_causal: bool, *,
    attn_mask: Any = None, scale: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    return _gradients(grad_out, query, key, value, attn_mask, out, logsumexp, is_causal, scale, None)[:3]
