"""Starting a process per device. This version has the case of one device, which is the process itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch_xla._src.runtime import client


def num_local_devices() -> int:
    """How many devices of this machine there will be; does not start a client where the environment says it."""
    if client.requested_type() == "CPU" and not client.is_initialized():
        count = os.environ.get("CPU_NUM_DEVICES", "")
        return int(count) if count.isdigit() else 1
    return len(client.devices())


def launch(fn: Callable[..., Any], args: tuple[Any, ...], single_process: bool) -> None:
    """Calls `fn(index, *args)` for the only device; under torchrun the index is LOCAL_RANK."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ:
        raise NotImplementedError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: several processes that work together are not there yet in this version "
            "of torch_xla"
        )
    if not single_process and (count := num_local_devices()) > 1:
        raise NotImplementedError(
            f"there are {count} devices, and a process for each is not there yet in this version of torch_xla: pass "
            "debug_single_process=True (torch_xla.launch) or nprocs=1 (xmp.spawn) to use the first device"
        )
    fn(0, *args)
