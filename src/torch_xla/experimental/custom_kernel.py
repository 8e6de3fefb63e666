"""Names of PyTorch/XLA's `torch_xla.experimental.custom_kernel`: kernels, and what code that writes kernels uses."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._internal.jax_workarounds import jax_import_guard
from torch_xla._src import surface


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """The JAX (NumPy) dtype of a torch dtype."""
    from torch_xla._src.ops.dtypes import numpy_dtype

    return numpy_dtype(dtype)


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> Any:
    """Shape and dtype of a tensor as a jax.ShapeDtypeStruct."""
    import jax

    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


__all__ = ["convert_torch_dtype_to_jax", "jax_import_guard", "to_jax_shape_dtype_struct"]

__getattr__ = surface.missing(__name__)
