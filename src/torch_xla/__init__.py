"""PyTorch on TPUs, GPUs and CPUs through XLA, in pure Python on stock torch and JAX.

Importing it is free: no JAX, no device client, no output (the first device op loads those).
"""

from __future__ import annotations


def _autoload() -> None:
    """Entry point of group `torch.backends`: importing this package, which torch does by itself, is all it takes.

    Defined first, because `import torch_xla` imports torch, which comes back for it.
    """


from torch_xla._src.versions import check as _check  # noqa: E402  (after _autoload, or after the check)
from torch_xla.version import __version__  # noqa: E402  (after _autoload, or after the check)

_check()

from torch_xla._src import device as _device  # noqa: E402  (after _autoload, or after the check)

_device.install()

from torch_xla import debug, runtime  # noqa: E402  (after _autoload, or after the check)
from torch_xla._src import surface as _surface  # noqa: E402  (after _autoload, or after the check)
from torch_xla._src.api import (  # noqa: E402  (after _autoload, or after the check)
    compile,
    device,
    device_count,
    devices,
    launch,
    logger,
    manual_seed,
    real_devices,
    step,
    sync,
)
from torch_xla._src.graph.lengths import (  # noqa: E402  (after _autoload, or after the check)
    VaryingLengthError,
    mark_dynamic,
)
from torch_xla.core import xla_env_vars as xenv  # noqa: E402  (after _autoload, or after the check)
from torch_xla.core import xla_model as xm  # noqa: E402  (after _autoload, or after the check)
from torch_xla.debug import metrics as _metrics  # noqa: E402, F401  (an attribute after `import torch_xla`)

xr = runtime
_SHORT = {"tpu": "_internal.tpu", "xmp": "distributed.xla_multiprocessing", "xu": "utils.utils"}
_find = _surface.missing(__name__)


def __getattr__(name: str) -> object:
    """Modules are loaded when they are first asked for, so that importing this one stays cheap."""
    if name in _SHORT:
        import importlib

        return importlib.import_module(f"{__name__}.{_SHORT[name]}")
    if name == "_found_libtpu":
        import importlib.util

        return importlib.util.find_spec("libtpu") is not None
    return _find(name)


__all__ = [
    "VaryingLengthError",
    "__version__",
    "compile",
    "debug",
    "device",
    "device_count",
    "devices",
    "launch",
    "logger",
    "manual_seed",
    "mark_dynamic",
    "real_devices",
    "runtime",
    "step",
    "sync",
    "xenv",
    "xm",
    "xr",
]
