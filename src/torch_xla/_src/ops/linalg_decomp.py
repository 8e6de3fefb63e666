"""Factorizations, solvers, determinants and distances."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.norm import norm_along
from torch_xla._src.ops.registry import OutSpec, lowers

# Note [Info of factorizations]
# LAPACK reports the first pivot that failed. XLA does not, so it is found in what XLA returns. The check that raises
# (`linalg.cholesky` against `linalg.cholesky_ex`) is an op of its own that reads `info` on the host.


def _adjoint(x: jax.Array) -> jax.Array:
    return x.conj().mT if dtypes.is_complex(x) else x.mT


def _broadcast_batch(*arrays: jax.Array) -> list[jax.Array]:
    """Matrices with their batch dims broadcast against each other."""
    batch = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    return [jnp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in arrays]


def _eye_like(x: jax.Array, n: int) -> jax.Array:
    return jnp.broadcast_to(jnp.eye(n, dtype=x.dtype), (*x.shape[:-2], n, n))


def _first(failed: jax.Array) -> jax.Array:
    """One plus the position of the first True along the last dim, 0 if there is none."""
    if failed.shape[-1] == 0:
        return jnp.zeros(failed.shape[:-1], jnp.int32)
    return jnp.where(failed.any(-1), jnp.argmax(failed, -1) + 1, 0).astype(jnp.int32)


# ---------------------------------------------------------------------------------------------------------------------
# Triangular systems


def _solve_triangular(a: Any, b: Any, upper: bool, left: bool = True, unit: bool = False, adjoint: bool = False) -> Any:
    """X with A X = B (or X A = B); `upper` says which triangle of A holds it before `adjoint` is taken."""
    if 0 in a.shape or 0 in b.shape:
        return jnp.zeros_like(b)
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unit, transpose_a=adjoint, conjugate_a=adjoint
    )


@lowers("aten.linalg_solve_triangular")
def linalg_solve_triangular(
    self: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    a, b = self, B
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
    return _solve_triangular(a, b, upper, left, unitriangular)


@lowers("aten.triangular_solve")
def triangular_solve(
    self: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    b, a = _broadcast_batch(self, A)
    x = a.mT if transpose else a
    return _solve_triangular(x, b, upper != transpose, unit=unitriangular), a


# ---------------------------------------------------------------------------------------------------------------------
# Cholesky


def _cholesky(a: jax.Array, upper: bool) -> jax.Array:
    """The factor from the triangle of `a` that PyTorch reads, which is the one it writes."""
    if 0 in a.shape:
        return jnp.zeros_like(a)
    lower = lax.linalg.cholesky(_adjoint(a) if upper else a, symmetrize_input=False)
    return _adjoint(lower) if upper else lower


def _failing_minor(a: jax.Array, upper: bool) -> jax.Array:
    """Order of the first leading minor that is not positive definite, by elimination without pivots; 0 if none."""
    lower = jnp.tril(_adjoint(a) if upper else a)
    n = a.shape[-1]

    def eliminate(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        rest, info = state
        pivot = jnp.take(jnp.take(rest, k, -1), k, -1).real
        info = jnp.where((info == 0) & ~(pivot > 0), k + 1, info).astype(jnp.int32)
        column = jnp.where(jnp.arange(n) > k, jnp.take(rest, k, -1), 0)
        update = column[..., :, None] * column[..., None, :].conj() / pivot[..., None, None]
        return rest - update.astype(rest.dtype), info

    return lax.fori_loop(0, n, eliminate, (lower, jnp.zeros(a.shape[:-2], jnp.int32)))[1]


@lowers("aten.linalg_cholesky_ex")
def linalg_cholesky_ex(self: Any, *, upper: bool = False, check_errors: bool = False) -> tuple[Any, Any]:
    factor = _cholesky(self, upper)
    if self.size == 0:
        return factor, jnp.zeros(self.shape[:-2], jnp.int32)
    # XLA fills a failed factor with NaN. The elimination that finds the minor runs only then.
    failed = jnp.isnan(factor).any((-2, -1))
    none = jnp.zeros(failed.shape, jnp.int32)
    info = lax.cond(failed.any(), lambda: _failing_minor(self, upper), lambda: none)
    return factor, info


@lowers("aten.cholesky")
def cholesky(self: Any, upper: bool = False) -> jax.Array:
    return _cholesky(self, upper)


def _cholesky_solve(factor: Any, b: Any, upper: bool) -> Any:
    """X with A X = B, where A is L L^H or U^H U."""
    half = _solve_triangular(factor, b, upper, adjoint=upper)
    return _solve_triangular(factor, half, upper, adjoint=not upper)


@lowers("aten.cholesky_solve")
def cholesky_solve(self: Any, input2: Any, upper: bool = False) -> jax.Array:
    b, factor = _broadcast_batch(self, input2)
    return _cholesky_solve(factor, b, upper)


@lowers("aten.cholesky_inverse")
def cholesky_inverse(self: Any, upper: bool = False) -> jax.Array:
    return _cholesky_solve(self, _eye_like(self, self.shape[-1]), upper)


# ---------------------------------------------------------------------------------------------------------------------
# LU


def _lu(a: jax.Array) -> tuple[Any, Any, Any]:
    """LU packed in one matrix, LAPACK's pivots (counted from one), and the permutation of the rows."""
    if a.size == 0:
        k = min(a.shape[-2:])
        pivots = jnp.broadcast_to(jnp.arange(1, k + 1, dtype=jnp.int32), (*a.shape[:-2], k))
        return a, pivots, jnp.broadcast_to(jnp.arange(a.shape[-2], dtype=jnp.int32), a.shape[:-1])
    packed, pivots, permutation = lax.linalg.lu(a)
    return packed, pivots + 1, permutation


