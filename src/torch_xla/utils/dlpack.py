"""Names of PyTorch/XLA's `torch_xla.utils.dlpack`. Tensors are copied: XLA may donate or move the memory of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack

from torch_xla._src import surface


def to_dlpack(xla_tensor: Any) -> Any:
    """A DLPack capsule, on the CPU, with a copy of an xla tensor; launches what is pending for it."""
    if not isinstance(xla_tensor, torch.Tensor) or not xla_tensor.is_xla:
        raise TypeError(f"to_dlpack needs a tensor on device xla, got {type(xla_tensor).__name__}")
    return torch.utils.dlpack.to_dlpack(xla_tensor.detach().cpu())


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """An xla tensor with a copy of what a DLPack capsule, or an object with `__dlpack__` (NumPy, JAX, torch), holds."""
    return torch.utils.dlpack.from_dlpack(ext_tensor).to("xla")


__getattr__ = surface.missing(__name__)
