"""Fused optimizer steps and loss scaling (`torch.optim` with fused=True, `torch.amp.GradScaler`).

Note [Fused steps]: `grad_scale` divides the gradients first; where `found_inf` is 1 the step changes nothing. The step
count has already been advanced. Updates are computed in the compute dtype of the parameter, each result rounded once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._src.ops.dtypes import cast, constant, opmath
from torch_xla._src.ops.pointwise import lerp
from torch_xla._src.ops.registry import lowers


def _unscaled(grad: jax.Array, grad_scale: Any, dtype: Any) -> jax.Array:
    grad = cast(grad, dtype)
    return grad if grad_scale is None else grad / cast(grad_scale, dtype).reshape(())


def _unless(found_inf: Any, new: Any, old: Any) -> jax.Array:
    """`new` in the dtype of `old`, or `old` where the step is skipped."""
    new = cast(new, old.dtype)
    return new if found_inf is None else jnp.where(found_inf.reshape(()) == 1, old, new)


def _bias_correction(beta: Any, step: jax.Array, dtype: Any) -> jax.Array:
    """1 - beta ** step without cancellation, so that float32 is enough."""
    number = constant(beta)
    with np.errstate(divide="ignore"):
        log_beta = jnp.log(cast(beta, np.float64)) if number is None else np.log(np.float64(number))
    return cast(-jnp.expm1(cast(step, dtype) * cast(log_beta, dtype)), dtype)


def _adam_one(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any, max_exp_avg_sq: Any, step: Any, *, decoupled: bool, lr: Any,
    beta1: Any, beta2: Any, weight_decay: Any, eps: Any, maximize: bool, grad_scale: Any, found_inf: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """One parameter's (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq) after the step; no maximum, no last."""
    dtype = opmath(param.dtype)
    lr, decay, eps = (cast(x, dtype).reshape(()) for x in (lr, weight_decay, eps))
    p, m, v = (cast(x, dtype) for x in (param, exp_avg, exp_avg_sq))
    unscaled = _unscaled(grad, grad_scale, dtype)
    g = -unscaled if maximize else unscaled
    if constant(weight_decay) != 0:
        p, g = (p - lr * decay * p, g) if decoupled else (p, g + p * decay)
    m = lerp(m, g, 1 - cast(beta1, dtype))
    v = cast(beta2, dtype) * v + cast(1 - beta2, dtype) * g * g
    peak = None if max_exp_avg_sq is None else jnp.maximum(cast(max_exp_avg_sq, dtype), v)
    root = jnp.sqrt(v if peak is None else peak) / jnp.sqrt(_bias_correction(beta2, step, dtype))
    p = p - lr / _bias_correction(beta1, step, dtype) * m / (root + eps)
    old = (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
    return tuple(
        y if y is None else _unless(found_inf, y, x) for y, x in zip((p, unscaled, m, v, peak), old, strict=True)
    )


def _adam(decoupled: bool, name: str) -> None:
    def fused(
        self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any, state_steps: Any, *, lr: Any,
        beta1: Any, beta2: Any, weight_decay: Any, eps: Any, amsgrad: bool, maximize: bool, grad_scale: Any = None,
        found_inf: Any = None,
    ) -> Any:  # fmt: skip
        options = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "eps": eps}
        options |= {"maximize": maximize, "grad_scale": grad_scale, "found_inf": found_inf}
        peaks = max_exp_avg_sqs if amsgrad else [None] * len(self)
        rows = zip(self, grads, exp_avgs, exp_avg_sqs, peaks, state_steps, strict=True)
        one = jax.jit(partial(_adam_one, decoupled=decoupled, **options))  # traced once for all parameters of a shape
        updated = [one(*row) for row in rows]
        columns = [list(column) for column in zip(*updated, strict=True)] or [[], [], [], [], []]
        columns[4] = columns[4] if amsgrad else list(max_exp_avg_sqs)
        return tuple(columns)

    lowers(name)(fused)