def _lu_info(packed: jax.Array) -> jax.Array:
    return _first(jnp.diagonal(packed, axis1=-2, axis2=-1) == 0)


def _permutation(pivots: jax.Array, rows: int) -> jax.Array:
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


def _permute_rows(b: jax.Array, permutation: jax.Array) -> jax.Array:
    return jnp.take_along_axis(b, permutation[..., None], -2)


def _lu_solve(packed: Any, permutation: Any, b: Any, adjoint: bool = False) -> Any:
    """X with A X = B or A^H X = B, where A[permutation] = L U."""
    if not adjoint:
        half = _solve_triangular(packed, _permute_rows(b, permutation), upper=False, unit=True)
        return _solve_triangular(packed, half, upper=True)
    half = _solve_triangular(packed, b, upper=True, adjoint=True)
    half = _solve_triangular(packed, half, upper=False, unit=True, adjoint=True)
    return _permute_rows(half, jnp.argsort(permutation, -1))


def _split_lu(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    m, n = packed.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(packed[..., :, :k], -1) + jnp.eye(m, k, dtype=packed.dtype)
    return lower, jnp.triu(packed[..., :k, :])


def _permutation_matrix(permutation: jax.Array, dtype: Any) -> jax.Array:
    """P with A = P L U."""
    return (permutation[..., None, :] == jnp.arange(permutation.shape[-1])[:, None]).astype(dtype)


@lowers("aten.linalg_lu_factor_ex")
def linalg_lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> tuple[Any, Any, Any]:
    packed, pivots, _ = _lu(A)
    return packed, pivots, _lu_info(packed)


@lowers("aten.linalg_lu")
def linalg_lu(A: Any, *, pivot: bool = True) -> tuple[Any, Any, Any]:
    packed, _, permutation = _lu(A)
    return _permutation_matrix(permutation, A.dtype), *_split_lu(packed)


@lowers("aten.lu_unpack")
def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Any, Any, Any]:
    blank = jnp.zeros((0,), LU_data.dtype)
    lower, upper = _split_lu(LU_data) if unpack_data else (blank, blank)
    if not unpack_pivots:
        return blank, lower, upper
    return _permutation_matrix(_permutation(LU_pivots, LU_data.shape[-2]), LU_data.dtype), lower, upper


