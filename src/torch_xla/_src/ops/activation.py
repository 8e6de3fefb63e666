"""Activations, their derivatives, and softmax. Formulas are those of PyTorch's CPU kernels, in the compute dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.pointwise import elementwise, operands
from torch_xla._src.ops.registry import OutSpec, lowers

Fn = Callable[..., Any]


# ---- without parameters ---------------------------------------------------------------------------------------------


def _hard_gate(x: jax.Array) -> jax.Array:
    return jnp.clip(x + 3, 0, 6) / 6


def _softplus(x: jax.Array) -> jax.Array:
    return jnp.logaddexp(x, 0)


def sigmoid_backward(grad: jax.Array, output: jax.Array) -> jax.Array:
    return grad * jnp.conj((1 - output) * output)


def tanh_backward(grad: jax.Array, output: jax.Array) -> jax.Array:
    return grad * jnp.conj(1 - output * output)


def _silu_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    gate = jax.nn.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


def _mish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    squashed = jnp.tanh(_softplus(x))
    return grad * (squashed + x * jax.nn.sigmoid(x) * (1 - squashed * squashed))


def _hardswish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(x <= -3, 0, jnp.where(x < 3, grad * (x / 3 + 0.5), grad))


def _hardsigmoid_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where((x > -3) & (x < 3), grad / 6, 0)


def _prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, weight * x)


_PLAIN: dict[str, Fn] = {
    "relu": lambda x: jnp.maximum(x, 0), "relu6": lambda x: jnp.clip(x, 0, 6), "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu, "mish": lambda x: x * jnp.tanh(_softplus(x)),
    "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6, "hardsigmoid": _hard_gate,
    "_prelu_kernel": _prelu,
    "sigmoid_backward": sigmoid_backward, "tanh_backward": tanh_backward, "silu_backward": _silu_backward,
    "mish_backward": _mish_backward, "hardswish_backward": _hardswish_backward,
    "hardsigmoid_backward": _hardsigmoid_backward,
}  # fmt: skip

for _name, _fn in _PLAIN.items():
    elementwise(_name, _fn)


@lowers("aten.log_sigmoid_forward", specs=True)
def log_sigmoid_forward(specs: list[OutSpec], self: Any) -> Any:
    """The buffer serves the CPU's backward only (ours recomputes): empty where the meta kernel says so."""
    (x,) = operands(specs[0], self)
    small = jnp.exp(-jnp.abs(x))
    buffer = small if specs[1].shape == x.shape else jnp.zeros(specs[1].shape, x.dtype)
    return jnp.minimum(x, 0) - jnp.log1p(small), buffer


@lowers("aten.log_sigmoid_backward", specs=True)
def log_sigmoid_backward(spec: OutSpec, grad_output: Any, self: Any, buffer: Any) -> Any:
    grad, x = operands(spec, grad_output, self)
    return grad * jax.nn.sigmoid(-x)


@lowers("aten._prelu_kernel_backward", specs=True)
def prelu_backward(specs: list[OutSpec], grad_output: Any, self: Any, weight: Any) -> Any:
    grad, x, weight = operands(specs[0], grad_output, self, weight)
    return jnp.where(x > 0, grad, weight * grad), jnp.where(x > 0, 0, x * grad)


# ---- with parameters (numbers or scalar slots) ----------------------------------------------------------------------


@lowers("aten.threshold", specs=True)
def threshold(spec: OutSpec, self: Any, threshold: Any, value: Any) -> Any:
    x, limit, value = operands(spec, self, threshold, value)
    return jnp.where(x <= limit, value, x)


@lowers("aten.threshold_backward", specs=True)
def threshold_backward(spec: OutSpec, grad_output: Any, self: Any, threshold: Any) -> Any:
    grad, x, limit = operands(spec, grad_output, self, threshold)
    return jnp.where(x <= limit, 0, grad)