_adam(False, "aten._fused_adam")
_adam(True, "aten._fused_adamw")


@lowers("aten._fused_sgd")
def fused_sgd(
    self: Any, grads: Any, momentum_buffer_list: Any, *, weight_decay: Any, momentum: Any, lr: Any, dampening: Any,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> Any:  # fmt: skip
    params, new_grads, buffers = [], [], []
    for index, (param, grad) in enumerate(zip(self, grads, strict=True)):
        dtype = opmath(param.dtype)
        p, unscaled = cast(param, dtype), _unscaled(grad, grad_scale, dtype)
        g = -unscaled if maximize else unscaled
        if constant(weight_decay) != 0:
            g = g + p * cast(weight_decay, dtype)
        if momentum_buffer_list:
            old = momentum_buffer_list[index]
            m = g if is_first_step else cast(old, dtype) * cast(momentum, dtype) + g * cast(1 - dampening, dtype)
            buffers.append(_unless(found_inf, m, old))
            g = g + m * cast(momentum, dtype) if nesterov else m
        params.append(_unless(found_inf, p - cast(lr, dtype).reshape(()) * g, param))
        new_grads.append(_unless(found_inf, unscaled, grad))
    return params, new_grads, buffers


def _adagrad(
    self: Any, grads: Any, state_sums: Any, state_steps: Any, *, lr: Any, lr_decay: Any, weight_decay: Any, eps: Any,
    maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> tuple[list[Any], ...]:  # fmt: skip
    params, new_grads, sums = [], [], []
    for param, grad, state_sum, step in zip(self, grads, state_sums, state_steps, strict=True):
        dtype = opmath(param.dtype)
        p, unscaled = cast(param, dtype), _unscaled(grad, grad_scale, dtype)
        g = -unscaled if maximize else unscaled
        if constant(weight_decay) != 0:
            g = g + p * cast(weight_decay, dtype)
        rate = cast(lr, dtype).reshape(()) / (1 + (cast(step, dtype) - 1) * cast(lr_decay, dtype))
        total = cast(state_sum, dtype) + g * g
        params.append(_unless(found_inf, p - rate * g / (jnp.sqrt(total) + cast(eps, dtype)), param))
        new_grads.append(_unless(found_inf, unscaled, grad))
        sums.append(_unless(found_inf, total, state_sum))
    return params, new_grads, sums


@lowers("aten._fused_adagrad")
def fused_adagrad(self: Any, grads: Any, state_sums: Any, state_steps: Any, **options: Any) -> Any:
    return *_adagrad(self, grads, state_sums, state_steps, **options), list(state_steps)


lowers("aten._fused_adagrad.tensor_lr")(_adagrad)


# ---- loss scaling ---------------------------------------------------------------------------------------------------


@lowers("aten._amp_foreach_non_finite_check_and_unscale")
def unscale(self: Any, found_inf: Any, inv_scale: Any) -> Any:
    bad = [jnp.any(~jnp.isfinite(x)) for x in self]
    found = jnp.where(jnp.any(jnp.stack(bad)), 1, found_inf) if bad else found_inf
    return [cast(x, opmath(x.dtype)) * cast(inv_scale, opmath(x.dtype)).reshape(()) for x in self], found


@lowers("aten._amp_update_scale")
def update_scale(
    self: Any, growth_tracker: Any, found_inf: Any, scale_growth_factor: Any, scale_backoff_factor: Any,
    growth_interval: int,
) -> Any:  # fmt: skip
    """Backs off after an overflow; grows after `growth_interval` steps without one, unless that overflows itself."""
    overflow, streak = found_inf != 0, growth_tracker + 1
    due = streak == growth_interval
    grown = self * cast(scale_growth_factor, self.dtype)
    grown = jnp.where(due & jnp.isfinite(grown), grown, self)
    scale = jnp.where(overflow, self * cast(scale_backoff_factor, self.dtype), grown)
    return scale, jnp.where(overflow | due, 0, streak)
