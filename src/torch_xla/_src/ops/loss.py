"""Losses and their gradients. `reduction` is 0 for none, 1 for mean, 2 for sum, as in ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.exact import quotient
from torch_xla._src.ops.registry import lowers

MEAN, SUM = 1, 2


def _wide(*operands: Any) -> list[Any]:
    """The operands in the dtype that PyTorch computes this loss in; None stays None."""
    dtype = opmath(dtypes.promote(*operands))
    return [None if x is None else cast(x, dtype) for x in operands]


def _reduce(loss: jax.Array, reduction: int) -> jax.Array:
    if reduction == MEAN:
        return quotient(jnp.sum(loss), loss.size)
    return jnp.sum(loss) if reduction == SUM else loss


def _share(grad_output: jax.Array, size: int, reduction: int) -> jax.Array:
    """What the gradient of a reduced loss hands to each of its `size` elements."""
    return quotient(grad_output, size) if reduction == MEAN else grad_output


# ---- losses of one prediction and one target: loss(x, y, parameter) and its derivative in x


def _mse(x: Any, y: Any) -> Any:
    return (x - y) * (x - y)


def _mse_slope(x: Any, y: Any) -> Any:
    return 2 * (x - y)


def _smooth_l1(x: Any, y: Any, beta: Any = 1.0) -> Any:
    distance = jnp.abs(x - y)
    return jnp.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta)


def _smooth_l1_slope(x: Any, y: Any, beta: Any) -> Any:
    difference = x - y
    return jnp.where(jnp.abs(difference) < beta, difference / beta, jnp.sign(difference))


def _huber(x: Any, y: Any, delta: Any = 1.0) -> Any:
    distance = jnp.abs(x - y)
    return jnp.where(distance <= delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))


def _huber_slope(x: Any, y: Any, delta: Any) -> Any:
    difference = x - y
    return jnp.where(jnp.abs(difference) < delta, difference, delta * jnp.sign(difference))


def _soft_margin(x: Any, y: Any) -> Any:
    return jnp.log1p(jnp.exp(-y * x))


def _soft_margin_slope(x: Any, y: Any) -> Any:
    return -y * jax.nn.sigmoid(-y * x)  # the quotient of exponentials would overflow to NaN


def _elementwise(loss: Callable[..., Any]) -> Callable[..., jax.Array]:
    def lowering(x: jax.Array, target: jax.Array, reduction: int = MEAN, *args: Any, **parameters: Any) -> jax.Array:
        x, target = _wide(x, target)
        return _reduce(loss(x, target, *args, **parameters), reduction)

    return lowering


def _elementwise_backward(slope: Callable[..., Any]) -> Callable[..., jax.Array]:
    def lowering(grad_output: jax.Array, x: jax.Array, target: jax.Array, reduction: int, *args: Any) -> jax.Array:
        grad_output, x, target = _wide(grad_output, x, target)
        return _share(grad_output, x.size, reduction) * slope(x, target, *args)

    return lowering


_ELEMENTWISE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mse_loss": (_mse, _mse_slope),
    "smooth_l1_loss": (_smooth_l1, _smooth_l1_slope),
    "huber_loss": (_huber, _huber_slope),
    "soft_margin_loss": (_soft_margin, _soft_margin_slope),
}
for _name, (_loss, _slope) in _ELEMENTWISE.items():
    lowers(f"aten.{_name}")(_elementwise(_loss))
    lowers(f"aten.{_name}_backward")(_elementwise_backward(_slope))


# ---- binary cross entropy


@lowers("aten.binary_cross_entropy")
def binary_cross_entropy(
    x: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = MEAN
) -> jax.Array:
    x, target, weight = _wide(x, target, weight)
    # Logarithms are clamped so that a confident error costs 100, not infinity.
    loss = (target - 1) * jnp.maximum(jnp.log1p(-x), -100) - target * jnp.maximum(jnp.log(x), -100)
    return _reduce(loss if weight is None else loss * weight, reduction)


@lowers("aten.binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: jax.Array, x: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = MEAN
) -> jax.Array:
    grad_output, x, target, weight = _wide(grad_output, x, target, weight)
    grad = _share(grad_output, x.size, reduction) * (x - target) / jnp.maximum((1 - x) * x, 1e-12)
    return grad if weight is None else grad * weight


@lowers("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    pos_weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    x, target, weight, pos_weight = _wide(x, target, weight, pos_weight)
    negative_log_sigmoid = jnp.maximum(-x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x + factor * negative_log_sigmoid
    return _reduce(loss if weight is None else loss * weight, reduction)


# ---- negative log likelihood. Classes stand in dim 1, or in dim 0 of an input without batch.


def _class_weights(target: jax.Array, weight: jax.Array | None, ignore_index: int, dtype: Any) -> jax.Array:
    """The weight of each target's class, 0 where the target is to be ignored."""
    kept = target != ignore_index
    if weight is None:
        return cast(kept, dtype)
    return jnp.where(kept, jnp.take(cast(weight, dtype), target, mode="clip"), jnp.zeros((), dtype))


