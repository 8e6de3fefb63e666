"""What the user calls a tensor: the variable that holds it, or its name in a module or optimizer that a variable holds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from torch_xla._src.runtime import frames

_MAX_FRAMES = 8
_MAX_ITEMS = 64  # of a container that are looked at


def of_values(wanted: Mapping[int, Any]) -> dict[int, str]:
    """Names of inner Values, by the keys of `wanted`, as far as variables of the user's running functions lead to them.

    Keeps no reference to what it looks at.
    """
    from torch_xla._src.graph.tensor import value_of

    keys = {id(value): key for key, value in wanted.items() if value is not None}
    found: dict[int, str] = {}
    if keys:
        for name, tensor in tensors():
            key = keys.get(id(value_of(tensor)))
            if key is not None:
                found.setdefault(key, name)
                if len(found) == len(keys):
                    break
    return found


def tensors() -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors on the device with their names: local variables of the user's functions that run, then what these hold."""
    frame, seen = frames.user_frame(), 0
    while frame is not None and seen < _MAX_FRAMES:
        if not frames.is_library(frame.f_code.co_filename):
            seen += 1
            names = _variables(frame)
            for depth in range(2):  # variables first, then what they hold
                for name, x in names.items():
                    yield from _named(name, x, depth)
        frame = frame.f_back


def _variables(frame: FrameType) -> dict[str, Any]:
    """The local variables of a frame. Up to Python 3.12 the frame keeps a copy of them, which must not outlive this call."""
    local = frame.f_locals
    names = dict(local)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        local.clear()
    return names


def _named(name: str, x: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(x, torch.Tensor):
        if depth == 0 and _is_xla(x):
            yield name, x
        elif depth and _is_xla(x.grad if x.is_leaf else None):
            yield f"{name}.grad", x.grad
    elif depth and isinstance(x, nn.Module):
        for key, tensor in [*x.named_parameters(), *x.named_buffers()]:
            if _is_xla(tensor):
                yield f"{name}.{key}", tensor
                if tensor.is_leaf and _is_xla(tensor.grad):
                    yield f"{name}.{key}.grad", tensor.grad
    elif depth and isinstance(x, torch.optim.Optimizer):
        for number, state in enumerate(x.state.values()):
            for key, tensor in state.items():
                if _is_xla(tensor):
                    yield f"{key!r} of parameter {number} in {name}", tensor
    elif depth and isinstance(x, (list, tuple)):
        for number, item in enumerate(x[:_MAX_ITEMS]):
            if _is_xla(item):
                yield f"{name}[{number}]", item
    elif depth and isinstance(x, dict):
        for key, item in list(x.items())[:_MAX_ITEMS]:
            if _is_xla(item):
                yield f"{name}[{key!r}]", item


def _is_xla(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_xla and not x.is_sparse
