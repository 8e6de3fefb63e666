"""Kernels under dispatch key XLA: factories, which have no xla tensor among their arguments, and copies from the host.

All other ops are caught by XlaTensor.__torch_dispatch__. The recorder is imported at the first call, not at import.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "XLA")
_aten = torch.ops.aten


@cache
def _first_tensor() -> None:
    """What can wait until there is an xla tensor, and is too much for `import torch_xla`."""
    from torch_xla._src.device import writes

    writes.install()


def _record(op: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """Records a factory; `dtype` is passed on where given. Returns what the caller expects: functional, or bare."""
    _first_tensor()
    from torch_xla._src.graph.dispatch import dispatch
    from torch_xla._src.graph.tensor import as_user

    if dtype is not None:
        kwargs["dtype"] = dtype
    return as_user(dispatch(op, args, kwargs))


def _check(layout: torch.layout | None, device: torch.device | None) -> None:
    from torch_xla._src.graph.tensor import check_device

    check_device(device)
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"device xla has strided tensors only, not layout {layout}")


def _unset(size: Any, dtype: torch.dtype | None, strides: Any = None) -> torch.Tensor:
    """A tensor that nothing has been written to: it makes a row only if it is read before it is filled."""
    from torch_xla._src.graph.tensor import as_user, inner_of_value
    from torch_xla._src.graph.value import UNSET, Spec, Value

    _first_tensor()
    spec = Spec(tuple(size), dtype or torch.get_default_dtype(), strides)
    return as_user(inner_of_value(Value(spec, generation=UNSET)))


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    _check(layout, device)
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return _unset(size, dtype)
    return _unset(size, dtype, torch.empty(size, device="meta", memory_format=memory_format).stride())


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    from torch_xla._src.graph.value import contiguous_strides, is_dense

    _check(layout, device)
    strides = tuple(stride)
    if strides == contiguous_strides(size) or not is_dense(size, strides):  # a storage with gaps is made without them
        return _unset(size, dtype)
    return _unset(size, dtype, strides)


def _empty_permuted(
    size: Any, physical_layout: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """What `torch.empty_like` of a meta tensor comes to; PyTorch's own form takes a view, for which memory is made."""
    return _empty_strided(
        size, torch.empty_permuted(size, physical_layout, device="meta").stride(), dtype, layout, device
    )


def _factory(op: Any) -> Callable[..., torch.Tensor]:
    """A kernel that records a factory op as it is called."""

    def kernel(
        *args: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        _check(layout, device)
        return _record(op, *args, dtype=dtype, **kwargs)

    return kernel


def _zeros(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    _check(layout, device)
    return _record(_aten.zeros.default, list(size), dtype=dtype)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`target.copy_(source)` where either is on device xla; PyTorch's own copy_ ends here."""
    from torch_xla._src.graph.dispatch import dispatch
    from torch_xla._src.graph.tensor import XlaTensor, inner_of

    if target.device.type != "xla":
        return target.copy_(source.cpu())
    inner = inner_of(target)
    source = source if type(source) is XlaTensor or source.device.type != "xla" else inner_of(source)
    inner.value = dispatch(_aten.copy.default, (inner, source), {}).value
    return target


def _refuse_generator(*_: Any, **__: Any) -> Any:
    raise RuntimeError("device xla keeps its random state itself: use torch_xla.manual_seed, or a CPU torch.Generator")


FACTORIES = (
    "arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "logspace", "randperm",
    "randperm.generator", "range.step", "range", "tril_indices", "triu_indices", "full", "zeros", "ones",
    "scalar_tensor", "hann_window", "hann_window.periodic",
)  # fmt: skip


def install() -> None:
    """Registers the kernels. A factory that this torch lacks is passed over."""
    _library.impl("empty.memory_format", _empty)
    _library.impl("empty_strided", _empty_strided)
    _library.impl("empty_permuted", _empty_permuted)
    _library.impl("_efficientzerotensor", _zeros)  # forward-mode derivatives start with it
    _library.impl("_copy_from", _copy_from)
    _library.impl("_copy_from_and_resize", _copy_from)
    for name in FACTORIES:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(_aten, packet, None), overload or "default", None)
        if op is not None:
            _library.impl(name, _factory(op))
    # C++ calls this to tell lazy backends about aliases; there is nothing to tell, and the C++ kernel is a no-op.
    _python.impl("_propagate_xla_data", torch.library.fallthrough_kernel)


_python = torch.library.Library("aten", "IMPL", "Python")