@lowers("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss_forward(
    x: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    x = cast(x, opmath(x.dtype))
    axis, target = min(1, x.ndim - 1), _shaped_target(x, target)
    weights = _class_weights(target, weight, ignore_index, x.dtype)
    likelihood = jnp.squeeze(jnp.take_along_axis(x, jnp.expand_dims(target, axis), axis, mode="clip"), axis)
    # An ignored element counts 0 whatever its likelihood is, infinity included.
    loss = jnp.where(target != ignore_index, -likelihood * weights, jnp.zeros((), x.dtype))
    if reduction not in (MEAN, SUM):
        return loss, weights if x.ndim == 1 else jnp.zeros((), x.dtype)
    total, total_weight = jnp.sum(loss), jnp.sum(weights)
    return total / total_weight if reduction == MEAN else total, total_weight


def _shaped_target(x: jax.Array, target: jax.Array) -> jax.Array:
    """`target` in the shape of `x` without its class dim: without batch, a target may have shape [1]."""
    return target.reshape(x.shape[:1] + x.shape[2:] if x.ndim > 1 else ())


@lowers("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    grad_output: jax.Array,
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    dtype = opmath(x.dtype)
    axis, target = min(1, x.ndim - 1), _shaped_target(x, target)
    weights = _class_weights(target, weight, ignore_index, dtype)
    grad = cast(grad_output, dtype).reshape(target.shape if reduction not in (MEAN, SUM) else ())
    grad = grad / cast(total_weight, dtype).reshape(()) if reduction == MEAN else grad
    # A comparison with the class number instead of a scatter: it fuses with the gradient of log_softmax that follows.
    chosen = lax.broadcasted_iota(target.dtype, x.shape, axis) == jnp.expand_dims(target, axis)
    counts = chosen & jnp.expand_dims(target != ignore_index, axis)
    return jnp.where(counts, jnp.expand_dims(-grad * weights, axis), jnp.zeros((), dtype))


# ---- margins between classes


def _rows(x: jax.Array) -> jax.Array:
    """A [classes] or 0-d input as one row of a batch."""
    return x.reshape(1, -1) if x.ndim < 2 else x


def _hinge(x: jax.Array, target: jax.Array, margin: Any) -> tuple[jax.Array, jax.Array]:
    """max(0, margin - x[target] + x) with 0 at the target, and the mask of targets; x is [rows, classes]."""
    target = target.reshape(-1, 1)
    chosen = lax.broadcasted_iota(target.dtype, x.shape, 1) == target
    violation = jnp.maximum(margin - jnp.take_along_axis(x, target, 1, mode="clip") + x, 0)
    return jnp.where(chosen, jnp.zeros((), x.dtype), violation), chosen


def _row_weights(weight: jax.Array | None, target: jax.Array, dtype: Any) -> Any:
    return 1 if weight is None else jnp.take(cast(weight, dtype), target.reshape(-1), mode="clip")


@lowers("aten.multi_margin_loss", static=("p",))
def multi_margin_loss(
    x: jax.Array,
    target: jax.Array,
    p: Any = 1,
    margin: Any = 1,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    rows = _rows(cast(x, opmath(x.dtype)))
    violation, _ = _hinge(rows, target, margin)
    loss = quotient(jnp.sum(violation if p == 1 else violation * violation, 1), rows.shape[1])
    loss = loss * _row_weights(weight, target, rows.dtype)
    return _reduce(loss.reshape(target.shape) if x.ndim > 1 else loss.reshape(()), reduction)


@lowers("aten.multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    grad_output: jax.Array,
    x: jax.Array,
    target: jax.Array,
    p: Any,
    margin: Any,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    rows = _rows(cast(x, opmath(x.dtype)))
    violation, chosen = _hinge(rows, target, margin)
    slope = cast(violation > 0, rows.dtype) if p == 1 else 2 * violation
    slope = quotient(jnp.where(chosen, -jnp.sum(slope, 1, keepdims=True), slope), rows.shape[1])
    grad = _share(cast(grad_output, rows.dtype), rows.shape[0], reduction) * _row_weights(weight, target, rows.dtype)
    return (slope * grad.reshape(-1, 1)).reshape(x.shape)


def _multilabel(x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For [rows, classes]: one-hot labels [rows, labels, classes], the set of labels, and the margin violations.

    Labels end at the first negative number. A violation stands at [row, label, class] for each class that is none.
    """
    valid = lax.cummin(cast(target >= 0, jnp.int32), axis=1) > 0
    classes = lax.broadcasted_iota(target.dtype, (*target.shape, x.shape[1]), 2)
    one_hot = (classes == target[:, :, None]) & valid[:, :, None]
    is_target = jnp.any(one_hot, 1)
    of_label = jnp.take_along_axis(x, jnp.where(valid, target, 0), 1, mode="clip")
    violation = jnp.maximum(1 - of_label[:, :, None] + x[:, None, :], 0)
    return one_hot, is_target, jnp.where(valid[:, :, None] & ~is_target[:, None, :], violation, jnp.zeros((), x.dtype))


@lowers("aten.multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(x: jax.Array, target: jax.Array, reduction: int) -> tuple[jax.Array, jax.Array]:
    rows = _rows(cast(x, opmath(x.dtype)))
    _, is_target, violation = _multilabel(rows, _rows(target))
    loss = quotient(jnp.sum(violation, (1, 2)), rows.shape[1])
    return _reduce(loss if x.ndim > 1 else loss.reshape(()), reduction), is_target.reshape(target.shape)


@lowers("aten.multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: jax.Array, x: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    rows = _rows(cast(x, opmath(x.dtype)))
    one_hot, _, violation = _multilabel(rows, _rows(target))
    active = cast(violation > 0, rows.dtype)
    slope = jnp.sum(active, 1) - jnp.sum(jnp.sum(active, 2, keepdims=True) * one_hot, 1)
    grad = _share(cast(grad_output, rows.dtype), rows.shape[0], reduction).reshape(-1, 1)
    return (quotient(slope, rows.shape[1]) * grad).reshape(x.shape)
