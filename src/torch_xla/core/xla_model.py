"""Names of PyTorch/XLA's `torch_xla.core.xla_model`, usually imported as `xm`."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import torch

from torch_xla._src import api
from torch_xla._src.api import wait_device_ops
from torch_xla._src.runtime import client, memory, rng
from torch_xla._src.step_closures import add_step_closure

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The xla device, as `torch_xla.device(n)`."""
    return api.device(n)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Cuts and launches the pending recording, as `torch_xla.sync()`."""
    api.sync(wait, reset_scope)


def get_xla_supported_devices(max_devices: int | None = None) -> list[str]:
    """Names of the xla devices, as `xla:0`."""
    return [str(d) for d in api.devices()][:max_devices]


def xla_device_hw(device: Any) -> str:
    """The hardware behind an xla device: `CPU`, `CUDA` or `TPU`; for another device its type in capitals."""
    kind = torch.device(device).type
    return client.device_type() if kind == "xla" else kind.upper()


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on device xla."""
    return tensor.device.type == "xla"


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is the first process; with one process, always."""
    return True


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Prints on the first process."""
    if is_master_ordinal(local):
        print(*args, file=fd or sys.stdout, flush=flush)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """`optimizer.step(**optimizer_args)`; returns what that does. barrier: also sync."""
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return result


def set_rng_state(seed: int, device: Any = None) -> None:
    """Sets the random state of device xla, an integer."""
    rng.set_state(seed)


def get_rng_state(device: Any = None) -> int:
    """The random state of device xla, an integer that changes with use."""
    return rng.get_state()


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Bytes on the device: `bytes_used`, `bytes_limit`, `peak_bytes_used`, and the older `kb_total`, `kb_free`."""
    return memory.info()


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """`torch.save` of `data` with its xla tensors moved to the CPU."""
    torch.save(_maybe_convert_to_cpu(data), file_or_path)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    def to_cpu(x: Any) -> Any:
        return x.cpu() if isinstance(x, torch.Tensor) and is_xla_tensor(x) else x

    return torch.utils._pytree.tree_map(to_cpu, data) if convert else data


__all__ = [
    "REDUCE_AND", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_MUL", "REDUCE_OR", "REDUCE_SUM", "add_step_closure", "get_memory_info",
    "get_rng_state", "get_xla_supported_devices", "is_master_ordinal", "is_xla_tensor", "mark_step", "master_print",
    "optimizer_step", "save", "set_rng_state", "wait_device_ops", "xla_device", "xla_device_hw",
]  # fmt: skip