@lowers("aten.linalg_lu_solve")
def linalg_lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> jax.Array:
    batch = np.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    packed, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (LU, B))
    permutation = _permutation(jnp.broadcast_to(pivots, (*batch, pivots.shape[-1])), packed.shape[-1])
    if left:
        return _lu_solve(packed, permutation, b, adjoint)
    return _adjoint(_lu_solve(packed, permutation, _adjoint(b), not adjoint))


# ---------------------------------------------------------------------------------------------------------------------
# Solving and determinants by LU

# Note [Which matrix was factored]
# The LU that `_linalg_det` and `_linalg_slogdet` hand to their backward is that of A^T where A is real and contiguous,
# else of A, and the backward formulas (C++) decide by the same test which one they hold. Strides do not reach a
# lowering: it takes A as contiguous, and the device must make it so before it calls these two.


def _factored(a: jax.Array) -> tuple[Any, Any]:
    """LU and pivots of the matrix that the backward expects. See Note [Which matrix was factored]."""
    packed, pivots, _ = _lu(a if dtypes.is_complex(a) else a.mT)
    return packed, pivots


@functools.cache
def _solve_factorises_the_transpose() -> bool:
    """Whether this torch's derivative of `solve` takes the LU factors of a contiguous real matrix as its transpose's.

    That has changed between releases, so the CPU kernel is asked.
    """
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
    factors = torch.ops.aten._linalg_solve_ex(matrix, torch.ones(2, device="cpu"))[1]
    return factors[0, 0].item() == 2.0  # the pivot of the transpose's first column; of the matrix's it is 3


@lowers("aten._linalg_solve_ex")
def linalg_solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> tuple[Any, Any, Any, Any]:
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    packed, pivots, _ = _lu(A)
    b = B[..., None] if vector else B
    x = linalg_lu_solve(packed, pivots, b, left=left or vector)
    if _solve_factorises_the_transpose() and not dtypes.is_complex(A):
        packed, pivots, _ = _lu(A.mT)
    return x[..., 0] if vector else x, packed, pivots, _lu_info(packed)


@lowers("aten.linalg_inv_ex")
def linalg_inv_ex(A: Any, *, check_errors: bool = False) -> tuple[Any, Any]:
    packed, _, permutation = _lu(A)
    return _lu_solve(packed, permutation, _eye_like(A, A.shape[-1])), _lu_info(packed)


def _swap_sign(pivots: jax.Array, dtype: Any) -> jax.Array:
    """Sign of the permutation that the pivots describe."""
    swaps = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1), -1)
    return jnp.where(swaps % 2 == 1, -1, 1).astype(dtype)


@lowers("aten._linalg_det")
def linalg_det(A: Any) -> tuple[Any, Any, Any]:
    packed, pivots = _factored(A)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    return _swap_sign(pivots, A.dtype) * jnp.prod(diagonal, -1), packed, pivots


@lowers("aten._linalg_slogdet")
def linalg_slogdet(A: Any) -> tuple[Any, Any, Any, Any]:
    packed, pivots = _factored(A)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sign = _swap_sign(pivots, A.dtype) * jnp.prod(jnp.sign(diagonal), -1)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), -1), packed, pivots


# ---------------------------------------------------------------------------------------------------------------------
# Orthogonal factorizations and spectra


def _empty_q(spec: OutSpec, dtype: Any) -> jax.Array:
    """The orthogonal factor of a matrix without elements: the identity, as far as it goes."""
    if len(spec.shape) < 2:
        return jnp.zeros(spec.shape, dtype)
    return jnp.broadcast_to(jnp.eye(spec.shape[-2], spec.shape[-1], dtype=dtype), spec.shape)


@lowers("aten.linalg_qr", specs=True)
def linalg_qr(specs: Any, A: Any, mode: str = "reduced") -> tuple[Any, Any]:
    if A.size == 0:
        return _empty_q(specs[0], A.dtype), jnp.zeros(specs[1].shape, A.dtype)
    q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return jnp.zeros((0,), A.dtype) if mode == "r" else q, r