@lowers("aten.hardtanh", specs=True)
def hardtanh(spec: OutSpec, self: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    x, low, high = operands(spec, self, min_val, max_val)
    return jnp.minimum(jnp.maximum(x, low), high)


@lowers("aten.hardtanh_backward", specs=True)
def hardtanh_backward(spec: OutSpec, grad_output: Any, self: Any, min_val: Any, max_val: Any) -> Any:
    grad, x, low, high = operands(spec, grad_output, self, min_val, max_val)
    return jnp.where((x <= low) | (x >= high), 0, grad)


@lowers("aten.leaky_relu", specs=True)
def leaky_relu(spec: OutSpec, self: Any, negative_slope: Any = 0.01) -> Any:
    x, slope = operands(spec, self, negative_slope)
    return jnp.where(x > 0, x, x * slope)


@lowers("aten.leaky_relu_backward", specs=True)
def leaky_relu_backward(
    spec: OutSpec, grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool = False
) -> Any:
    grad, x, slope = operands(spec, grad_output, self, negative_slope)
    return jnp.where(x > 0, grad, grad * slope)  # the result has the sign of the input


@lowers("aten.elu", specs=True)
def elu(spec: OutSpec, self: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    x, alpha, scale, input_scale = operands(spec, self, alpha, scale, input_scale)
    return jnp.where(x <= 0, jnp.expm1(x * input_scale) * (alpha * scale), x * scale)


@lowers("aten.elu_backward", specs=True)
def elu_backward(
    spec: OutSpec, grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> Any:
    grad, x, alpha, scale, input_scale = operands(spec, grad_output, self_or_result, alpha, scale, input_scale)
    bend = x + alpha * scale if is_result else alpha * scale * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad * input_scale * bend, grad * scale)


@lowers("aten.celu", specs=True)
def celu(spec: OutSpec, self: Any, alpha: Any = 1.0) -> Any:
    (alpha,) = operands(spec, alpha)
    return elu(spec, self, alpha, 1, 1 / alpha)


@lowers("aten.selu", specs=True)
def selu(spec: OutSpec, self: Any) -> Any:
    return elu(spec, self, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@lowers("aten.softplus", specs=True)
def softplus(spec: OutSpec, self: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    x, beta, limit = operands(spec, self, beta, threshold)
    return jnp.where(x * beta > limit, x, jnp.log1p(jnp.exp(x * beta)) / beta)


@lowers("aten.softplus_backward", specs=True)
def softplus_backward(spec: OutSpec, grad_output: Any, self: Any, beta: Any, threshold: Any) -> Any:
    grad, x, beta, limit = operands(spec, grad_output, self, beta, threshold)
    return jnp.where(x * beta > limit, grad, grad * jax.nn.sigmoid(x * beta))


@lowers("aten.softshrink", specs=True)
def softshrink(spec: OutSpec, self: Any, lambd: Any = 0.5) -> Any:
    x, lambd = operands(spec, self, lambd)
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))  # x * 0 keeps NaN


@lowers("aten.hardshrink", specs=True)
def hardshrink(spec: OutSpec, self: Any, lambd: Any = 0.5) -> Any:
    x, lambd = operands(spec, self, lambd)
    return jnp.where((x >= -lambd) & (x <= lambd), 0, x)


@lowers("aten.softshrink_backward", "aten.hardshrink_backward", specs=True)
def shrink_backward(spec: OutSpec, grad_output: Any, self: Any, lambd: Any) -> Any:
    grad, x, lambd = operands(spec, grad_output, self, lambd)
    return jnp.where((x >= -lambd) & (x <= lambd), 0, grad)


# ---- gelu, glu, rrelu -----------------------------------------------------------------------------------------------

_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715


@lowers("aten.gelu", specs=True)
def gelu(spec: OutSpec, self: Any, approximate: str = "none") -> Any:
    (x,) = operands(spec, self)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x)))
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@lowers("aten.gelu_backward", specs=True)
def gelu_backward(spec: OutSpec, grad_output: Any, self: Any, approximate: str = "none") -> Any:
    grad, x = operands(spec, grad_output, self)
    if approximate == "tanh":
        squashed = jnp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * x * x)
        return grad * 0.5 * (1 + squashed + x * (1 - squashed * squashed) * slope)
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * (1 + lax.erf(x * math.sqrt(0.5))) + x * density)


