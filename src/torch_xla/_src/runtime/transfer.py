"""Copies between host tensors and device buffers. Both directions copy: no memory is ever shared with torch or numpy.

A device buffer that aliased a host tensor would change under a program that reads it later; a host tensor that aliased
a device buffer would change when the buffer is donated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_xla._src.runtime import client, mapped_files, metrics

# numpy has no such dtypes; their bits travel as integers of the same width.
_BITS = {torch.bfloat16: torch.int16}
_BITS |= {getattr(torch, n): torch.uint8 for n in dir(torch) if n.startswith("float8_")}

_ALIGNMENT = 64  # bytes: XLA's CPU client copies what is aligned less, so that it would be there twice
_WORTH_ALIGNING = 1 << 16  # bytes
_LARGE = 1 << 24  # bytes; from here on waiting for a transfer costs less than a second copy on the host

watcher: Callable[[torch.Tensor, Any], None] | None = None  # told of each upload, while a step is observed


def upload(tensor: torch.Tensor, placement: Any = None) -> Any:
    """A jax.Array with the contents of a CPU tensor, on `placement` (a device or sharding; default device if None)."""
    import jax

    from torch_xla._src.ops.dtypes import NARROWED, numpy_dtype

    start = time.perf_counter_ns()
    given, dtype = tensor, numpy_dtype(tensor.dtype)
    if tensor.dtype in NARROWED:
        tensor = tensor.to(NARROWED[tensor.dtype])
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    array = tensor.view(_BITS[tensor.dtype]).numpy().view(dtype) if tensor.dtype in _BITS else tensor.numpy()
    array = array.reshape(tensor.shape)  # .view() of a 0-d array of another dtype may add a dimension
    # JAX reads the host memory after device_put returns, or for ever (on CPU it aliases it, whatever `may_alias` says),
    # while the user may write to the tensor: hand over a private copy, or wait.
    waits = array.nbytes >= _LARGE and client.device_type() != "CPU"
    with jax.enable_x64(True):
        buffer = jax.device_put(array if waits else _private(array), placement or client.default_device())
    if waits:
        buffer.block_until_ready()
    mapped_files.let_go(given.data_ptr(), given.nbytes)  # Note [Mapped checkpoints]
    metrics.sample("TransferToDeviceTime", time.perf_counter_ns() - start)
    metrics.sample("OutboundData", array.nbytes)
    if watcher is not None:
        watcher(given, buffer)
    return buffer


def _private(array: Any) -> Any:
    """A copy of a contiguous array, aligned so that XLA's CPU client takes it as it is."""
    if array.nbytes < _WORTH_ALIGNING:
        return array.copy()
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A jax.Array of zeros on the default device, made there unless that is the CPU."""
    import jax
    import jax.numpy as jnp

    from torch_xla._src.ops.dtypes import numpy_dtype

    with jax.enable_x64(True):
        if client.device_type() == "CPU":  # no program is compiled
            return jax.device_put(np.zeros(shape, numpy_dtype(dtype)), client.default_device())
        return jnp.zeros(shape, numpy_dtype(dtype), device=client.default_device())


def download(buffer: Any, wanted: torch.dtype | None = None) -> torch.Tensor:
    """A CPU tensor with the contents of a jax.Array; waits until it is computed.

    wanted: the dtype of the tensor it belongs to, if the device may hold that narrowed.
    """
    from torch_xla._src.ops.dtypes import torch_dtype

    start = time.perf_counter_ns()
    dtype = torch_dtype(buffer.dtype)
    array = np.array(buffer, copy=True)
    if dtype in _BITS:
        bits = {2: np.int16, 1: np.uint8}[array.dtype.itemsize]
        tensor = torch.from_numpy(array.reshape(-1).view(bits)).view(dtype).reshape(array.shape)
    else:
        tensor = torch.from_numpy(array)
    metrics.sample("TransferFromDeviceTime", time.perf_counter_ns() - start)
    metrics.sample("InboundData", array.nbytes)
    return tensor if wanted is None else tensor.to(wanted)
