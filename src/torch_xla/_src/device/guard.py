"""Device guard for `xla`: what stock torch needs before it accepts a tensor on that device.

A c10 device guard is a C++ object that switches the current device of a thread. Stock torch has the dispatch keys of
XLA but no guard ("PyTorch is not linked with support for xla devices"). libc10 exports the registry of guards, an array
of pointers indexed by device type, so one can be supplied from Python: the vtable of the guard of device meta, which
switches nothing, with three slots replaced.

Note [The guard stands before the first backward]
The autograd engine counts devices once, at the first backward of the process, CPU's included, and starts a thread for
each. So the guard is installed when torch_xla is loaded (torch loads it itself, by entry point), which needs no JAX.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import torch

_XLA, _META = 9, 14  # c10::DeviceType
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_HEADER = 2  # pointers before the first slot of a vtable: offset to top, type information
_SLOTS = 64
_TYPE, _EXCHANGE_DEVICE, _GET_DEVICE = 0, 1, 2
_KEPT: list[Any] = []  # C++ holds pointers to these for ever


def _answer(result: Any, *arguments: Any) -> Any:
    """A C callback with the calling convention of a guard's method, that answers "xla"."""
    # A c10::Device is two bytes, type then index, so `xla:0` returned by value is the uint16 9.
    callback = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(lambda *_: _XLA)
    _KEPT.append(callback)
    return ctypes.cast(callback, ctypes.c_void_p).value


def _pointer_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _type_of(guard: int) -> int:
    """What a guard object answers to `type()`."""
    slot = _pointer_at(_pointer_at(guard) + _TYPE * ctypes.sizeof(ctypes.c_void_p))
    return ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(slot)(guard)


def _registry() -> Any:
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        return (ctypes.c_void_p * 32).in_dll(ctypes.CDLL(library), _REGISTRY)
    except (OSError, ValueError) as error:
        raise ImportError(
            f"torch_xla cannot add device xla to torch {torch.__version__}: {library} does not export the registry of "
            f"device guards ({error}). Supported is torch >= 2.9 for Linux."
        ) from error


@cache
def install() -> None:
    """Registers the guard of device xla, once. ImportError on a torch whose layout is not the one known here.

    A guard that is there already (torch built with XLA support) is left alone.
    """
    registry = _registry()
    if registry[_XLA]:
        return
    meta = registry[_META]
    if not meta or _type_of(meta) != _META:
        raise ImportError(f"torch_xla cannot add device xla to torch {torch.__version__}: its device guards have moved")
    size = ctypes.sizeof(ctypes.c_void_p)
    vtable = (ctypes.c_void_p * _SLOTS)()
    ctypes.memmove(vtable, _pointer_at(meta) - _HEADER * size, _SLOTS * size)
    # type() must be XLA, or autograd starts no thread for the device; getDevice() too, or `.to("xla")` lands on meta.
    vtable[_HEADER + _TYPE] = _answer(ctypes.c_int8)
    vtable[_HEADER + _EXCHANGE_DEVICE] = _answer(ctypes.c_uint16, ctypes.c_uint16)
    vtable[_HEADER + _GET_DEVICE] = _answer(ctypes.c_uint16)
    guard = (ctypes.c_void_p * 2)(ctypes.addressof(vtable) + _HEADER * size, None)
    _KEPT.extend((vtable, guard))
    registry[_XLA] = ctypes.addressof(guard)
    assert _type_of(registry[_XLA]) == _XLA
