"""Elementwise arithmetic, comparison, logic and bits.

Note [Compute dtype]: the meta kernel has already applied PyTorch's promotion, so for most ops the dtype to compute in
is that of the output (`spec`), widened to float32 for the 16-bit floats. `operands` casts to it; `lower` rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops.dtypes import cast, constant, is_complex, is_floating, is_integral, opmath, promote
from torch_xla._src.ops.exact import quotient
from torch_xla._src.ops.registry import OutSpec, lowers

Fn = Callable[..., Any]


def operands(spec: OutSpec, *xs: Any) -> list[jax.Array]:
    """Arrays and numbers in the compute dtype of an op with output `spec`. See Note [Compute dtype]."""
    dtype = opmath(spec.dtype)
    return [cast(x, dtype) for x in xs]


# Note [Rounded scalars]
# With 16-bit floats most CPU kernels first round a number (or a 0-d float32 tensor) to the 16-bit dtype, as promotion
# says; mul, div, addcmul, addcdiv, lerp and the activations use it in float32. x + 0.7 and x * 0.7 so see two numbers.


def _rounded_to(dtype: Any, x: Any) -> jax.Array:
    """`x` in the compute dtype of `dtype` with a value that `dtype` has."""
    wide = cast(x, opmath(dtype))
    if wide.dtype == dtype or (isinstance(x, jax.Array) and x.dtype == dtype):
        return wide
    limits = jnp.finfo(dtype)
    return lax.reduce_precision(wide, limits.nexp, limits.nmant)  # XLA may drop a pair of conversions, never this


def rounded_operands(spec: OutSpec, *xs: Any) -> list[jax.Array]:
    """As `operands`, for the kernels that round their scalars. See Note [Rounded scalars]."""
    return [_rounded_to(spec.dtype, x) for x in xs]


def elementwise(name: str, fn: Fn) -> None:
    """Registers `fn` as op `name` of any arity, given its operands in the compute dtype, scalars rounded."""
    lowers(f"aten.{name}", specs=True)(lambda spec, *xs: fn(*rounded_operands(spec, *xs)))


# ---- unary ----------------------------------------------------------------------------------------------------------


def _exp2(x: jax.Array) -> jax.Array:
    return jnp.exp(x * math.log(2)) if is_complex(x) else lax.exp2(x)


def sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1, and 0 for NaN."""
    if x.dtype == np.dtype(bool):
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _sgn(x: jax.Array) -> jax.Array:
    if not is_complex(x):
        return sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


def _rsqrt(x: jax.Array) -> jax.Array:
    return 1 / jnp.sqrt(x) if is_complex(x) else lax.rsqrt(x)


_UNARY: dict[str, Fn] = {
    "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh, "atan": jnp.arctan,
    "atanh": jnp.arctanh, "cos": jnp.cos, "cosh": jnp.cosh, "sin": jnp.sin, "sinh": jnp.sinh, "tan": jnp.tan,
    "tanh": jnp.tanh, "exp": jnp.exp, "exp2": _exp2, "expm1": jnp.expm1, "log": jnp.log, "log10": jnp.log10,
    "log1p": jnp.log1p, "log2": jnp.log2, "sqrt": jnp.sqrt, "rsqrt": _rsqrt, "reciprocal": lambda x: 1 / x,
    "neg": jnp.negative, "sign": sign, "sgn": _sgn, "positive": lambda x: x, "square": lambda x: x * x,
    "deg2rad": lambda x: x * (math.pi / 180), "rad2deg": lambda x: x * (180 / math.pi),
    "bitwise_not": jnp.bitwise_not, "frac": lambda x: x - jnp.trunc(x),
}  # fmt: skip

for _name, _fn in _UNARY.items():
    elementwise(_name, _fn)

for _name, _fn in {"ceil": lax.ceil, "floor": lax.floor, "trunc": jnp.trunc}.items():
    elementwise(_name, lambda x, fn=_fn: fn(x) if is_floating(x) else x)


@lowers("aten.abs")
def absolute(self: Any) -> Any:
    return jnp.abs(cast(self, opmath(self.dtype)))


