"""In which memory of a device a tensor is: its own, or that of the host which it can reach. For offloading.

Source: memory kinds in JAX (https://docs.jax.dev/en/latest/notebooks/host-offloading.html).
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from torch_xla._src.ops.registry import lowers
from torch_xla._src.runtime import client

HOST, DEVICE = "host", "device"
_SPACES = {HOST: jax.memory.Space.Host, DEVICE: jax.memory.Space.Device}

_library = torch.library.Library("torch_xla", "FRAGMENT")
_library.define("place(Tensor x, str memory) -> Tensor")


def has_one_memory() -> bool:
    """Whether the device and its host share one memory."""
    return client.device_type() == "CPU"


@lowers("torch_xla.place")
def place(x: Any, memory: str) -> Any:
    return x if has_one_memory() else jax.device_put(x, _SPACES[memory])


_library.impl("place", lambda x, memory: torch.empty_like(x), "Meta")
_library.impl("place", lambda x, memory: x.clone(), "CPU")
