"""Ops that need the storage a tensor is in: kernels of our own, most of them under dispatch key Functionalize.

PyTorch's functionalization makes a view from the view it was asked of, and writes through the two step by step. That is
wrong for `as_strided`, which reads and writes the whole storage wherever its input is, and for `unfold` with gaps
between the windows. Both are made here from a tensor that owns the storage, and so are `resize_`, `set_` with a
geometry, and copies of tensors that share one. Other functional tensors (torch.compile traces with them) get PyTorch's
kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from torch_xla._src.graph.tensor import inner_of, inner_of_value
from torch_xla._src.graph.value import contiguous_strides

_library = torch.library.Library("aten", "IMPL", "Functionalize")
_composite = torch.library.Library("aten", "IMPL", "AutogradXLA")  # where a composite op is taken apart
_aten = torch.ops.aten
_storage_use_count = torch._C._storage_Use_Count
_views = torch._C._functionalization.get_view_meta_sequence


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other tensors are in the storage of an xla tensor."""
    return _use_count(tensor) > use_count_alone()


def _use_count(tensor: torch.Tensor) -> int:
    return int(_storage_use_count(tensor.untyped_storage()._cdata))


def is_alone(tensor: torch.Tensor) -> bool:
    """Whether an xla tensor shows all of its storage, as it lies there, and nobody else shows any of it."""
    return _storage_use_count(tensor.untyped_storage()._cdata) <= use_count_alone() and not _views(tensor)


@cache
def use_count_alone() -> int:
    """The use count of a storage that one tensor is in; how often its Python objects count depends on the release."""
    return _use_count(torch.empty(1, device="xla"))


def is_view(tensor: torch.Tensor) -> bool:
    """Whether an xla tensor shows a part of its storage, or shows it in another way than it lies there."""
    return bool(_views(tensor))


def owner(view: torch.Tensor) -> torch.Tensor:
    """A tensor that shares the storage of `view`, an xla tensor, and shows all of it: contiguous, at offset 0.

    RuntimeError if the storage holds elements that no tensor shows.
    """
    whole = view
    if is_view(view):
        shown = inner_of(view)
        base = shown.value if shown.value.base is None else shown.value.base()
        start = shown if base is None else inner_of_value(base)
        whole = torch._to_functional_tensor(start)
        torch._functionalize_unsafe_set(whole, view)  # shares the storage, and has no view of its own to apply
        # Shows what is in the storage, if that was written to; else `base` is what has been viewed.
        torch._functionalize_sync(whole)
        if base is None and torch._from_functional_tensor(whole) is start:
            raise RuntimeError("the tensor that this view was made of is gone; work on view.clone()")
    if whole.is_contiguous():
        return whole
    # Memory order, as the strides tell it: whole.t() where `whole` is a result with transposed strides.
    order = sorted(range(whole.ndim), key=lambda d: (-whole.stride(d), -whole.shape[d]))
    dense: torch.Tensor = _aten.permute.default(whole, order)
    if not dense.is_contiguous():
        raise RuntimeError("device xla cannot look at the storage of a tensor with gaps in it; work on a clone()")
    return dense


