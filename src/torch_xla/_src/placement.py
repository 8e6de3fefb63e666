"""Moves tensors between the memory of the device and that of its host. Behind `place_to_host` and `place_to_device`."""

from __future__ import annotations

import logging
from typing import Any

import torch

_library = torch.library.Library("xla", "FRAGMENT")
_log = logging.getLogger("torch_xla")
_told = False


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
    global _told
    if not (isinstance(x, torch.Tensor) and x.is_xla):
        raise TypeError(f"only tensors of device xla are placed, not {getattr(x, 'device', type(x).__name__)}")
    from torch_xla._src.ops import placement  # defines the op

    if placement.has_one_memory() and not _told:
        _told = True
        _log.warning(
            "device xla is the CPU here, which has one memory: placing tensors in that of the host changes nothing"
        )
    assert memory in (placement.HOST, placement.DEVICE)
    return _Place.apply(x, memory)


def install() -> None:
    """Defines `torch.ops.xla.place_to_host` and `place_to_device`."""
    for memory in ("host", "device"):
        _library.define(f"place_to_{memory}(Tensor t) -> Tensor")
        _library.impl(f"place_to_{memory}", lambda t, memory=memory: place(t, memory), "CompositeImplicitAutograd")
