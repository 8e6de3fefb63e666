"""Composite ops that device xla composes in its own way, under key AutogradXLA."""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "AutogradXLA")
_aten = torch.ops.aten

# PyTorch's derivative of a determinant reads the LU factors as those of the transpose if the matrix is contiguous, as
# LAPACK would have it. Lowerings see no strides and follow that convention, so the matrix is made contiguous first.


def _det(matrix: torch.Tensor) -> torch.Tensor:
    return _aten._linalg_det(matrix.contiguous())[0]


def _slogdet(matrix: torch.Tensor) -> Any:
    return _aten._linalg_slogdet(matrix.contiguous())[:2]


def _logdet(matrix: torch.Tensor) -> torch.Tensor:
    sign, logarithm = _slogdet(matrix)
    return logarithm + sign.log()


def install() -> None:
    """Registers the kernels."""
    _library.impl("linalg_det", _det)
    _library.impl("linalg_slogdet", _slogdet)
    _library.impl("logdet", _logdet)
