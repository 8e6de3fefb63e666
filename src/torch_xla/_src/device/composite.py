"""Composite ops that device xla composes in its own way, under key AutogradXLA."""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "AutogradXLA")
_aten = torch.ops.aten

# PyTorch's derivatives of a determinant, and in torch 2.9 of a solution, read the LU factors as those of the transpose if
# the matrix is contiguous, as LAPACK would have it. Lowerings see no strides and follow that convention, so the matrix is
# made contiguous first.


def _det(matrix: torch.Tensor) -> torch.Tensor:
    return _aten._linalg_det(matrix.contiguous())[0]


def _slogdet(matrix: torch.Tensor) -> Any:
    return _aten._linalg_slogdet(matrix.contiguous())[:2]


def _logdet(matrix: torch.Tensor) -> torch.Tensor:
    sign, logarithm = _slogdet(matrix)
    return logarithm + sign.log()


def _solve_ex(matrix: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    result, _, _, info = _aten._linalg_solve_ex(matrix.contiguous(), b, left=left, check_errors=False)
    if check_errors:
        _aten._linalg_check_errors(info, "linalg.solve_ex", is_matrix=matrix.ndim == 2)
    return result, info


def _fill_diagonal_(x: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    """Writes where all indices are equal (in a tall matrix with `wrap`, again below each square).

    Stock torch writes through as_strided, which needs a storage.
    """
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise RuntimeError("fill_diagonal_ needs a matrix, or a tensor all dimensions of which are of equal length")
    index = [torch.arange(n, device=x.device).view([-1] + [1] * (x.ndim - 1 - d)) for d, n in enumerate(x.shape)]
    first = index[0] % (x.shape[1] + 1) if wrap and x.ndim == 2 else index[0]
    diagonal = first == index[1]
    for other in index[2:]:
        diagonal = diagonal & (first == other)
    return x.masked_fill_(diagonal, fill_value)


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *lengths_and_options: Any) -> torch.Tensor:
    """Lengths usually come on the host: on the device they are inputs of the program, not constants."""
    input_lengths, target_lengths, *options = lengths_and_options
    lengths = [t.to(log_probs.device) for t in (input_lengths, target_lengths)]
    return _aten.ctc_loss.Tensor.decompose(log_probs, targets, *lengths, *options)


def _matrix_rank_out(overload: str) -> Any:
    """PyTorch's returns a new tensor for tensors like these, and leaves `out` as it was."""
    rank = getattr(_aten.linalg_matrix_rank, overload)

    def kernel(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        result = rank(*args, **kwargs)
        return out.resize_(result.shape).copy_(result) if out.shape != result.shape else out.copy_(result)

    return kernel


def install() -> None:
    """Registers the kernels."""
    for suffix, overload in (
        ("out", "default"),
        ("out_tol_tensor", "tol_tensor"),
        ("atol_rtol_float_out", "atol_rtol_float"),
        ("atol_rtol_tensor_out", "atol_rtol_tensor"),
    ):
        _library.impl(f"linalg_matrix_rank.{suffix}", _matrix_rank_out(overload))
    _library.impl("linalg_det", _det)
    _library.impl("linalg_slogdet", _slogdet)
    _library.impl("logdet", _logdet)
    _library.impl("linalg_solve_ex", _solve_ex)
    _library.impl("fill_diagonal_", _fill_diagonal_)
    _library.impl("ctc_loss.Tensor", _ctc_loss)
