"""Saving and loading: what is written mentions no xla, so files load with stock torch alone, as CPU tensors.

`torch.save` sees an xla tensor as its CPU copy. `torch.load(..., map_location="xla")` loads on the CPU, then moves.
Plain pickle (multiprocessing queues) keeps the device. xla tensors have no memory that the host could read, but their
`data_ptr()` is unique to a storage: it tells which tensors share one (safetensors and others find tied weights by it).
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

_saving = threading.local()


def _during_save(original: Any) -> Any:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        _saving.active = True
        try:
            return original(*args, **kwargs)
        finally:
            _saving.active = False

    return save


def _reduce(original: Any) -> Any:
    @functools.wraps(original)
    def _reduce_ex_internal(self: torch.Tensor, proto: Any) -> Any:
        if self.device.type != "xla":
            return original(self, proto)
        host = self.detach().cpu()
        if getattr(_saving, "active", False):
            return host.requires_grad_(self.requires_grad)._reduce_ex_internal(proto)
        # As PyTorch does for device xla, but its host copy is part of the graph and cannot be rebuilt.
        arguments = (host, self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, arguments

    return _reduce_ex_internal


def _is_xla(location: Any) -> bool:
    return isinstance(location, (str, torch.device)) and torch.device(location).type == "xla"


def _loading_to_xla(original: Any) -> Any:
    @functools.wraps(original)
    def load(file: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_xla(map_location):
            return original(file, map_location, *args, **kwargs)
        return move(original(file, "cpu", *args, **kwargs), map_location)

    return load


def move(data: Any, device: Any) -> Any:
    """`data` with its tensors on `device`: containers are changed in place, Parameters and tied tensors keep identity."""
    moved: dict[int, Any] = {}

    def visit(x: Any) -> Any:
        if id(x) in moved:
            return moved[id(x)][1]
        if isinstance(x, torch.nn.Module):
            result: Any = x.to(device)
        elif isinstance(x, torch.nn.Parameter):
            result = type(x)(x.data.to(device), x.requires_grad)
        elif isinstance(x, torch.Tensor):
            result = x.detach().to(device).requires_grad_(x.requires_grad)
        elif isinstance(x, dict):
            for key in x:
                x[key] = visit(x[key])
            return x
        elif isinstance(x, list):
            x[:] = map(visit, x)
            return x
        elif isinstance(x, tuple):
            return type(x)(*map(visit, x)) if hasattr(x, "_fields") else type(x)(map(visit, x))
        else:
            return x
        moved[id(x)] = (x, result)
        return result

    return visit(data)


def _storage(original: Any) -> Any:
    @functools.wraps(original)
    def storage(self: torch.Tensor) -> Any:
        if self.device.type == "xla":
            raise NotImplementedError("a tensor on device xla has no storage; move it to the CPU first")
        return original(self)

    return storage


def _address(original: Any) -> Any:
    @functools.wraps(original)
    def data_ptr(self: torch.Tensor) -> int:
        address: int = original(self)  # on xla the offset into the storage, in bytes
        return address + self.untyped_storage()._cdata if self.device.type == "xla" else address

    return data_ptr


def _storage_address(original: Any) -> Any:
    @functools.wraps(original)
    def data_ptr(self: torch.UntypedStorage) -> int:
        return int(self._cdata if self.device.type == "xla" else original(self))

    return data_ptr


def install() -> None:
    """Wraps the functions of torch.serialization behind torch.save and torch.load, and methods of Tensor and its storage."""
    serialization = torch.serialization
    for name in ("_save", "_legacy_save"):
        setattr(serialization, name, _during_save(getattr(serialization, name)))
    for name in ("_load", "_legacy_load"):
        setattr(serialization, name, _loading_to_xla(getattr(serialization, name)))
    torch.Tensor._reduce_ex_internal = _reduce(torch.Tensor._reduce_ex_internal)
    torch.Tensor.storage = _storage(torch.Tensor.storage)
    torch.Tensor.data_ptr = _address(torch.Tensor.data_ptr)
    torch.UntypedStorage.data_ptr = _storage_address(torch.UntypedStorage.data_ptr)