@lowers("aten.geqrf")
def geqrf(self: Any) -> tuple[Any, Any]:
    """R with the Householder vectors below it, and their factors, as LAPACK packs them."""
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    packed, tau = jnp.linalg.qr(self, mode="raw")
    return packed.mT, tau


@lowers("aten.linalg_householder_product")
def linalg_householder_product(input: Any, tau: Any) -> jax.Array:
    if 0 in input.shape:
        return input
    if tau.shape[-1] == 0:
        return jnp.broadcast_to(jnp.eye(input.shape[-2], input.shape[-1], dtype=input.dtype), input.shape)
    return lax.linalg.householder_product(input, tau)


@lowers("aten.ormqr")
def ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> jax.Array:
    if input3.size == 0:
        return input3
    return lax.linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


@lowers("aten._linalg_eigh", specs=True)
def linalg_eigh(specs: Any, A: Any, UPLO: str = "L", compute_v: bool = True) -> tuple[Any, Any]:
    if A.size == 0:
        return tuple(jnp.zeros(s.shape, s.dtype) for s in specs)
    vectors, values = lax.linalg.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


@lowers("aten._linalg_svd", specs=True)
def linalg_svd(
    specs: Any, A: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Any, Any, Any]:
    if A.size == 0:
        u, values, vh = specs
        return _empty_q(u, A.dtype), jnp.zeros(values.shape), _empty_q(vh, A.dtype)
    if not compute_uv:
        blank = jnp.zeros((0,), A.dtype)
        return blank, lax.linalg.svd(A, compute_uv=False), blank
    u, values, vh = lax.linalg.svd(A, full_matrices=full_matrices)
    return u, values, vh


@lowers("aten.linalg_pinv.atol_rtol_tensor")
def linalg_pinv(self: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> jax.Array:
    """Inverse on the singular directions above max(atol, rtol * largest singular value), zero on the others."""
    if self.size == 0:
        return self.mT
    if hermitian:
        right, values = lax.linalg.eigh(self, symmetrize_input=False)
        left, size = right, jnp.abs(values)
    else:
        left, values, right = lax.linalg.svd(self, full_matrices=False)
        right, size = _adjoint(right), values
    kept = size > _tolerance(self, jnp.max(size, -1), atol, rtol)[..., None]
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0).astype(self.dtype)
    return (right * inverse[..., None, :]) @ _adjoint(left)


def _tolerance(a: jax.Array, largest: jax.Array, atol: Any, rtol: Any) -> jax.Array:
    if rtol is None:
        rtol = jnp.asarray(jnp.finfo(a.dtype).eps * max(a.shape[-2:]), largest.dtype)
        rtol = rtol if atol is None else jnp.where(atol > 0, 0, rtol)
    atol = 0 if atol is None else atol
    return jnp.maximum(atol, rtol * largest).astype(largest.dtype)


@lowers("aten.linalg_eig", cpu_only=True)
def linalg_eig(self: Any) -> tuple[Any, Any]:
    if self.size == 0:
        dtype = jnp.promote_types(self.dtype, jnp.complex64)
        return jnp.zeros(self.shape[:-1], dtype), jnp.zeros(self.shape, dtype)
    values, vectors = lax.linalg.eig(self, compute_left_eigenvectors=False)
    return values, vectors


