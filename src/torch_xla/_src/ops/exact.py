"""Division by a broadcast operand that stays a division.

XLA turns `x / c`, for a constant or anything else that is broadcast, into `x * (1 / c)`, which is off by one unit in
the last place for many x: 49 / 49 is not 1, the mean of 49 ones is not 1, and `floor` of such a quotient is off by one.
PyTorch's CPU kernels divide.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_xla._src.ops.dtypes import cast, constant


def quotient(x: jax.Array, divisor: Any) -> jax.Array:
    """`x / divisor` for a floating `x` and a number, a slot or a smaller array, correctly rounded."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x / divisor
    number = constant(divisor)
    if number is not None and (number == 0 or not math.isfinite(number) or abs(math.frexp(number)[0]) == 0.5):
        return x / jnp.asarray(divisor, x.dtype)  # exact in either form
    # The divisor depends on x for the compiler, though its value does not: max(c, -|x|) is c, or NaN where x is.
    divisor, size = cast(divisor, x.dtype), jnp.abs(x)
    if number is not None:
        return x / (jnp.maximum(divisor, -size) if number > 0 else jnp.minimum(divisor, size))
    return x / jnp.where(divisor > 0, jnp.maximum(divisor, -size), jnp.minimum(divisor, size))
