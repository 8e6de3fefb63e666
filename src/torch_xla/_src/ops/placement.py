"""In which memory of a device a tensor is: its own, or that of the host which it can reach. For offloading.

Source: memory kinds in JAX (https://docs.jax.dev/en/latest/notebooks/host-offloading.html).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xla._src.ops.registry import lowers
from torch_xla._src.runtime import client

HOST, DEVICE = "host", "device"
_SPACES = {HOST: jax.memory.Space.Host, DEVICE: jax.memory.Space.Device}

_HOST_KIND = "pinned_host"

_library = torch.library.Library("torch_xla", "FRAGMENT")
_library.define("place(Tensor x, str memory) -> Tensor")


def has_one_memory() -> bool:
    """Whether the device and its host share one memory."""
    return client.device_type() == "CPU"


def is_on_host(x: Any) -> bool:
    """Whether a traced array is in the host's memory."""
    return jax.typeof(x).memory_space == jax.memory.Space.Host


def where(condition: Any, x: Any, y: Any) -> Any:
    """`jnp.where` by a scalar, computed on the device, of arrays that may both be in the host's memory."""
    if not is_on_host(y):
        return jnp.where(condition, x, y)
    x, y = (jax.device_put(array, _SPACES[DEVICE]) for array in (x, y))
    return jax.device_put(jnp.where(condition, x, y), _SPACES[HOST])


def is_host_buffer(buffer: jax.Array) -> bool:
    """Whether a buffer is in the host's memory, where the device has one of its own."""
    return buffer.sharding.memory_kind == _HOST_KIND


def moved_to_host(buffer: jax.Array) -> jax.Array:
    """A copy of a buffer in the host's memory, or the buffer itself if it is there."""
    if is_host_buffer(buffer):
        return buffer
    with jax.enable_x64(True):
        return jax.device_put(buffer, buffer.sharding.with_memory_kind(_HOST_KIND))


@lowers("torch_xla.place")
def place(x: Any, memory: str) -> Any:
    return x if has_one_memory() else jax.device_put(x, _SPACES[memory])


_library.impl("place", lambda x, memory: torch.empty_like(x), "Meta")
_library.impl("place", lambda x, memory: x.clone(), "CPU")
