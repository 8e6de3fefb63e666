"""Moves tensors between the memory of the device and that of its host. Behind `place_to_host` and `place_to_device`."""

from __future__ import annotations

import logging
from typing import Any

import torch

_library = torch.library.Library("xla", "FRAGMENT")
_log = logging.getLogger("torch_xla")
_told = False
in_use = False  # whether a tensor may be in the host's memory, so that programs depend on where their inputs are


class _Place(torch.autograd.Function):
    """The gradient is as it comes: it is computed, and used, on the device."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, memory: str) -> torch.Tensor:
        placed: torch.Tensor = torch.ops.torch_xla.place(x, memory)
        return placed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def place(x: torch.Tensor, memory: str) -> torch.Tensor:
    """A tensor like `x` in the memory that is named: "host" or "device". TypeError for one of another device."""
    if not (isinstance(x, torch.Tensor) and x.is_xla):
        raise TypeError(f"only tensors of device xla are placed, not {getattr(x, 'device', type(x).__name__)}")
    has_two_memories()
    assert memory in ("host", "device")
    return _Place.apply(x, memory)


def has_two_memories() -> bool:
    """Whether the device has a memory beside its host's, to place tensors in either. Says once if it has not."""
    global _told, in_use
    from torch_xla._src.ops import placement  # defines the op

    if not placement.has_one_memory():
        in_use = True
        return True
    if not _told:
        _told = True
        _log.warning(
            "device xla is the CPU here, which has one memory: placing tensors in that of the host changes nothing"
        )
    return False


def is_view(x: torch.Tensor) -> bool:
    """Whether a tensor shows another's storage."""
    from torch_xla._src.graph.tensor import value_of

    return value_of(x).base is not None


def move_to_host(x: torch.Tensor) -> None:
    """Puts what a tensor holds into the host's memory now, if it has been computed."""
    from torch_xla._src.graph.tensor import value_of
    from torch_xla._src.ops.placement import moved_to_host

    value = value_of(x)
    if value.buffer is not None and value.base is None:
        value.buffer = moved_to_host(value.buffer)


def install() -> None:
    """Defines `torch.ops.xla.place_to_host` and `place_to_device`."""
    for memory in ("host", "device"):
        _library.define(f"place_to_{memory}(Tensor t) -> Tensor")
        _library.impl(f"place_to_{memory}", lambda t, memory=memory: place(t, memory), "CompositeImplicitAutograd")
