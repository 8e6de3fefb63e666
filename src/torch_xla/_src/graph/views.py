"""Views that PyTorch's functionalization cannot write through, or read, as it should: an error instead of a wrong value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src.graph.dispatch import aten, handles
from torch_xla._src.graph.recorder import RECORDER


@handles(aten.unfold_backward.default)
def _unfold_backward(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The gradient of `unfold`; outside of backward it is functionalization that writes through an `unfold` view.

    That puts zeros where no window reaches, and the sum where windows overlap: it is right if they tile the dimension.
    """
    _, sizes, dim, size, step = args
    tiled = size == step and (not sizes or sizes[dim] % size == 0)
    if not tiled and torch._C._current_graph_task_id() == -1:
        raise RuntimeError(
            "device xla cannot write in place through a view made by unfold(): write to the tensor itself, or to a clone of "
            "the view"
        )
    return RECORDER.record(op, args, kwargs)


@handles(aten.as_strided_copy.default)
def _as_strided(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if args[0].value.spec.strides is not None:
        raise RuntimeError(
            "device xla cannot take as_strided() of a view that is not contiguous, for it has no storage to look at: call "
            "it on the tensor that the view is of, or on view.contiguous()"
        )
    return RECORDER.record(op, args, kwargs)
