"""The tensor behind a user's xla tensor.

The user's tensor is a plain torch.Tensor made by torch._to_functional_tensor: PyTorch's C++ functionalization removes
views and writes. It wraps an `XlaTensor`, whose __torch_dispatch__ sees functional aten ops only and records them.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._src.graph.value import Value, contiguous_strides

DEVICE = torch.device("xla:0")
_make = torch.Tensor._make_wrapper_subclass
_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_FUNCTIONALIZE = torch._C.DispatchKey.Functionalize


class XlaTensor(torch.Tensor):
    """The tensor that functionalization works on; `value` says what it holds."""

    value: Value

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(op, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"XlaTensor(shape={tuple(self.value.spec.shape)}, dtype={self.value.spec.dtype})"


def _load_dispatch(op: Any, args: Any, kwargs: Any) -> Any:
    from torch_xla._src.graph import dispatch as module  # replaces `dispatch` below; imports the recorder

    return module.dispatch(op, args, kwargs)


dispatch = _load_dispatch


def check_device(device: torch.device | None) -> None:
    """RuntimeError for an xla device that this process does not have."""
    if device is not None and device.type == "xla" and (device.index or 0) != DEVICE.index:
        raise RuntimeError(
            f"there is no device {device}: this process computes on one xla device, {DEVICE}. Use device='xla'"
        )


def inner_of_value(value: Value) -> XlaTensor:
    """A new inner tensor that holds `value`."""
    spec = value.spec
    if value.offset:
        strides = spec.strides or contiguous_strides(spec.shape)
        tensor = _make(
            XlaTensor, spec.shape, strides=strides, storage_offset=value.offset, dtype=spec.dtype, device=DEVICE
        )
    elif spec.strides is None:
        tensor = _make(XlaTensor, spec.shape, dtype=spec.dtype, device=DEVICE)
    else:
        tensor = _make(XlaTensor, spec.shape, strides=spec.strides, dtype=spec.dtype, device=DEVICE)
    tensor.value = value
    return tensor


def inner_like(source: XlaTensor, value: Value) -> XlaTensor:
    """A new inner tensor for a view of `source`: an inference tensor if and only if that is one.

    Note [Inference tensors]
    Under inference_mode views of a tensor that was made outside are no inference tensors, and what is written to it stays
    none: PyTorch gives both a version counter, which an inference tensor cannot have.
    """
    if torch.is_inference_mode_enabled() and not source.is_inference():
        with torch.inference_mode(False):
            return inner_of_value(value)
    return inner_of_value(value)


def as_user(inner: torch.Tensor) -> torch.Tensor:
    """What a kernel returns: the functional tensor, or the bare one while functionalization is already running."""
    return inner if _excluded(_FUNCTIONALIZE) else torch._to_functional_tensor(inner)


def inner_of(tensor: torch.Tensor) -> XlaTensor:
    """The inner tensor, up to date, of a user's xla tensor. TypeError if it is none."""
    if type(tensor) is XlaTensor:
        return tensor
    if tensor.device.type != "xla" or not torch._is_functional_tensor(tensor):
        raise TypeError(f"expected a tensor on device xla, got one on {tensor.device}")
    torch._functionalize_sync(tensor)
    inner = torch._from_functional_tensor(tensor)
    if type(inner) is not XlaTensor:
        raise TypeError(f"expected a tensor on device xla, got {type(inner).__name__}")
    return inner


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a user's xla tensor that costs nothing: what it holds now, in a storage of its own."""
    return torch._to_functional_tensor(inner_of_value(value_of(tensor)))


def value_of(tensor: torch.Tensor) -> Value:
    """The Value that a user's xla tensor holds now."""
    return inner_of(tensor).value
