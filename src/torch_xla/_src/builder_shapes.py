"""Dtypes and shapes as PyTorch/XLA's `xla_builder` names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Type:
    """Names of dtypes."""

    F32, F64, BF16, F16 = "f32", "f64", "bf16", "f16"
    U8, S8, U16, S16, U32, S32, U64, S64 = "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"
    C64, C128, PRED = "c64", "c128", "pred"


_NAMES = {
    "f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "u8": "uint8", "s8": "int8",
    "u16": "uint16", "s16": "int16", "u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64",
    "c64": "complex64", "c128": "complex128", "pred": "bool",
}  # fmt: skip
_TYPES = {name: kind for kind, name in _NAMES.items()}


def dtype_of(kind: str) -> np.dtype:
    """The NumPy dtype (JAX's for bf16) of a name of Type. ValueError for another."""
    if kind not in _NAMES:
        raise ValueError(f"{kind!r} is no name of a dtype: {', '.join(_NAMES)}")
    if kind == "bf16":
        import ml_dtypes  # comes with JAX

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_NAMES[kind])


def type_of(dtype: np.dtype) -> str:
    """The name in Type of a NumPy dtype."""
    return _TYPES[dtype.name]


class Shape:
    """The sizes and dtype of an array, or the Shapes of a tuple's elements."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape

    @classmethod
    def create(cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Any = None) -> Shape:
        """The Shape of an array."""
        if dynamic_dimensions is not None and any(dynamic_dimensions):
            raise NotImplementedError("device xla has static shapes only")
        dtype_of(dtype)
        return cls((dtype, tuple(sizes)))

    @property
    def shape(self) -> Any:
        """What it was made of."""
        return self._shape

    def is_tuple(self) -> bool:
        """Whether it is that of a tuple."""
        return bool(self._shape) and isinstance(self._shape[0], Shape)

    def tuple_size(self) -> int:
        """How many elements the tuple has."""
        return len(self._shape)

    def tuple_shape(self, index: int) -> Shape:
        """The Shape of an element."""
        element: Shape = self._shape[index]
        return element

    def is_dynamic(self) -> bool:
        """Whether a size is not known; never."""
        return False

    def as_scalar(self) -> Shape:
        """The Shape of one element."""
        return Shape((self.dtype, ()))

    @property
    def rank(self) -> int:
        """How many dims there are."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each dim."""
        sizes: tuple[int, ...] = self._shape[1]
        return sizes

    @property
    def dtype(self) -> str:
        """The dtype, a name of Type."""
        return str(self._shape[0])

    @property
    def dynamic_dimensions(self) -> None:
        """Which dims are dynamic; None, since none is."""
        return None

    def __repr__(self) -> str:
        return f"Shape({self._shape!r})"
