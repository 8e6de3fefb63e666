"""Rules for layers on padded tensors: embedding, layer norm, attention, losses, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_xla._src.graph.lengths import Layout, is_static
from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.exact import quotient
from torch_xla._src.ops.loss import MEAN, SUM
from torch_xla._src.ops.padded import Call, Padded, pads
from torch_xla._src.ops.padded_products import gradients
from torch_xla._src.ops.padded_reduce import count
from torch_xla._src.ops.registry import OutSpec


def _expect_static(call: Call, *tensors: Any) -> None:
    for tensor in tensors:
        if type(tensor) is Padded:
            call.need_static(tensor, range(len(tensor.dims)))


# ---- embedding


@pads("aten.embedding")
def embedding(call: Call) -> Any:
    weight, indices = call.args[:2]
    call.need_static(weight, [0])
    indices = call.scope.fill(indices, 0)
    return call.run([weight, indices, *call.args[2:]], (*indices.dims, weight.dims[1]))


@pads("aten.embedding_dense_backward")
def embedding_dense_backward(call: Call) -> Any:
    grad, indices = call.args[:2]
    if call.args[4]:
        raise call.refuse("it has no rule for scale_grad_by_freq=True")
    for axis, dim in enumerate(indices.dims):
        grad = call.matched(grad, axis, dim)
    # Padding adds zero to row 0.
    args = [call.scope.fill(grad, 0), call.scope.fill(indices, 0), *call.args[2:]]
    return call.run(args, call.out_dims())


# ---- layer norm


def _normalized(call: Call, x: Padded, shape: Any) -> int:
    """The number of leading dims."""
    leading = len(x.dims) - len(shape)
    call.need_static(x, range(leading, len(x.dims)))
    return leading


def _statistics(x: Padded, leading: int) -> Layout:
    return x.dims[:leading] + ((),) * (len(x.dims) - leading)


@pads("aten.native_layer_norm")
def native_layer_norm(call: Call) -> Any:
    x = call.args[0]
    leading = _normalized(call, x, call.args[1])
    _expect_static(call, *call.args[2:4])
    return call.run(call.args, x.dims, _statistics(x, leading), _statistics(x, leading))


@pads("aten.native_layer_norm_backward")
def native_layer_norm_backward(call: Call) -> Any:
    grad, x, shape, mean, rstd, weight, bias, mask = call.args
    leading = _normalized(call, x, shape)
    _expect_static(call, weight, bias)
    grad = call.matched_all(grad, x.dims)
    mean, rstd = (call.matched_all(t, _statistics(x, leading)) for t in (mean, rstd))
    filled = [call.scope.fill(t, 0) for t in (grad, x, mean, rstd)]
    args = [filled[0], filled[1], shape, filled[2], filled[3], weight, bias, mask]
    normalized = x.dims[leading:]
    return call.run(args, *gradients(call, [x.dims, normalized, normalized]))


@pads("aten._fused_rms_norm")
def fused_rms_norm(call: Call) -> Any:
    x = call.args[0]
    leading = _normalized(call, x, call.args[1])
    _expect_static(call, call.args[2])
    return call.run(call.args, x.dims, _statistics(x, leading))


@pads("aten._fused_rms_norm_backward")
def fused_rms_norm_backward(call: Call) -> Any:
    grad, x, shape, rstd, weight, mask = call.args
    leading = _normalized(call, x, shape)
    _expect_static(call, weight)
    grad, rstd = call.matched_all(grad, x.dims), call.matched_all(rstd, _statistics(x, leading))
    args = [call.scope.fill(grad, 0), call.scope.fill(x, 0), shape, call.scope.fill(rstd, 0), weight, mask]
    return call.run(args, *gradients(call, [x.dims, x.dims[leading:]]))


# ---- attention: padding of keys and values is hidden by the mask, and is zero, as is that of all else that is summed


_ATTENTION = "aten._scaled_dot_product_fused_attention_overrideable"


def _operands(call: Call, query: Padded, key: Padded, value: Padded) -> tuple[Padded, Padded, Padded]:
    for axis in (0, 1):
        key, value = (call.matched(t, axis, query.dims[axis]) for t in (key, value))
    key, value = call.matched(key, 3, query.dims[3]), call.matched(value, 2, key.dims[2])
    call.need_static(query, [3])
    call.need_static(value, [3])
    return call.scope.fill(query, 0), call.scope.fill(key, 0), call.scope.fill(value, 0)


def _bias(call: Call, bias: Any, query: Padded, key: Padded, is_causal: bool) -> Any:
    """What is added to the scores: -inf in padding of the keys."""
    lengths = query.dims[2], key.dims[2]
    if is_causal and any(len(dim) > 1 for dim in lengths):
        raise call.refuse("it has no rule for causal attention along a flattened dim")
    if bias is not None:
        dims = (query.dims[0], query.dims[1], *lengths)
        for axis in range(-len(bias.dims), 0):
            if bias.dims[axis]:
                bias = call.matched(bias, axis + len(bias.dims), dims[axis])
        bias = call.scope.fill(bias, 0)
    if is_static(key.dims[2]):
        return bias
    seen = call.scope.valid(key.dims[2]).reshape(1, 1, 1, -1)
    if bias is None:
        return Padded(seen, ((), (), (), key.dims[2]))
    array = bias.array.reshape((1,) * (4 - bias.array.ndim) + bias.array.shape)
    dims = (*(((),) * (4 - len(bias.dims)) + bias.dims)[:3], key.dims[2])
    return Padded(jnp.where(seen, array, jnp.asarray(-np.inf, array.dtype)), dims)


def _dropped(call: Call, dropout: Any, *varying: Padded) -> None:
    """The mask of dropout is drawn again for the gradient, maybe for another bucket."""
    if dropout != 0.0 and any(not x.is_static for x in varying):
        raise call.refuse("it has no rule for dropout of attention weights; use dropout_p=0.0, and drop elsewhere")


@pads(_ATTENTION)
def attention(call: Call) -> Any:
    query, key, value = _operands(call, *call.args[:3])
    bias, dropout, is_causal = call.args[3:6]
    _dropped(call, dropout, query, key)
    bias = _bias(call, bias, query, key, is_causal)
    out = (*query.dims[:3], value.dims[3])
    layouts: list[Layout | None] = [None if spec is None else () for spec in call.specs]
    layouts[0], layouts[1] = out, query.dims[:3]
    return call.run([query, key, value, bias, *call.args[4:]], *layouts)


@pads(f"{_ATTENTION}_backward", sizes=[10, 11])
def attention_backward(call: Call) -> Any:
    grad = call.args[0]
    query, key, value = _operands(call, *call.args[1:4])
    given, wanted, out, logsumexp = call.args[4:8]
    dropout, is_causal = call.args[12:14]
    _dropped(call, dropout, query, key)
    if given is not None and wanted[3]:
        raise call.refuse("it has no rule for the gradient of a mask")
    bias = _bias(call, given, query, key, is_causal)
    grad, out = (call.scope.fill(call.matched_all(t, (*query.dims[:3], value.dims[3])), 0) for t in (grad, out))
    logsumexp = call.scope.fill(call.matched_all(logsumexp, query.dims[:3]), 0)
    args = [grad, query, key, value, bias, wanted, out, logsumexp, *call.args[8:10], 0, 0, *call.args[12:]]
    layouts = gradients(call, [query.dims, key.dims, value.dims])
    return call.run(args, *layouts, *(None if spec is None else call.out_dims(3) for spec in call.specs[3:]))


# ---- losses


@pads("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss_forward(call: Call) -> Any:
    x, target, weight, reduction, ignored = call.args
    x, target = _classes(call, x, target, weight, ignored)
    dims = () if reduction in (MEAN, SUM) else target.dims
    return call.run([x, target, weight, reduction, ignored], dims, call.out_dims(1))


@pads("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(call: Call) -> Any:
    grad, x, target, weight, reduction, ignored, total = call.args
    x, target = _classes(call, x, target, weight, ignored)
    grad = grad if reduction in (MEAN, SUM) else call.matched_all(grad, target.dims)
    return call.run([grad, x, target, weight, reduction, ignored, total], x.dims)


def _classes(call: Call, x: Padded, target: Padded, weight: Any, ignored: int) -> tuple[Padded, Padded]:
    """Input and target of a loss over classes, with padding that is ignored."""
    if len(x.dims) < 2:
        raise call.refuse()
    call.need_static(x, [1])
    _expect_static(call, weight)
    target = call.matched_all(target, (x.dims[0], *x.dims[2:]))
    info = jnp.iinfo(target.array.dtype)
    if not info.min <= ignored <= info.max:
        raise call.refuse("it needs an ignore_index that the dtype of the target can hold")
    return call.scope.fill(x, 0), call.scope.fill(target, ignored)


def _together(call: Call, given: list[Any]) -> tuple[list[Any], Any]:
    """Prediction, target and weight, where there is one, arranged alike; and their dims."""
    tensors, dims = call.aligned([x for x in given if x is not None])
    if any(x.dims != dims for x in tensors[:2]):
        raise call.refuse("it has no rule for a prediction and a target that broadcast")
    left = iter(tensors)
    return [None if x is None else next(left) for x in given], dims


def _loss(num_tensors: int) -> Callable[[Call], Any]:
    """num_tensors: arguments before `reduction`; those after it are numbers."""

    def rule(call: Call) -> Any:
        given, spec = call.args[:num_tensors], call.specs[0]
        assert spec is not None
        args, dims = _together(call, given)
        reduction = call.args[num_tensors]
        if reduction not in (MEAN, SUM):
            return call.run([*args, *call.args[num_tensors:]], dims)
        wide = opmath(spec.dtype)
        call.specs = [OutSpec(spec.shape, wide)]
        loss = call.run([*args, 0, *call.args[num_tensors + 1 :]], dims)
        total = jnp.sum(call.scope.fill(loss, 0).array)
        total = quotient(total, count(call, dims, range(len(dims)))) if reduction == MEAN else total
        return Padded(cast(total, spec.dtype), ())

    return rule


def _loss_backward(num_tensors: int) -> Callable[[Call], Any]:
    """num_tensors: arguments before `reduction`, the gradient included; the mean's share is taken beforehand."""

    def rule(call: Call) -> Any:
        grad, *given = call.args[:num_tensors]
        args, dims = _together(call, given)
        reduction = call.args[num_tensors]
        if reduction in (MEAN, SUM):
            call.need_static(grad, range(len(grad.dims)))
        else:
            grad = call.matched_all(grad, dims)
        if reduction == MEAN:
            share = quotient(grad.array.astype(opmath(grad.array.dtype)), count(call, dims, range(len(dims))))
            grad, reduction = Padded(share, grad.dims), SUM
        return call.run([grad, *args, reduction, *call.args[num_tensors + 1 :]], dims)

    return rule


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
    pads(f"aten.{_name}")(_loss(2))
    pads(f"aten.{_name}_backward")(_loss_backward(3))
pads("aten.binary_cross_entropy")(_loss(3))
pads("aten.binary_cross_entropy_backward")(_loss_backward(4))
pads("aten.binary_cross_entropy_with_logits")(_loss(4))
