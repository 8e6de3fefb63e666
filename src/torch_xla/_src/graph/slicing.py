"""Slices and selections, recorded so that their start can move. See Note [Slices with a moving start]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src.graph.dispatch import aten, dispatch, handles
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import XlaTensor, inner_like
from torch_xla._src.ops import dynamic_slice as _defines_the_ops  # noqa: F401  (for its effect on torch.ops)


def _bounds(size: int, start: Any, end: Any) -> tuple[int, int]:
    """Start and length of a Python slice with step 1."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end - start


def _argument(args: Sequence[Any], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


@handles(aten.slice_copy.Tensor)
def _slice(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, dim = args[0], _argument(args, kwargs, 1, "dim", 0)
    start, end = _argument(args, kwargs, 2, "start", None), _argument(args, kwargs, 3, "end", None)
    if _argument(args, kwargs, 4, "step", 1) != 1 or x.ndim == 0:
        return RECORDER.record(op, args, kwargs)
    dim %= x.ndim
    start, length = _bounds(x.shape[dim], start, end)
    if length == x.shape[dim]:
        return inner_like(x, x.value)
    return RECORDER.record(torch.ops.torch_xla.slice.default, [x, dim, start, length], {})


@handles(aten.select_copy.int)
def _select(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, dim, index = args
    if not -x.ndim <= dim < x.ndim or not -x.shape[dim] <= index < x.shape[dim]:
        return RECORDER.record(op, args, kwargs)  # raises what PyTorch raises
    dim, size = dim % x.ndim, x.shape[dim]
    return RECORDER.record(torch.ops.torch_xla.select.default, [x, dim, index % size], {})


@handles(aten.slice_scatter.default)
def _slice_scatter(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, source, dim = args[0], args[1], _argument(args, kwargs, 2, "dim", 0)
    start, end = _argument(args, kwargs, 3, "start", None), _argument(args, kwargs, 4, "end", None)
    plain = _argument(args, kwargs, 5, "step", 1) == 1 and x.ndim and type(source) is XlaTensor
    if not plain or x.dtype != source.dtype:
        return RECORDER.record(op, args, kwargs)
    dim %= x.ndim
    start, length = _bounds(x.shape[dim], start, end)
    if tuple(source.shape) != (*x.shape[:dim], length, *x.shape[dim + 1 :]):
        return RECORDER.record(op, args, kwargs)  # raises what PyTorch raises
    return RECORDER.record(torch.ops.torch_xla.slice_scatter.default, [x, source, dim, start], {})


@handles(aten.select_scatter.default)
def _select_scatter(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, source, dim, index = args
    if type(source) is not XlaTensor or x.dtype != source.dtype or not -x.shape[dim] <= index < x.shape[dim]:
        return RECORDER.record(op, args, kwargs)
    dim, size = dim % x.ndim, x.shape[dim]
    if tuple(source.shape) != (*x.shape[:dim], *x.shape[dim + 1 :]):
        return RECORDER.record(op, args, kwargs)
    row = dispatch(aten.unsqueeze_copy.default, [source, dim], {})
    return RECORDER.record(torch.ops.torch_xla.slice_scatter.default, [x, row, dim, index % size], {})
