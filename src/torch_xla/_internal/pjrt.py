"""Names of PyTorch/XLA's `torch_xla._internal.pjrt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._src import launching, surface


def spawn(
    fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: tuple[Any, ...] = ()
) -> None:
    """`torch_xla.distributed.xla_multiprocessing.spawn` with its arguments in another order."""
    launching.launch(fn, tuple(args), single_process=nprocs == 1)


__getattr__ = surface.missing(__name__)
