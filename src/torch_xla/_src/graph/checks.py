"""Checks of arguments: those that PyTorch's meta kernels leave to its other kernels, and those made when asked for.

XLA itself clamps an index that is out of range. Inside `torch_xla.debug.check()` each op that takes indices has them read
back and compared with the size they index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_xla._src.graph.tensor import XlaTensor
from torch_xla._src.runtime import frames

aten = torch.ops.aten
depth = 0  # > 0 inside `check()`


@contextmanager
def check() -> Iterator[None]:
    """Ops in the block raise IndexError, naming op and line, for an index out of range. Slow: each reads indices back."""
    global depth
    depth += 1
    try:
        yield
    finally:
        depth -= 1


def _embedding(args: Sequence[Any]) -> list[tuple[Any, int, bool]]:
    return [(args[1], args[0].size(0), False)]


def _along_dim(args: Sequence[Any]) -> list[tuple[Any, int, bool]]:
    x, dim, index = args[:3]
    return [(index, x.size(dim) if x.ndim else 1, False)]


def _advanced(args: Sequence[Any]) -> list[tuple[Any, int, bool]]:
    x, indices = args[:2]
    return [
        (i, x.size(d), True) for d, i in enumerate(indices) if isinstance(i, torch.Tensor) and i.dtype != torch.bool
    ]


def _take(args: Sequence[Any]) -> list[tuple[Any, int, bool]]:
    return [(args[1], args[0].numel(), True)]


# op -> (index tensor, size it indexes, whether negative indices count from the end) for each of its indices
_INDICES: dict[Any, Callable[[Sequence[Any]], list[tuple[Any, int, bool]]]] = {
    aten.embedding.default: _embedding,
    aten.gather.default: _along_dim,
    aten.index_select.default: _along_dim,
    aten.scatter.src: _along_dim,
    aten.scatter.value: _along_dim,
    aten.scatter_add.default: _along_dim,
    aten.index_add.default: _along_dim,
    aten.index_copy.default: _along_dim,
    aten.index_fill.int_Scalar: _along_dim,
    aten.index.Tensor: _advanced,
    aten.index_put.default: _advanced,
    aten.take.default: _take,
    aten.put.default: _take,
}


def check_indices(op: Any, args: Sequence[Any], download: Callable[[Any], torch.Tensor]) -> None:
    """IndexError if an index among `args` is out of range."""
    for index, size, wraps in _INDICES.get(op, lambda _: [])(args):
        host = download(index) if type(index) is XlaTensor else index
        if not host.numel():
            continue
        low, high = int(host.min()), int(host.max())
        if low < (-size if wraps else 0) or high >= size:
            wrong = low if low < (-size if wraps else 0) else high
            raise IndexError(
                f"index {wrong} is out of range for a dimension of size {size}: {op._schema.name} at "
                f"{frames.user_line() or 'an unknown line'}"
            )


# ---- what the CPU refuses and the meta kernel accepts ---------------------------------------------------------------


def _same_dtype(*positions: int) -> Callable[[Sequence[Any]], None]:
    def check(args: Sequence[Any]) -> None:
        tensors = [args[p] for p in positions if p < len(args) and isinstance(args[p], torch.Tensor)]
        if any(t.dtype is not tensors[0].dtype for t in tensors):
            dtypes = " and ".join(str(t.dtype) for t in tensors)
            raise RuntimeError(f"expected the operands of a product to have the same dtype, but got {dtypes}")

    return check


def _dim_in_range(args: Sequence[Any]) -> None:
    rank = max(args[0].ndim, 1)
    if not -rank <= args[1] < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {args[1]})"
        )


def _integral(args: Sequence[Any]) -> None:
    for a in args[:2]:
        if isinstance(a, float) or (isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex())):
            raise NotImplementedError(f"bitwise operations are not implemented for {getattr(a, 'dtype', 'float')}")


def _enough_to_sample(args: Sequence[Any]) -> None:
    if not (len(args) > 2 and args[2]) and args[1] > args[0].size(-1):
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


def _integer_indices(args: Sequence[Any]) -> None:
    if args[1].dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"expected the indices of an embedding to be int32 or int64, but got {args[1].dtype}")


ARGUMENTS: dict[Any, Callable[[Sequence[Any]], None]] = {
    aten.embedding.default: _integer_indices,
    aten.mm.default: _same_dtype(0, 1),
    aten.bmm.default: _same_dtype(0, 1),
    aten.mv.default: _same_dtype(0, 1),
    aten.dot.default: _same_dtype(0, 1),
    aten.vdot.default: _same_dtype(0, 1),
    aten.addmm.default: _same_dtype(0, 1, 2),
    aten.addmv.default: _same_dtype(0, 1, 2),
    aten.baddbmm.default: _same_dtype(0, 1, 2),
    aten.convolution.default: _same_dtype(0, 1, 2),
    aten._softmax.default: _dim_in_range,
    aten._log_softmax.default: _dim_in_range,
    aten.multinomial.default: _enough_to_sample,
}
for _packet in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor):
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        ARGUMENTS[getattr(_packet, _overload)] = _integral
