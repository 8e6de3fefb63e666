"""Names of PyTorch/XLA's `torch_xla.runtime`, usually imported as `xr`: what this process runs on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src import collectives, environment, surface
from torch_xla._src.api import device as _device
from torch_xla._src.deprecation import alias
from torch_xla._src.runtime import client

# ---- devices --------------------------------------------------------------------------------------------------------


def device_type() -> str:
    """ "CPU", "CUDA" or "TPU": `PJRT_DEVICE` where it is set, else what is found. Starts the client in that case."""
    return client.requested_type() or client.device_type()


def set_device_type(pjrt_device: str) -> None:
    """Sets `PJRT_DEVICE`. RuntimeError once the client runs on another type."""
    if client.is_initialized() and client.device_type() != pjrt_device.split("_")[0].upper():
        raise RuntimeError(
            f"device xla already runs on {client.device_type()}; set PJRT_DEVICE={pjrt_device} before the first use"
        )
    os.environ["PJRT_DEVICE"] = pjrt_device


def local_device_count() -> int:
    """The number of xla devices of all processes of this machine."""
    return local_process_count() * addressable_device_count()


def addressable_device_count() -> int:
    """The number of xla devices of this process."""
    return 1


def global_device_count() -> int:
    """The number of xla devices of all processes."""
    return process_count() * addressable_device_count()


def global_runtime_device_count() -> int:
    """The number of hardware devices of all processes. Starts the client."""
    return len(client.devices())


def addressable_runtime_device_count() -> int:
    """The number of hardware devices of this process. Starts the client."""
    return len(client.devices())


_ATTRIBUTES = {
    "coords": "coords",
    "core_on_chip": "core_on_chip",
    "num_cores": "num_cores",
    "slice_index": "slice_index",
}


def _attributes(device: Any) -> dict[str, object]:
    found: dict[str, object] = {"name": f"{client.device_type()}:{device.id}"}
    for name, attribute in _ATTRIBUTES.items():
        value = getattr(device, attribute, None)
        if value is not None:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """For each hardware device its `name`, as `CPU:0`; on TPUs `coords`, `core_on_chip` and others too."""
    return [_attributes(device) for device in client.devices()]


def runtime_device_attributes(device: str) -> dict[str, object]:
    """The same for one device, by the name `CPU:0` or `xla:0`. ValueError if there is none of that name."""
    known = global_runtime_device_attributes()
    named = {str(attributes["name"]): attributes for attributes in known}
    named |= {f"xla:{i}": attributes for i, attributes in enumerate(known)}
    if str(device) not in named:
        raise ValueError(f"no device {device}: there are {', '.join(named)}")
    return named[str(device)]


def is_bf16_supported() -> bool:
    """Whether tensors of dtype bfloat16 can be made: on every device that XLA has."""
    return True


# ---- processes ------------------------------------------------------------------------------------------------------


def world_size() -> int:
    """The number of processes that work together."""
    return collectives.world_size()


def global_ordinal() -> int:
    """The number of this process among all."""
    return collectives.ordinal()


def local_ordinal() -> int:
    """The number of this process among those of this machine."""
    return collectives.ordinal()


def local_process_count() -> int:
    """The number of processes on this machine."""
    return collectives.world_size()


def process_count() -> int:
    """The number of processes."""
    return collectives.world_size()


def process_index() -> int:
    """The number of this process among all."""
    return collectives.ordinal()


def host_index() -> int:
    """The number of this machine among all."""
    return 0


def is_spmd() -> bool:
    """Whether one program is sharded over all devices."""
    if environment.flag("XLA_USE_SPMD"):
        raise NotImplementedError(
            "XLA_USE_SPMD is set, but sharding over several devices is not there yet in this version of torch_xla: unset it"
        )
    return False


def get_master_ip() -> str:
    """The address of the first worker of a TPU pod. RuntimeError elsewhere."""
    if device_type() != "TPU":
        raise RuntimeError(f"IP discovery not supported for device: {device_type()}")
    return os.environ.get("TPU_WORKER_HOSTNAMES", "localhost").split(",")[0]


# ---- the compilation cache ------------------------------------------------------------------------------------------


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in directory `path`, instead of the user's cache directory.

    readonly: programs that are there are used, and no new ones kept. AssertionError once a program has been compiled.
    """
    from torch_xla._src.compile import disk_cache

    if disk_cache.enable.cache_info().currsize:
        raise AssertionError("Computation cache has already been initialized")
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = str(path)
    os.environ["XLA_PERSISTENT_CACHE_READ_ONLY"] = "1" if readonly else "0"


def get_num_cached_compilation_graph() -> int:
    """How many compiled programs this process keeps."""
    from torch_xla._src.compile import program_cache

    return program_cache.size()


# ---- names that PyTorch/XLA has removed -----------------------------------------------------------------------------


def _using_pjrt() -> bool:
    return True


def _xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    return _device(n)


def _requires_pjrt(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


using_pjrt = alias("torch_xla.runtime.using_pjrt", "nothing: there is no other runtime", _using_pjrt)
xla_device = alias("torch_xla.runtime.xla_device", "torch_xla.device", _xla_device)
requires_pjrt = alias("torch_xla.runtime.requires_pjrt", "nothing: there is no other runtime", _requires_pjrt)

__getattr__ = surface.missing(__name__)
