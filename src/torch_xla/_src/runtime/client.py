"""The PJRT client behind device `xla`: which hardware, which devices. JAX is imported here, at the first device op.

`PJRT_DEVICE` chooses CPU, CUDA or TPU; by default the best that JAX finds. `CPU_NUM_DEVICES` splits the CPU.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from typing import Any

from torch_xla._src.runtime import host_memory

_PLATFORMS = {"CPU": "cpu", "CUDA": "cuda", "GPU": "cuda", "TPU": "tpu"}
CHOICES = ("CPU", "CUDA", "TPU")
_lock = threading.Lock()
_devices: list[Any] | None = None


def requested_type() -> str | None:
    """`PJRT_DEVICE` up to its first underscore, or None where it is not set. Does not touch the client."""
    name = os.environ.get("PJRT_DEVICE", "")
    return name.split("_")[0].upper() or None


def is_initialized() -> bool:
    """Whether the client is up: a device op has run."""
    return _devices is not None


def devices() -> list[Any]:
    """The jax.Devices of this process, starting the client at the first call.

    RuntimeError names `PJRT_DEVICE` and the choices if it asks for what is unknown or not there.
    """
    global _devices
    if _devices is None:
        with _lock:
            if _devices is None:
                _devices = _start()
    return _devices


def default_device() -> Any:
    """The jax.Device that holds tensors on `xla:0`."""
    return devices()[0]


def device_type() -> str:
    """ "CPU", "CUDA" or "TPU": the hardware that device xla is on. Starts the client."""
    platform = default_device().platform
    return {"cpu": "CPU", "gpu": "CUDA", "cuda": "CUDA", "tpu": "TPU"}.get(platform, platform.upper())


def _start() -> list[Any]:
    name = requested_type()
    if name is not None and name not in _PLATFORMS:
        raise RuntimeError(
            f"PJRT_DEVICE={os.environ['PJRT_DEVICE']} is not a device type known here: set the environment variable "
            f"PJRT_DEVICE to one of {', '.join(CHOICES)}, or unset it to take the best there is"
        )
    if name in (None, "CPU"):  # before JAX starts threads that get arenas of their own
        host_memory.keep_freed_memory()
    import jax

    # Workers of a DataLoader are forked from a process that has loaded JAX; they never call it, so the warning that
    # JAX gives at each fork would be noise.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    _configure(jax, name)
    quiet = logging.getLogger("jax._src.xla_bridge")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # "falling back to CPU" is what an unset PJRT_DEVICE asks for
    try:
        return list(jax.local_devices(backend=_PLATFORMS[name] if name else None))
    except RuntimeError as error:
        raise RuntimeError(
            f"PJRT_DEVICE={name or '(not set)'}: no such device could be started ({error}). "
            f"The choices are {', '.join(CHOICES)}; CUDA and TPU need the extras torch_xla[cuda] and torch_xla[tpu]"
        ) from error
    finally:
        quiet.setLevel(level)


def _configure(jax: Any, name: str | None) -> None:
    """Settings that only count before JAX starts its clients; the user's own JAX settings go first."""
    if name == "CPU" and not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")  # start no TPU or GPU client that nobody asked for
    count = os.environ.get("CPU_NUM_DEVICES")
    if count and jax.config.jax_num_cpu_devices < 0:
        try:
            jax.config.update("jax_num_cpu_devices", int(count))
        except RuntimeError:  # the user's code has started JAX: its devices are what there is
            warnings.warn("CPU_NUM_DEVICES has no effect: JAX was already started", stacklevel=2)
