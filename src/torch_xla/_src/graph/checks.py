"""Checks that are made when asked for: XLA itself clamps an index that is out of range.

Inside `torch_xla.debug.check()` each op that takes indices has them read back and compared with the size they index.
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
