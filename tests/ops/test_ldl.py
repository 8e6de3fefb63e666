"""LDL^T factorization and solving: LAPACK's pivots, blocks of both sizes, matrices that need each kind of exchange."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries

DTYPES = [torch.float64, torch.complex128]


@pytest.mark.parametrize(
    ("op", "dtype"),
    entries(["linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"], torch.float32, torch.complex64),
)
def test_database(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype)


def matrices(n: int, dtype: torch.dtype, hermitian: bool) -> torch.Tensor:
    """[4, n, n]: any, with a diagonal of zeros, zero, and with zero first columns."""
    a = torch.randn(4, n, n, dtype=dtype)
    a = a + (a.mH if hermitian else a.mT)
    a[1].diagonal().zero_()
    a[2] = 0
    a[3, :2] = a[3, :, :2] = 0
    return a


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 9])
def test_factors_and_solutions(n: int, dtype: torch.dtype, hermitian: bool) -> None:
    def run(a: torch.Tensor) -> None:
        factor, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
        if n > 1:  # the other matrices are singular
            b = torch.randn(2, n, 2, dtype=dtype)
            torch.linalg.ldl_solve(factor[:2], pivots[:2], b, hermitian=hermitian)

    agrees(run, matrices(n, dtype, hermitian), rtol=1e-9, atol=1e-9)
