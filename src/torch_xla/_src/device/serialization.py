"""Saving and loading: what is written mentions no xla, so files load with stock torch alone, as CPU tensors.

`torch.save` sees an xla tensor as its CPU copy. `torch.load(..., map_location="xla")` loads on the CPU, then moves.
Tensors that share a storage share one in the file, and after loading. `copy.deepcopy` keeps sharing too. Plain
pickle (multiprocessing queues) keeps the device. xla tensors have no memory that the host could read, but their
`data_ptr()` is unique to a storage: it tells which tensors share one (safetensors and others find tied weights by it).
"""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any

import torch

from torch_xla._src.device.aliasing import copy_sharing

_saving = threading.local()


def _during_save(original: Any) -> Any:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        _saving.copies = {}
        try:
            return original(*args, **kwargs)
        finally:
            _saving.copies = None

    return save


def _reduce(original: Any) -> Any:
    @functools.wraps(original)
    def _reduce_ex_internal(self: torch.Tensor, proto: Any) -> Any:
        if self.device.type != "xla":
            return original(self, proto)
        copies = getattr(_saving, "copies", None)
        if copies is not None:
            host = copy_sharing(self, copies, torch.Tensor.cpu)
            return host.requires_grad_(self.requires_grad)._reduce_ex_internal(proto)
        host = self.detach().cpu()
        # As PyTorch does for device xla, but its host copy is part of the graph and cannot be rebuilt.
        arguments = (host, self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, arguments

    return _reduce_ex_internal


def _is_xla(location: Any) -> bool:
    return isinstance(location, (str, torch.device)) and torch.device(location).type == "xla"


def _loading_to_xla(original: Any) -> Any:
    @functools.wraps(original)
    def load(file: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_xla(map_location):
            return move(original(file, "cpu", *args, **kwargs), map_location)
        if not isinstance(map_location, dict) or not any(map(_is_xla, map_location.values())):
            return original(file, map_location, *args, **kwargs)
        chosen: dict[int, Any] = {}  # by address of a storage, the device that its location is mapped to

        def on_host(storage: Any, location: str) -> Any:
            target = map_location.get(location, location)
            if _is_xla(target):
                chosen[storage.data_ptr()] = target
                return storage
            return torch.serialization.default_restore_location(storage, str(target))

        return move(original(file, on_host, *args, **kwargs), None, chosen)

    return load


def move(data: Any, target: Any, chosen: dict[int, Any] | None = None) -> Any:
    """`data` with its tensors on device `target`: containers are changed in place, Parameters and tied tensors keep identity.

    chosen: only tensors in storages at these addresses are moved, to these devices.
    """
    moved: dict[int, Any] = {}
    shared = _shared_storages(data)
    copies: dict[int, torch.Tensor] = {}  # by address of a shared storage, its contents on the device

    def to_device(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        device = target if chosen is None else chosen.get(storage.data_ptr(), x.device)
        negated = x.is_neg() or x.is_conj()  # the storage holds other numbers
        if storage.data_ptr() not in shared or negated or device == x.device:
            return x.detach().to(device)
        if storage.data_ptr() not in copies:
            copies[storage.data_ptr()] = torch.empty(0, dtype=x.dtype).set_(storage).to(device)
        whole = copies[storage.data_ptr()]
        if whole.dtype is not x.dtype:
            return x.detach().to(device)
        return torch.empty(0, dtype=x.dtype, device=device).set_(whole, x.storage_offset(), x.shape, x.stride())

    def visit(x: Any) -> Any:
        if id(x) in moved:
            return moved[id(x)][1]
        if isinstance(x, torch.nn.Module):
            result: Any = x.to(target if chosen is None else next(iter(chosen.values()), "cpu"))
        elif isinstance(x, torch.nn.Parameter):
            result = type(x)(to_device(x.data), x.requires_grad)
        elif isinstance(x, torch.Tensor):
            result = to_device(x).requires_grad_(x.requires_grad)
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


def _shared_storages(data: Any) -> set[int]:
    """Addresses of the storages that are not just one contiguous tensor in containers of `data`: several, or a part of one."""
    tensors: dict[int, set[int]] = {}
    parts = set()

    def visit(x: Any) -> None:
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.untyped_storage().nbytes():
            storage = x.untyped_storage()
            tensors.setdefault(storage.data_ptr(), set()).add(id(x))
            if x.numel() * x.element_size() != storage.nbytes() or not x.is_contiguous():
                parts.add(storage.data_ptr())
        elif isinstance(x, dict):
            list(map(visit, x.values()))
        elif isinstance(x, (list, tuple)):
            list(map(visit, x))

    visit(data)
    return {address for address, ids in tensors.items() if len(ids) > 1} | parts


def _deepcopy(original: Any) -> Any:
    @functools.wraps(original)
    def __deepcopy__(self: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        if self.device.type != "xla" or type(self) is not torch.Tensor or not self.is_leaf or id(self) in memo:
            copied: torch.Tensor = original(self, memo)
            return copied
        with torch.no_grad():
            new: torch.Tensor = copy_sharing(self, memo, torch.Tensor.clone)
            new.requires_grad_(self.requires_grad)
            if self.grad is not None:
                new.grad = copy.deepcopy(self.grad, memo)
            new.__dict__ = copy.deepcopy(self.__dict__, memo)
        memo[id(self)] = new
        return new

    return __deepcopy__


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
    torch.Tensor.__deepcopy__ = _deepcopy(torch.Tensor.__deepcopy__)
    torch.Tensor.storage = _storage(torch.Tensor.storage)
    torch.Tensor.data_ptr = _address(torch.Tensor.data_ptr)
    torch.UntypedStorage.data_ptr = _storage_address(torch.UntypedStorage.data_ptr)
