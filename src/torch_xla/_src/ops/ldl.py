"""LDL^T factorization of symmetric and Hermitian matrices, with the pivots of LAPACK's sytrf and hetrf.

The algorithm is Bunch and Kaufman's (Some Stable Methods for Calculating Inertia and Solving Symmetric Linear Systems,
1977): each step eliminates with a 1x1 or a 2x2 block on the diagonal. As in LAPACK, earlier columns
of L are not permuted.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import lowers

_ALPHA = (1 + math.sqrt(17)) / 8  # the threshold that bounds the growth of the elements


def _flip(x: jax.Array, hermitian: bool) -> jax.Array:
    return x.conj() if hermitian else x


def _size(x: jax.Array) -> jax.Array:
    """|x|; for complex numbers LAPACK compares |real| + |imaginary|."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if dtypes.is_complex(x) else jnp.abs(x)


def _swap(x: jax.Array, i: Any, j: Any, axis: int = 0) -> jax.Array:
    """`x` with slices i and j exchanged."""
    position = jnp.arange(x.shape[axis])
    return jnp.take(x, jnp.where(position == i, j, jnp.where(position == j, i, position)), axis)


# ---- factorization --------------------------------------------------------------------------------------------------


class _Factoring(NamedTuple):
    k: jax.Array  # the next column
    rest: jax.Array  # [n, n], what is left to factor in its rows and columns from k on, whole
    packed: jax.Array  # [n, n], D on the diagonal and below it, L below that
    pivots: jax.Array  # [n]
    info: jax.Array  # one plus the first column that was zero, or 0


