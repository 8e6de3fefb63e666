"""Special functions: error, gamma and Bessel families, the normal distribution, orthogonal polynomials.

The other Bessel functions and the Airy function are in bessel.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torch_xla._src.ops.dtypes import constant
from torch_xla._src.ops.pointwise import elementwise, operands
from torch_xla._src.ops.registry import OutSpec, lowers

Fn = Callable[..., Any]


def _entr(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 0, jnp.where(x < 0, -jnp.inf, -x * jnp.log(x)))


def digamma(x: jax.Array) -> jax.Array:
    """PyTorch gives an infinity of the opposite sign at +-0, where JAX gives NaN."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


def zeta(s: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz zeta. JAX wants q > 0: a negative q is shifted up term by term; poles at 0, -1, ...."""
    s, q = jnp.broadcast_arrays(s, q)
    pole = (q <= 0) & (q == jnp.floor(q))

    def add_term(state: tuple[Any, Any]) -> tuple[Any, Any]:
        head, shifted = state
        below = shifted < 0
        return jnp.where(below, head + lax.pow(shifted, -s), head), jnp.where(below, shifted + 1, shifted)

    start = (jnp.zeros_like(q), jnp.where(pole, 1, q))
    head, shifted = lax.while_loop(lambda state: jnp.any(state[1] < 0), add_term, start)
    return jnp.where(pole & (s > 1), jnp.inf, head + jsp.zeta(s, shifted))


def trigamma(x: jax.Array) -> jax.Array:
    """By reflection, recurrence and six terms of the asymptotic series (DLMF 5.15), in the steps of the CPU kernel.

    In float32 the reflection loses digits, and what is left of them is the CPU's only if they are lost in the same way.
    """
    reflected = x < 0.5
    sine = jnp.sin(jnp.asarray(math.pi, x.dtype) * x)
    start = jnp.where(reflected, -jnp.asarray(math.pi**2, x.dtype) / (sine * sine), 0)
    x = jnp.where(reflected, 1 - x, x)
    total = start
    for _ in range(6):
        total = total + 1 / (x * x)
        x = x + 1
    square = 1 / (x * x)
    total = total + (1 + 1 / (2 * x) + square * (1 / 6 - square * (1 / 30 - square / 42))) / x
    return jnp.where(reflected, -total, total)


_FUNCTIONS: dict[str, Fn] = {
    "erf": lax.erf, "erfc": lax.erfc, "erfinv": lax.erf_inv, "special_erfcx": jsp.erfcx,
    "lgamma": lax.lgamma, "digamma": digamma, "igamma": jsp.gammainc, "igammac": jsp.gammaincc,
    "i0": jsp.i0, "special_i0e": jsp.i0e, "special_i1": jsp.i1, "special_i1e": jsp.i1e,
    "special_modified_bessel_i0": jsp.i0, "special_modified_bessel_i1": jsp.i1,
    "special_spherical_bessel_j0": lambda x: jnp.where(jnp.isinf(x), 0, jnp.sinc(x / jnp.pi)),
    "special_zeta": zeta, "special_ndtri": jsp.ndtri, "special_log_ndtr": jsp.log_ndtr,
    "special_entr": _entr, "sinc": jnp.sinc,
}  # fmt: skip

for _name, _fn in _FUNCTIONS.items():
    elementwise(_name, _fn)


@lowers("aten.polygamma", specs=True)
def polygamma(spec: OutSpec, n: int, self: Any) -> Any:
    (x,) = operands(spec, self)
    if n == 0:
        return digamma(x)
    if n == 1:
        return trigamma(x)
    return (-1.0) ** (n + 1) * math.gamma(n + 1) * zeta(jnp.full_like(x, n + 1), x)


@lowers("aten.mvlgamma", specs=True)
def mvlgamma(spec: OutSpec, self: Any, p: int) -> Any:
    (x,) = operands(spec, self)
    return sum((lax.lgamma(x - j / 2) for j in range(p)), jnp.full_like(x, p * (p - 1) / 4 * math.log(math.pi)))


# ---- logit ----------------------------------------------------------------------------------------------------------


def _absent(eps: Any) -> bool:
    number = constant(eps)
    return eps is None or (number is not None and number < 0)


@lowers("aten.logit", specs=True)
def logit(spec: OutSpec, self: Any, eps: Any = None) -> Any:
    (x,) = operands(spec, self)
    if not _absent(eps):
        (low,) = operands(spec, eps)
        x = jnp.minimum(jnp.maximum(x, low), 1 - low)
    return jnp.log(x / (1 - x))


@lowers("aten.logit_backward", specs=True)
def logit_backward(spec: OutSpec, grad_output: Any, self: Any, eps: Any = None) -> Any:
    grad, x, low = operands(spec, grad_output, self, 0.0 if _absent(eps) else eps)
    outside = jnp.nan if _absent(eps) else 0.0
    return jnp.where((x < low) | (x > 1 - low), outside, grad / (x * (1 - x)))


# ---- polynomials ----------------------------------------------------------------------------------------------------
# Each is the recurrence p0 = 1, p1 = first(x), p[k + 1] = step(k, x, p[k], p[k - 1]), run to the largest degree asked.


def _chebyshev_step(k: Any, x: Any, p: Any, q: Any) -> Any:
    return 2 * x * p - q


_RECURRENCES: dict[str, tuple[Fn, Fn]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev_step),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev_step),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev_step),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev_step),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}


def _polynomial(first: Fn, step: Fn, x: jax.Array, n: jax.Array) -> jax.Array:
    x, n = jnp.broadcast_arrays(x, n)
    degree = n.astype(np.int64)

    def advance(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, p, q, result = state
        p, q = step(k.astype(x.dtype), x, p, q), p
        return k + 1, p, q, jnp.where(degree == k + 1, p, result)

    one, linear = jnp.ones_like(x), first(x)
    low = jnp.where(degree < 0, 0, jnp.where(degree == 0, one, linear))
    state = (jnp.asarray(1, np.int64), linear, one, low)
    return lax.while_loop(lambda s: s[0] < jnp.max(degree, initial=0), advance, state)[3]


def _register_polynomial(name: str, first: Fn, step: Fn, shifted: bool = False) -> None:
    def polynomial(x: jax.Array, n: jax.Array) -> jax.Array:
        return _polynomial(first, step, 2 * x - 1 if shifted else x, n)

    elementwise(f"special_{'shifted_' if shifted else ''}{name}", polynomial)


for _name, (_first, _step) in _RECURRENCES.items():
    _register_polynomial(_name, _first, _step)
    if _step is _chebyshev_step:
        _register_polynomial(_name, _first, _step, shifted=True)
