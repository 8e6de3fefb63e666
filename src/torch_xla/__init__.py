"""PyTorch on TPUs, GPUs and CPUs through XLA, in pure Python on stock torch and JAX.

Importing it is free: no JAX, no device client, no output (the first device op loads those).
"""

from __future__ import annotations

from torch_xla._src.versions import check as _check
from torch_xla.version import __version__

_check()

from torch_xla._src import device as _device  # noqa: E402  (only after the check)

_device.install()

from torch_xla._src.api import (  # noqa: E402
    compile,
    device,
    device_count,
    devices,
    manual_seed,
    real_devices,
    step,
    sync,
)
from torch_xla.core import xla_model as xm  # noqa: E402
from torch_xla.debug import metrics as _metrics  # noqa: E402, F401


def _autoload() -> None:
    """Entry point of group `torch.backends`: importing this package, which torch does by itself, is all it takes."""


__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
    "xm",
]