def _pivot(rest: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Bunch and Kaufman's choice at column k: (row to exchange, is the block 2x2, is the column zero)."""
    position = jnp.arange(rest.shape[0])
    column = jnp.where(position > k, _size(rest[:, k]), 0)
    diagonal, largest, row = _size(rest[k, k]), jnp.max(column), jnp.argmax(column)
    in_row = jnp.max(jnp.where((position >= k) & (position != row), _size(rest[:, row]), 0))
    zero = jnp.maximum(diagonal, largest) == 0
    stay = zero | (diagonal >= _ALPHA * largest) | (diagonal * in_row >= _ALPHA * largest * largest)
    single = _size(rest[row, row]) >= _ALPHA * in_row
    return jnp.where(stay, k, row), ~stay & ~single, zero


def _eliminate(state: _Factoring, hermitian: bool) -> _Factoring:
    k, rest, packed, pivots, info = state
    n = rest.shape[0]
    position = jnp.arange(n)
    row, double, zero = _pivot(rest, k)
    last = jnp.minimum(k + double, n - 1)  # the last column of the block
    rest = _swap(_swap(rest, last, row, 0), last, row, 1)
    if hermitian:  # rounding leaves no imaginary part on the diagonal
        rest = jnp.where(position[:, None] == position, rest.real, rest)
    below = position > last
    first, second = (jnp.where(below, rest[:, j], 0) for j in (k, last))
    a, b, c = rest[k, k], rest[last, k], rest[last, last]
    # Columns of L: [first second] D^-1, where D = [[a, b'], [b, c]] b' = b or its conjugate; scaled by b, the largest.
    safe_b = jnp.where(double, b, 1)
    x, y = c / safe_b, a / _flip(safe_b, hermitian)
    scale = 1 / jnp.where(double, x * y - 1, 1)
    left = scale * (x * first - second) / _flip(safe_b, hermitian)
    right = scale * (y * second - first) / safe_b
    single = first / jnp.where(zero | double, 1, a)
    left, right = jnp.where(double, left, single), jnp.where(double, right, 0)
    update = left[:, None] * _flip(first, hermitian) + right[:, None] * _flip(second, hermitian)
    rest = jnp.where((below[:, None] & below) & ~zero, rest - update, rest)
    column = jnp.where(position == k, a, jnp.where((position == last) & double, b, left))
    packed = packed.at[:, k].set(column)
    packed = jnp.where(double, packed.at[:, last].set(jnp.where(position == last, c, right)), packed)
    number = jnp.where(double, -(row + 1), row + 1).astype(pivots.dtype)
    pivots = jnp.where((position == k) | (position == last), number, pivots)
    info = jnp.where(zero & (info == 0), k + 1, info).astype(info.dtype)
    return _Factoring(last + 1, rest, packed, pivots, info)


def _factor(a: jax.Array, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    n = a.shape[0]
    whole = jnp.tril(a) + _flip(jnp.tril(a, -1).T, hermitian)
    start = _Factoring(
        jnp.zeros((), jnp.int32), whole, jnp.zeros_like(a), jnp.zeros(n, jnp.int32), jnp.zeros((), jnp.int32)
    )
    end = lax.while_loop(lambda s: s.k < n, lambda s: _eliminate(s, hermitian), start)
    return jnp.tril(end.packed), end.pivots, end.info


@lowers("aten.linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(self: Any, *, hermitian: bool = False, check_errors: bool = False) -> tuple[Any, Any, Any]:
    batch, n = self.shape[:-2], self.shape[-1]
    if self.size == 0:
        return self, jnp.zeros((*batch, n), jnp.int32), jnp.zeros(batch, jnp.int32)
    hermitian = hermitian and dtypes.is_complex(self)
    outs = jax.vmap(lambda a: _factor(a, hermitian))(self.reshape(-1, n, n))
    packed, pivots, info = outs
    return packed.reshape(self.shape), pivots.reshape(*batch, n), info.reshape(batch)


# ---- solving --------------------------------------------------------------------------------------------------------


def _solve(packed: jax.Array, pivots: jax.Array, b: jax.Array, hermitian: bool) -> jax.Array:
    n = packed.shape[0]
    position = jnp.arange(n)

    def block(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The columns of L of the block that starts at k, whether it is 2x2, and its last column."""
        double = pivots[k] < 0
        last = jnp.minimum(k + double, n - 1)
        left, right = (jnp.where(position > last, packed[:, j], 0) for j in (k, last))
        return left, jnp.where(double, right, 0), double, last

    def forward(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        k, x = state
        left, right, double, last = block(k)
        x = _swap(x, last, jnp.abs(pivots[k]) - 1)
        x = x - left[:, None] * x[k] - right[:, None] * x[last]
        p, q, r = packed[k, k], packed[last, k], packed[last, last]
        safe = jnp.where(double, q, 1)  # [[p, q^H], [q, r]] scaled by q
        u, v = p / _flip(safe, hermitian), r / safe
        scale = 1 / jnp.where(double, u * v - 1, 1)
        first, second = x[k] / _flip(safe, hermitian), x[last] / safe
        rows = jnp.where(double, scale * (v * first - second), x[k] / p), scale * (u * second - first)
        x = x.at[k].set(rows[0])
        return last + 1, jnp.where(double, x.at[last].set(rows[1]), x)

    def backward(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        end, x = state  # the block ends at end - 1
        k = jnp.where(pivots[end - 1] < 0, end - 2, end - 1)
        left, right, double, last = block(k)
        rows = (x[k] - _flip(left, hermitian) @ x, x[last] - _flip(right, hermitian) @ x)
        x = x.at[k].set(rows[0])
        x = jnp.where(double, x.at[last].set(rows[1]), x)
        return k, _swap(x, last, jnp.abs(pivots[k]) - 1)

    start = (jnp.zeros((), jnp.int32), b)
    _, x = lax.while_loop(lambda s: s[0] < n, forward, start)
    return lax.while_loop(lambda s: s[0] > 0, backward, (jnp.asarray(n, jnp.int32), x))[1]


@lowers("aten.linalg_ldl_solve")
def linalg_ldl_solve(LD: Any, pivots: Any, B: Any, *, hermitian: bool = False) -> jax.Array:
    batch, n = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2]), LD.shape[-1]
    if B.size == 0 or LD.size == 0:
        return jnp.zeros((*batch, *B.shape[-2:]), B.dtype)
    hermitian = hermitian and dtypes.is_complex(LD)
    packed = jnp.broadcast_to(LD, (*batch, n, n)).reshape(-1, n, n)
    order = jnp.broadcast_to(pivots, (*batch, n)).reshape(-1, n)
    b = jnp.broadcast_to(B, (*batch, *B.shape[-2:])).reshape(-1, *B.shape[-2:])
    x = jax.vmap(lambda a, p, y: _solve(a, p, y, hermitian))(packed, order, b)
    return x.reshape(*batch, *B.shape[-2:])