@lowers("aten.round")
def round_(self: Any, *, decimals: int = 0) -> Any:
    if not is_floating(self):
        return self
    x = cast(self, opmath(self.dtype))
    if decimals == 0:
        return jnp.round(x)
    scale = x.dtype.type(10.0 ** abs(decimals))
    return jnp.round(x * scale) / scale if decimals > 0 else jnp.round(x / scale) * scale


@lowers("aten.logical_not")
def logical_not(self: Any) -> Any:
    return self == 0


# ---- predicates -----------------------------------------------------------------------------------------------------


def _predicate(name: str, fn: Fn, of_integers: bool = False) -> None:
    def predicate(self: Any) -> Any:
        return jnp.full(self.shape, of_integers) if is_integral(self) else fn(self)

    lowers(f"aten.{name}")(predicate)


for _name, _fn in {"isnan": jnp.isnan, "isinf": jnp.isinf, "isposinf": jnp.isposinf, "isneginf": jnp.isneginf}.items():
    _predicate(_name, _fn)
_predicate("isfinite", jnp.isfinite, of_integers=True)


@lowers("aten.signbit")
def signbit(self: Any) -> Any:
    return jnp.signbit(self) if is_floating(self) else self < 0


# ---- add, multiply, divide ------------------------------------------------------------------------------------------


def scaled(x: jax.Array, factor: Any) -> jax.Array:
    """`x * factor`, without the multiplication where the factor is known to be 1."""
    number = constant(factor)
    return x if number is not None and number == 1 else x * cast(factor, x.dtype)


def _alpha(spec: OutSpec, alpha: Any) -> Any:
    return alpha if constant(alpha) == 1 else _rounded_to(spec.dtype, alpha)


@lowers("aten.add", specs=True)
def add(spec: OutSpec, self: Any, other: Any, alpha: Any = 1) -> Any:
    a, b = rounded_operands(spec, self, other)
    return jnp.add(a, scaled(b, _alpha(spec, alpha)))  # booleans add as `or`


@lowers("aten.sub", specs=True)
def sub(spec: OutSpec, self: Any, other: Any, alpha: Any = 1) -> Any:
    a, b = rounded_operands(spec, self, other)
    return a - scaled(b, _alpha(spec, alpha))


@lowers("aten.rsub", specs=True)
def rsub(spec: OutSpec, self: Any, other: Any, alpha: Any = 1) -> Any:
    a, b = rounded_operands(spec, self, other)
    return b - scaled(a, _alpha(spec, alpha))


@lowers("aten.mul", specs=True)
def mul(spec: OutSpec, self: Any, other: Any) -> Any:
    return jnp.multiply(*operands(spec, self, other))


def floor_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """Python's floor division; exact for floats, where floor(a / b) would round up across an integer."""
    a, b = jnp.broadcast_arrays(a, b)
    if not is_floating(a):
        return jnp.floor_divide(a, b)
    rest = lax.rem(a, b)
    ratio = (a - rest) / b
    ratio = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), ratio - 1, ratio)
    floored = lax.floor(ratio)
    floored = jnp.where(ratio - floored > 0.5, floored + 1, floored)
    return jnp.where(b == 0, a / b, jnp.where(ratio != 0, floored, jnp.copysign(jnp.zeros_like(a), a / b)))


def _trunc_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.trunc(a / b) if is_floating(a) else lax.div(a, b)


def _ratio(a: jax.Array, b: jax.Array, other: Any) -> jax.Array:
    return a / b if isinstance(other, jax.Array) and other.shape == a.shape else quotient(a, other)


