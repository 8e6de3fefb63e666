"""Names of PyTorch/XLA's `torch_xla.distributed.xla_multiprocessing`, usually imported as `xmp`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src import launching, surface


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Calls `fn(index, *args)` for each device, and waits. With one device, or nprocs=1, in this process.

    ValueError for another `nprocs` than 1 or None: processes and devices go together.
    """
    if nprocs not in (None, 1):
        raise ValueError(
            f"Unsupported nprocs ({nprocs}). Please use nprocs=1 or None (default). If None, spawn() will use all available "
            "devices. Use the environment variable X_NUM_DEVICES (where X is CPU, GPU, TPU, NEURONCORE, etc) to limit the "
            "number of devices used."
        )
    launching.launch(fn, tuple(args), single_process=nprocs == 1)


class MpModelWrapper:
    """A model that forked processes move to their device one after the other, so that host memory holds one copy."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._lock = model, threading.Lock()

    def to(self, device: Any) -> torch.nn.Module:
        """The model, moved to `device`."""
        with self._lock:
            self._model.to(device)
        return self._model


class MpSerialExecutor:
    """Runs a function on one process after the other, such as one that downloads a data set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """What `fn()` returns."""
        with self._lock:
            return fn()


__getattr__ = surface.missing(__name__)
