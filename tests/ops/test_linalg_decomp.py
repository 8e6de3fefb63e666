"""Factorizations, solvers, determinants and distances: op_db entries, then what the harness cannot compare."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries
from tests.ops.harness import to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten
NAMES = ["linalg.cholesky", "linalg.cholesky_ex", "cholesky", "cholesky_inverse", "cholesky_solve", "linalg.qr"]
NAMES += [
    "linalg.lu_factor_ex",
    "linalg.lu",
    "linalg.lu_solve",
    "lu_unpack",
    "linalg.inv_ex",
    "linalg.solve_triangular",
]
NAMES += ["triangular_solve", "linalg.solve", "linalg.det", "linalg.slogdet", "logdet", "geqrf", "ormqr"]
NAMES += ["linalg.vector_norm", "linalg.matrix_norm", "linalg.householder_product", "linalg.cross", "trace", "kron"]
NAMES += ["linalg.pinv", "cdist", "nn.functional.pdist", "dist"]
FORWARD_ONLY = {
    torch.int64: ["trace", "kron", "linalg.cross"],
    torch.bfloat16: ["linalg.vector_norm", "trace"],
    torch.complex64: ["linalg.cholesky", "linalg.qr", "linalg.solve", "linalg.det", "linalg.slogdet", "lu_unpack"],
}


OTHERS = [case for dtype, names in FORWARD_ONLY.items() for case in entries(names, dtype)]


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + OTHERS)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("minor", [1, 2, 4])
def test_cholesky_names_the_failing_minor(minor: int, upper: bool) -> None:
    a = torch.stack([torch.eye(4), torch.eye(4)])
    a[1, minor - 1, minor - 1] = -1
    info = lowered(aten.linalg_cholesky_ex.default, a, upper=upper)[1]
    assert info.tolist() == [0, minor]


def test_singular() -> None:
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    assert lowered(aten.linalg_inv_ex.default, a)[1].item() == torch.linalg.inv_ex(a).info.item() == 2
    agrees(torch.linalg.det, a)
    agrees(torch.linalg.slogdet, torch.zeros(3, 3))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_solve(left: bool, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 4, 4, dtype=dtype), torch.randn(3, 1, 4, 4, dtype=dtype)
    agrees(torch.linalg.solve_ex, a, b, left=left)


@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_eigh(uplo: str, dtype: torch.dtype) -> None:
    """Vectors are free up to a sign: check what they must satisfy. Only the named triangle is read."""
    a = torch.randn(3, 5, 5, dtype=dtype)
    values, vectors = lowered(aten._linalg_eigh.default, a, uplo)
    half = a.tril() if uplo == "L" else a.triu()
    full = half + half.mH
    full.diagonal(dim1=-2, dim2=-1).copy_(half.diagonal(dim1=-2, dim2=-1).real)  # the imaginary part is not read
    torch.testing.assert_close(values, torch.linalg.eigvalsh(a, UPLO=uplo), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(full @ vectors, vectors * values[:, None, :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("full_matrices", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
def test_svd(shape: tuple[int, ...], full_matrices: bool) -> None:
    a = torch.randn(shape)
    u, s, vh = lowered(aten._linalg_svd.default, a, full_matrices)
    k = s.shape[-1]
    torch.testing.assert_close(s, torch.linalg.svdvals(a), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], a, rtol=1e-4, atol=1e-4)


def test_matrix_exp() -> None:
    """Another algorithm than PyTorch's: both are near the exact value on the scale of the largest element."""
    a = torch.randn(2, 6, 6) * 3
    want = torch.linalg.matrix_exp(a.double())
    got = lowered(aten.linalg_matrix_exp.default, a)[0].double()
    assert ((got - want).abs().max() / want.abs().max()).item() < 1e-5


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances_of_equal_rows(p: float) -> None:
    """The gradient at distance zero is zero, not NaN."""
    x = torch.randn(4, 3)
    x[1] = x[0]
    g, d = torch.ones(4, 4), torch.cdist(x, x, p, compute_mode="donot_use_mm_for_euclid_dist")
    agrees(aten._cdist_backward, g, x, x, p, d)
    agrees(aten._pdist_backward, torch.ones(6), x, p, torch.pdist(x, p))


def test_empty() -> None:
    agrees(torch.linalg.qr, torch.ones(3, 0))
    agrees(torch.linalg.svd, torch.ones(3, 0), full_matrices=True)
    agrees(torch.linalg.solve_ex, torch.ones(0, 0), torch.ones(0, 2))
    agrees(torch.linalg.det, torch.ones(2, 0, 0))
    agrees(torch.linalg.inv_ex, torch.ones(0, 0))


def lowered(overload: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    specs = specs_of(overload(*args, **kwargs))
    with jax.enable_x64(True):
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        return [to_torch(a) for a in lower(overload, arrays, kwargs, specs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_eigenvalues_of_general_matrices(dtype: torch.dtype) -> None:
    a = torch.randn(2, 4, 4, dtype=dtype)
    agrees(torch.linalg.eig, a)
    agrees(torch.linalg.eigvals, a)
    agrees(torch.linalg.eig, a[:, :0, :0])


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_matrix_exp_keeps_the_digits_of_its_dtype(n: int, scale: float) -> None:
    a = torch.randn(3, n, n, dtype=torch.float64) * scale
    a[0] *= 1e-3  # matrices of one batch need different numbers of squarings
    agrees(torch.linalg.matrix_exp, a, rtol=1e-11, atol=1e-11)
