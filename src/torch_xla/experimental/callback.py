"""Names of PyTorch/XLA's `torch_xla.experimental.callback`: to be told when a tensor has been computed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from torch_xla._src import surface


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Calls `callback(tensor)` on another thread once the device has computed an xla tensor.

    A tensor that is pending is launched first. ValueError for a tensor on another device.
    """
    if not tensor.is_xla:
        raise ValueError(f"on_ready_callback needs a tensor on device xla, got one on {tensor.device}")
    from torch_xla._src.graph import inspect

    wait = inspect.waiter(tensor)

    def run() -> None:
        wait()
        callback(tensor)

    threading.Thread(target=run, name="torch_xla on_ready_callback", daemon=True).start()


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set once the device has computed an xla tensor."""
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event


__getattr__ = surface.missing(__name__)