@lowers("aten._linalg_eigvals", cpu_only=True)
def linalg_eigvals(self: Any) -> jax.Array:
    if self.size == 0:
        return jnp.zeros(self.shape[:-1], jnp.promote_types(self.dtype, jnp.complex64))
    values: jax.Array = lax.linalg.eig(self, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
    return values


def _least_norm(a: jax.Array, b: jax.Array) -> jax.Array:
    """Least squares, or the solution of least norm, for matrices of full rank: by QR, as LAPACK's gels."""
    if a.shape[-2] >= a.shape[-1]:
        q, r = lax.linalg.qr(a, full_matrices=False)
        return _solve_triangular(r, _adjoint(q) @ b, upper=True)
    q, r = lax.linalg.qr(_adjoint(a), full_matrices=False)
    return q @ _solve_triangular(r, b, upper=True, adjoint=True)


@lowers("aten.linalg_lstsq")
def linalg_lstsq(self: Any, b: Any, rcond: Any = None, *, driver: str | None = None) -> tuple[Any, Any, Any, Any]:
    """The solution of least norm, by the SVD but for driver gels; the rest depends on the driver, as in LAPACK.

    Residuals come whenever there are more rows than columns; for a deficient rank the caller empties them.
    """
    m, n = self.shape[-2:]
    vector, right = b.ndim == self.ndim - 1, b[..., None] if b.ndim == self.ndim - 1 else b
    real, blank = self.real.dtype, jnp.zeros((0,), self.real.dtype)
    rank, spectrum = jnp.zeros((0,), np.int64), blank
    if driver == "gels":
        x = _least_norm(self, right)
    else:
        u, values, vh = lax.linalg.svd(self, full_matrices=False)
        kept = values > (jnp.finfo(real).eps * max(m, n) if rcond is None else rcond) * values[..., :1]
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
        x = _adjoint(vh) @ (inverse[..., None] * (_adjoint(u) @ right))
        rank = jnp.sum(kept, -1, dtype=np.int64)
        spectrum = values if driver in ("gelsd", "gelss") else blank
    residuals = jnp.sum(jnp.abs(right - self @ x) ** 2, -2) if m > n and driver in ("gels", "gelsd", "gelss") else blank
    return x[..., 0] if vector else x, residuals, rank, spectrum


# Terms of the Taylor series, and the norm up to which that many give the precision of the dtype (P. Bader, S. Blanes,
# F. Casas, Computing the Matrix Exponential with an Optimized Taylor Polynomial Approximation, 2019: theta_18).
_EXP_DEGREE = 18
_EXP_REACH = {np.dtype("float32"): 3.01, np.dtype("float64"): 1.09}


def _exp_taylor(a: jax.Array) -> jax.Array:
    """Taylor polynomial of degree 18, with seven products (M. Paterson and L. Stockmeyer, 1973)."""
    powers = [_eye_like(a, a.shape[-1]), a]
    for _ in range(3):
        powers.append(powers[-1] @ a)
    chunk = lambda first, count: sum(powers[i] / math.factorial(first + i) for i in range(count))
    total = chunk(16, 3)
    for first in (12, 8, 4, 0):
        total = total @ powers[4] + chunk(first, 4)
    return total


@lowers("aten.linalg_matrix_exp")
def linalg_matrix_exp(self: Any) -> jax.Array:
    """By scaling and squaring: exp(A) = exp(A / 2^s)^(2^s), where the norm of A / 2^s is small."""
    if self.size == 0:
        return self
    a = self.astype(dtypes.opmath(self.dtype))
    norm = jnp.max(jnp.sum(jnp.abs(a), -2), -1)
    reach = _EXP_REACH[np.dtype(norm.dtype)]
    finite = jnp.where(jnp.isfinite(norm), norm, 0)
    squarings = jnp.maximum(jnp.ceil(jnp.log2(finite / reach)), 0).astype(np.int32)[..., None, None]
    start = (jnp.zeros((), np.int32), _exp_taylor(a * jnp.exp2(-squarings.astype(norm.dtype))))

    def square(state: tuple[Any, Any]) -> tuple[Any, Any]:
        done, x = state
        return done + 1, jnp.where(done < squarings, x @ x, x)

    return lax.while_loop(lambda state: state[0] < jnp.max(squarings), square, start)[1]


# ---------------------------------------------------------------------------------------------------------------------
# Small products and norms


@lowers("aten.linalg_vector_norm", static=("ord",))
def linalg_vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    x = self if dtype is None else dtypes.cast(self, dtypes.numpy_dtype(dtype))
    axes = [d % max(x.ndim, 1) for d in dim] if dim else range(x.ndim)
    x = x.astype(dtypes.opmath(x.dtype))
    if x.ndim == 0:
        return norm_along(x[None], float(ord), (0,))
    return norm_along(x, float(ord), tuple(axes), keepdims=keepdim)


@lowers("aten.linalg_cross")
def linalg_cross(self: Any, other: Any, *, dim: int = -1) -> jax.Array:
    a, b = jnp.broadcast_arrays(self, other)
    a1, a2, a3 = (lax.index_in_dim(a, i, dim % a.ndim) for i in range(3))
    b1, b2, b3 = (lax.index_in_dim(b, i, dim % a.ndim) for i in range(3))
    return jnp.concatenate([a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1], dim)


@lowers("aten.trace", specs=True)
def trace(spec: Any, self: Any) -> jax.Array:
    return jnp.trace(self.astype(dtypes.opmath(spec.dtype)))


# ---------------------------------------------------------------------------------------------------------------------
# Distances between rows


def _euclidean(x1: jax.Array, x2: jax.Array) -> jax.Array:
    """By |x|^2 + |y|^2 - 2 x.y, which is one matrix product; cancels where the rows are close."""
    squares = jnp.sum(x1 * x1, -1)[..., :, None] + jnp.sum(x2 * x2, -1)[..., None, :]
    return jnp.sqrt(jnp.maximum(squares - 2 * (x1 @ x2.mT), 0))


@lowers("aten._euclidean_dist")
def euclidean_dist(x1: Any, x2: Any) -> jax.Array:
    return _euclidean(x1, x2)


@lowers("aten._cdist_forward", static=("p",))
def cdist_forward(x1: Any, x2: Any, p: float, compute_mode: int | None) -> jax.Array:
    # PyTorch's modes: 0 (or None) the product for more than 25 rows, 1 always, 2 never.
    large = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (not compute_mode and large)):
        return _euclidean(x1, x2)
    difference = x1[..., :, None, :] - x2[..., None, :, :]
    return norm_along(difference, p, (difference.ndim - 1,))