@lowers("aten.glu", specs=True)
def glu(spec: OutSpec, self: Any, dim: int = -1) -> Any:
    (x,) = operands(spec, self)
    value, gate = jnp.split(x, 2, axis=dim)
    return value * jax.nn.sigmoid(gate)


@lowers("aten.glu_backward", specs=True)
def glu_backward(spec: OutSpec, grad_output: Any, self: Any, dim: int) -> Any:
    grad, x = operands(spec, grad_output, self)
    value, gate = jnp.split(x, 2, axis=dim)
    gate = jax.nn.sigmoid(gate)
    return jnp.concatenate([grad * gate, grad * value * gate * (1 - gate)], axis=dim)


@lowers("aten.rrelu_with_noise_backward", specs=True)
def rrelu_backward(
    spec: OutSpec, grad_output: Any, self: Any, noise: Any, lower: Any, upper: Any, training: bool, self_is_result: bool
) -> Any:
    grad, x, noise, low, high = operands(spec, grad_output, self, noise, lower, upper)
    sampled = jnp.where(high - low > 1e-6, noise, (low + high) / 2)  # a point interval draws no noise
    return grad * sampled if training else jnp.where(x > 0, grad, grad * ((low + high) / 2))


# ---- softmax --------------------------------------------------------------------------------------------------------


def _along(fn: Fn) -> Fn:
    """Gives a 0-d operand the one dim that dim=0 and dim=-1 name."""

    def wrapped(dim: int, *xs: jax.Array) -> jax.Array:
        return fn(dim, *xs) if xs[0].ndim else fn(0, *(x.reshape(1) for x in xs)).reshape(())

    return wrapped


def _shifted(dim: int, x: jax.Array) -> jax.Array:
    return x - jnp.max(x, axis=dim, keepdims=True, initial=-jnp.inf)


@_along
def softmax(dim: int, x: jax.Array) -> jax.Array:
    weights = jnp.exp(_shifted(dim, x))
    return weights / jnp.sum(weights, axis=dim, keepdims=True)


@_along
def log_softmax(dim: int, x: jax.Array) -> jax.Array:
    x = _shifted(dim, x)
    return x - jnp.log(jnp.sum(jnp.exp(x), axis=dim, keepdims=True))


@_along
def _softmax_grad(dim: int, grad: jax.Array, output: jax.Array) -> jax.Array:
    grad = grad * output
    return grad - output * jnp.sum(grad, axis=dim, keepdims=True)


@_along
def _log_softmax_grad(dim: int, grad: jax.Array, output: jax.Array) -> jax.Array:
    return grad - jnp.exp(output) * jnp.sum(grad, axis=dim, keepdims=True)


@lowers("aten._softmax")
def softmax_(self: Any, dim: int, half_to_float: bool = False) -> Any:
    return softmax(dim, cast(self, opmath(self.dtype)))


@lowers("aten._log_softmax")
def log_softmax_(self: Any, dim: int, half_to_float: bool = False) -> Any:
    return log_softmax(dim, cast(self, opmath(self.dtype)))


@lowers("aten._safe_softmax", specs=True)
def safe_softmax(spec: OutSpec, self: Any, dim: int, dtype: Any = None) -> Any:
    """Softmax that gives zeros, not NaN, where everything is masked out."""
    (x,) = operands(spec, self)
    masked = jnp.all(x == -jnp.inf, axis=dim if x.ndim else None, keepdims=True)
    return jnp.where(masked, 0, softmax(dim, x))


@lowers("aten._softmax_backward_data")
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any = None) -> Any:
    dtype = opmath(output.dtype)
    return _softmax_grad(dim, cast(grad_output, dtype), cast(output, dtype))


@lowers("aten._log_softmax_backward_data")
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any = None) -> Any:
    dtype = opmath(output.dtype)
    return _log_softmax_grad(dim, cast(grad_output, dtype), cast(output, dtype))