def _required(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """Elements that a storage must have for a view of this geometry."""
    return 0 if 0 in size else offset + 1 + sum((n - 1) * s for n, s in zip(size, stride))


def _as_strided(original: Any) -> Callable[..., torch.Tensor]:
    def as_strided(
        keys: Any, self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
    ) -> torch.Tensor:
        if self.device.type != "xla":
            return original.call_boxed(keys, self, size, stride, storage_offset)
        if len(size) != len(stride):
            raise RuntimeError("mismatch in length of strides and shape")
        if any(s < 0 for s in stride):
            raise RuntimeError("as_strided: Negative strides are not supported at the moment")
        offset = self.storage_offset() if storage_offset is None else storage_offset
        if offset < 0:
            raise RuntimeError(f"Tensor: invalid storage offset {offset}")
        whole = owner(self)
        if _required(size, stride, offset) > whole.numel():
            raise RuntimeError(
                f"as_strided: size {list(size)}, stride {list(stride)} and storage offset {offset} need "
                f"{_required(size, stride, offset)} elements, and the storage has {whole.numel()}"
            )
        return original.call_boxed(keys, whole, size, stride, offset)

    return as_strided


def _unfold(original: Any) -> Callable[..., torch.Tensor]:
    def unfold(keys: Any, self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
        rank = self.ndim
        length = self.shape[dimension] if rank and -rank <= dimension < rank else 0
        # What PyTorch puts back in place of what an unfold was made of is contiguous.
        tiled = size == step and length % max(size, 1) == 0 and self.is_contiguous()
        if self.device.type != "xla" or tiled or not 0 < size <= length or step <= 0:  # or an error, to be raised there
            return original.call_boxed(keys, self, dimension, size, step)
        dimension %= rank
        windows = (length - size) // step + 1
        shape = [*self.shape[:dimension], windows, *self.shape[dimension + 1 :], size]
        stride = list(self.stride())
        strides = [*stride[:dimension], step * stride[dimension], *stride[dimension + 1 :], stride[dimension]]
        return _aten.as_strided.default(self, shape, strides, self.storage_offset())

    return unfold


def _resize_(original: Any) -> Callable[..., torch.Tensor]:
    def resize_(keys: Any, self: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
        if not (self.is_xla and torch._is_functional_tensor(self)):
            return original.call_boxed(keys, self, size, memory_format=memory_format)
        if any(n < 0 for n in size):
            raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
        if memory_format not in (None, torch.contiguous_format):
            raise NotImplementedError("device xla resizes to a contiguous tensor only")
        if tuple(size) == tuple(self.shape):
            return self
        stride, offset = contiguous_strides(size), self.storage_offset()
        shared = is_shared(self)
        whole = owner(self).view(-1)
        missing = _required(size, stride, offset) - whole.numel()
        if missing > 0:
            if shared and whole.numel():
                raise RuntimeError(
                    "device xla cannot make a storage larger that another tensor shares: resize a clone() of the tensor"
                )
            whole = torch.cat([whole, whole.new_zeros(missing)])
        return self.set_(whole.as_strided(size, stride, offset))

    return resize_


def _set_(original: Any) -> Callable[..., torch.Tensor]:
    def set_(keys: Any, self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if self is source:
            return self
        if self.is_xla and torch._is_functional_tensor(self):
            # PyTorch forbids later writes to the storage that `self` leaves, which other tensors may be in.
            torch._functionalize_unsafe_set(self, torch._to_functional_tensor(inner_of(self)))
        return original.call_boxed(keys, self, source)

    return set_


def _set_with_geometry(
    self: torch.Tensor, source: torch.Tensor, storage_offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """`set_` to a part of another tensor's storage. Stock torch takes the storage itself for it, which is opaque here."""
    if not source.is_contiguous():
        raise RuntimeError("passed in tensor to be used as storage must be contiguous")
    offset = source.storage_offset() + storage_offset
    return self.set_(source.detach().as_strided(size, stride or contiguous_strides(size), offset))


def copy_sharing(tensor: torch.Tensor, copies: dict[Any, Any], copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of an xla tensor which shares its storage with the copies of those that the tensor shares its own with.

    copies: what has been copied so far; to be kept for all tensors of one operation. copy: copies a tensor that owns its
    storage, to any device.
    """
    if tensor.is_conj() or tensor.is_neg():  # its storage holds other numbers
        return copy(tensor.detach())
    try:
        whole = owner(tensor.detach())
    except RuntimeError:  # it has gaps, so nothing else can be in it that the copy would miss
        return copy(tensor.detach())
    if whole.dtype is not tensor.dtype:  # the real or imaginary part of a complex tensor
        return copy(tensor.detach())
    key = "storage", tensor.untyped_storage()._cdata
    if key not in copies:
        copies[key] = copy(whole), tensor  # the tensor too: its storage must not make room for another of this address
    new = copies[key][0]
    result = torch.empty((0,), dtype=new.dtype, device=new.device)
    return result.set_(new, tensor.storage_offset(), tensor.shape, tensor.stride())


def _copy_of_view(name: str) -> Callable[..., Any]:
    """`x_copy` as the user calls it: a new, contiguous tensor. Functionalization sends the same op for a view."""
    packet, _, overload = name.partition(".")

    def copy(*args: Any, **kwargs: Any) -> Any:
        if args[0].is_xla:
            views = getattr(getattr(_aten, packet.removesuffix("_copy")), overload or "default")(*args, **kwargs)
            if isinstance(views, torch.Tensor):
                return views.clone(memory_format=torch.contiguous_format)
            return [view.clone(memory_format=torch.contiguous_format) for view in views]
        torch._functionalize_sync(args[0])
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
            inner = torch._from_functional_tensor(args[0])
            copies = getattr(getattr(_aten, packet), overload or "default")(inner, *args[1:], **kwargs)
            return torch.utils._pytree.tree_map(torch._to_functional_tensor, copies)

    return copy


# Ops whose functional form is also what functionalization sends for the view.
_COPIES = (
    "alias_copy", "as_strided_copy", "detach_copy", "diagonal_copy", "expand_copy", "permute_copy", "select_copy.int",
    "slice_copy.Tensor", "split_copy.Tensor", "split_with_sizes_copy", "squeeze_copy", "squeeze_copy.dim",
    "squeeze_copy.dims", "t_copy", "transpose_copy.int", "unbind_copy.int", "unfold_copy", "unsqueeze_copy",
    "view_as_complex_copy", "view_as_real_copy", "view_copy", "view_copy.dtype",
)  # fmt: skip


def install() -> None:
    """Registers the kernels."""
    kernels = {"as_strided": _as_strided, "unfold": _unfold, "resize_": _resize_, "set_.source_Tensor": _set_}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # overriding is meant
        for name, kernel in kernels.items():
            original = torch.library.get_kernel(f"aten::{name}", "Functionalize")
            _library.impl(name, kernel(original), with_keyset=True)
        for name in _COPIES:
            _library.impl(name, _copy_of_view(name))
    _composite.impl("set_.source_Tensor_storage_offset", _set_with_geometry)