def _distance_gradient(g: Any, difference: Any, distance: Any, p: float) -> jax.Array:
    """Gradient, in `difference` [..., n], of its p-norm `distance`, times `g`; zero at zero distance."""
    g, distance = g[..., None], distance[..., None]
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return g * jnp.sign(difference)
    size = jnp.abs(difference)
    if p == np.inf:
        return g * jnp.sign(difference) * (size == distance)
    # The quotient first: the powers of small numbers would underflow.
    safe = jnp.where(distance == 0, 1, distance)
    if p == 2:
        return jnp.where(distance == 0, 0, g * difference / safe)
    ratio = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size / safe) ** (p - 1))
    return jnp.where(distance == 0, 0, g * jnp.sign(difference) * ratio)


@lowers("aten._cdist_backward", static=("p",))
def cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> jax.Array:
    difference = x1[..., :, None, :] - x2[..., None, :, :]
    return jnp.sum(_distance_gradient(grad, difference, cdist, p), -2)


def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.triu_indices(n, 1)
    return first.astype(np.int32), second.astype(np.int32)


@lowers("aten._pdist_forward", static=("p",))
def pdist_forward(self: Any, p: float = 2.0) -> jax.Array:
    first, second = _pairs(self.shape[0])
    if first.size == 0:
        return jnp.zeros((0,), self.dtype)
    return norm_along(self[first] - self[second], p, (1,))


@lowers("aten._pdist_backward", static=("p",))
def pdist_backward(grad: Any, self: Any, p: float, pdist: Any) -> jax.Array:
    first, second = _pairs(self.shape[0])
    if first.size == 0:
        return jnp.zeros_like(self)
    parts = _distance_gradient(grad, self[first] - self[second], pdist, p)
    return jnp.zeros_like(self).at[first].add(parts).at[second].add(-parts)