@lowers("aten.div", "aten.true_divide", specs=True)
def div(spec: OutSpec, self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    a, b = jnp.broadcast_arrays(*operands(spec, self, other))
    if rounding_mode is None:
        return _ratio(a, b, other)
    if rounding_mode == "trunc" and is_floating(a):
        return jnp.trunc(_ratio(a, b, other))
    return floor_divide(a, b) if rounding_mode == "floor" else _trunc_divide(a, b)


@lowers("aten.addcmul", specs=True)
def addcmul(spec: OutSpec, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    x, a, b = operands(spec, self, tensor1, tensor2)
    return x + scaled(a, value) * b


@lowers("aten.addcdiv", specs=True)
def addcdiv(spec: OutSpec, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    x, a, b = operands(spec, self, tensor1, tensor2)
    return x + scaled(a, value) / b


def lerp(start: jax.Array, end: jax.Array, weight: jax.Array) -> jax.Array:
    """Interpolates from whichever end is nearer, so that weights 0 and 1 give the ends exactly."""
    step = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * step, end - step * (1 - weight))


@lowers("aten.lerp", specs=True)
def lerp_(spec: OutSpec, self: Any, end: Any, weight: Any) -> Any:
    start, end = operands(spec, self, end)
    number = constant(weight)
    if number is None or isinstance(number, complex):
        return lerp(start, end, *operands(spec, weight))
    step = end - start
    return start + step * number if abs(number) < 0.5 else end - step * (1 - number)


# ---- other binary arithmetic ----------------------------------------------------------------------------------------


def _xlog(log: Fn) -> Fn:
    def xlogy(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where((x == 0) & ~jnp.isnan(y), 0, x * log(y))

    return xlogy


def logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    if is_complex(a):  # ordered by real part; the imaginary part is that of the larger, not wrapped to (-pi, pi]
        first = jnp.real(a) >= jnp.real(b)
        high, low = jnp.where(first, a, b), jnp.where(first, b, a)
        return jnp.where(jnp.real(high) == -jnp.inf, high, high + jnp.log1p(jnp.exp(low - high)))
    high, gap = jnp.maximum(a, b), -jnp.abs(a - b)
    return jnp.where(jnp.isinf(a) & (a == b), a, high + jnp.log1p(jnp.exp(gap)))


def _logaddexp2(a: jax.Array, b: jax.Array) -> jax.Array:
    high, gap = jnp.maximum(a, b), -jnp.abs(a - b)
    return jnp.where(jnp.isinf(a) & (a == b), a, high + jnp.log1p(_exp2(gap)) / math.log(2))


def _heaviside(x: jax.Array, at_zero: jax.Array) -> jax.Array:
    return jnp.where(x == 0, at_zero, (x > 0).astype(x.dtype))


def _broadcast(fn: Fn) -> Fn:
    """lax functions want equal shapes."""
    return lambda *xs: fn(*jnp.broadcast_arrays(*xs))


_BINARY: dict[str, Fn] = {
    "maximum": jnp.maximum, "minimum": jnp.minimum, "fmax": jnp.fmax, "fmin": jnp.fmin,
    "remainder": jnp.remainder, "fmod": _broadcast(lax.rem), "floor_divide": floor_divide,
    "atan2": jnp.arctan2, "hypot": jnp.hypot, "copysign": jnp.copysign,
    "xlogy": _xlog(jnp.log), "special_xlog1py": _xlog(jnp.log1p),
    "logaddexp": logaddexp, "logaddexp2": _logaddexp2, "heaviside": _heaviside,
    "gcd": jnp.gcd, "lcm": jnp.lcm, "ldexp": lambda x, n: x * lax.pow(jnp.full_like(n, 2), n),
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor,
    "__and__": jnp.bitwise_and, "__or__": jnp.bitwise_or, "__xor__": jnp.bitwise_xor,
}  # fmt: skip

for _name, _fn in _BINARY.items():
    elementwise(_name, _fn)

# XLA reads the shift as unsigned and shifts everything out beyond the width, which is what PyTorch defines too.
_SHIFTS = {"left_shift": lax.shift_left, "right_shift": lax.shift_right_arithmetic}
for _name, _fn in _SHIFTS.items():
    elementwise(f"bitwise_{_name}", _broadcast(_fn))
elementwise("__lshift__", lambda a, b: a * lax.exp2(b) if is_floating(a) else _broadcast(lax.shift_left)(a, b))
elementwise(
    "__rshift__", lambda a, b: a / lax.exp2(b) if is_floating(a) else _broadcast(lax.shift_right_arithmetic)(a, b)
)


@lowers("aten.nextafter")
def nextafter(self: Any, other: Any) -> Any:
    return jnp.nextafter(self, other)  # the neighbour in the dtype itself: never widened


@lowers("aten.frexp")
def frexp(self: Any) -> Any:
    return jnp.frexp(cast(self, opmath(self.dtype)))


# ---- powers ---------------------------------------------------------------------------------------------------------

_POWERS: dict[float, Fn] = {
    0: jnp.ones_like, 1: lambda x: x, 2: lambda x: x * x, 3: lambda x: x * x * x,
    0.5: jnp.sqrt, -0.5: _rsqrt, -1: lambda x: 1 / x, -2: lambda x: 1 / (x * x),
}  # fmt: skip


def _integer_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Wraps as C does; a negative exponent gives the integer part of the reciprocal power."""

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        result, square, left = state
        return jnp.where(left & 1, result * square, result), square * square, left >> 1

    base, exponent = jnp.broadcast_arrays(base, exponent)
    start = (jnp.ones_like(base), base, jnp.maximum(exponent, 0))
    result, _, _ = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)
    if jnp.issubdtype(base.dtype, jnp.unsignedinteger):
        return result
    odd = jnp.where(exponent & 1, -1, 1).astype(base.dtype)
    tiny = jnp.where(base == 1, 1, jnp.where(base == -1, odd, 0)).astype(base.dtype)
    return jnp.where(exponent < 0, tiny, result)


@lowers("aten.pow", specs=True)
def pow_(spec: OutSpec, self: Any, exponent: Any) -> Any:
    number = constant(exponent)
    base, power = rounded_operands(spec, self, exponent)
    if is_integral(base):
        return lax.integer_pow(base, number) if isinstance(number, int) else _integer_power(base, power)
    if number in _POWERS:
        return _POWERS[number](base)
    return jnp.power(*jnp.broadcast_arrays(base, power))


# ---- comparison and logic -------------------------------------------------------------------------------------------


def _comparison(name: str, fn: Fn) -> None:
    def compare(self: Any, other: Any) -> Any:
        dtype = promote(self, other)
        return fn(_rounded_to(dtype, self), _rounded_to(dtype, other))

    lowers(f"aten.{name}")(compare)


_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
for _name, _fn_name in _COMPARISONS.items():
    _comparison(_name, getattr(jnp, _fn_name))


def _logical(name: str, fn: Fn) -> None:
    lowers(f"aten.{name}")(lambda self, other: fn(cast(self, bool), cast(other, bool)))


_logical("logical_and", jnp.logical_and)
_logical("logical_or", jnp.logical_or)
_logical("logical_xor", jnp.logical_xor)


# ---- selection ------------------------------------------------------------------------------------------------------


@lowers("aten.where.self", specs=True)
def where(spec: OutSpec, condition: Any, self: Any, other: Any) -> Any:
    return jnp.where(cast(condition, bool), cast(self, spec.dtype), cast(other, spec.dtype))


@lowers("aten.masked_fill")
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    return jnp.where(cast(mask, bool), cast(value, self.dtype), self)


@lowers("aten.clamp", "aten.clip", specs=True)
def clamp(spec: OutSpec, self: Any, min: Any = None, max: Any = None) -> Any:
    (x,) = operands(spec, self)
    if min is not None:
        x = jnp.maximum(x, cast(min, x.dtype))
    return x if max is None else jnp.minimum(x, cast(max, x.dtype))


@lowers("aten.clamp_min", specs=True)
def clamp_min(spec: OutSpec, self: Any, min: Any) -> Any:
    return clamp(spec, self, min=min)


@lowers("aten.clamp_max", specs=True)
def clamp_max(spec: OutSpec, self: Any, max: Any) -> Any:
    return clamp(spec, self, max=max)


@lowers("aten.nan_to_num")
def nan_to_num(self: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if is_integral(self):
        return self
    if is_complex(self):
        return lax.complex(*(nan_to_num(part, nan, posinf, neginf) for part in (jnp.real(self), jnp.imag(self))))
    limits = jnp.finfo(self.dtype)
    high = limits.max if posinf is None else cast(posinf, self.dtype)
    low = limits.min if neginf is None else cast(neginf, self.dtype)
    x = jnp.where(jnp.isnan(self), cast(0.0 if nan is None else nan, self.dtype), self)
    return jnp.where(jnp.isposinf(self), high, jnp.where(jnp.isneginf(self), low, x))
