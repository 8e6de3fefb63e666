"""Names of PyTorch/XLA's `torch_xla.runtime`, usually imported as `xr`: what this process runs on."""

from __future__ import annotations

import os

from torch_xla._src.runtime import client


def device_type() -> str:
    """ "CPU", "CUDA" or "TPU": `PJRT_DEVICE` where it is set, else what is found. Starts the client in that case."""
    return client.requested_type() or client.device_type()


def set_device_type(name: str) -> None:
    """Sets `PJRT_DEVICE`. RuntimeError once the client runs on another type."""
    if client.is_initialized() and client.device_type() != name.upper():
        raise RuntimeError(
            f"device xla already runs on {client.device_type()}; set PJRT_DEVICE={name} before the first use"
        )
    os.environ["PJRT_DEVICE"] = name


def world_size() -> int:
    """The number of processes that work together."""
    return 1


def global_ordinal() -> int:
    """The number of this process among all."""
    return 0


def local_ordinal() -> int:
    """The number of this process among those of this machine."""
    return 0


def global_runtime_device_count() -> int:
    """The number of hardware devices of all processes. Starts the client."""
    return len(client.devices())


addressable_runtime_device_count = global_runtime_device_count


def is_spmd() -> bool:
    """Whether one program is sharded over all devices."""
    return False
