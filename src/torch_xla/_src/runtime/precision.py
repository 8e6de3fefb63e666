"""Precision of float32 matrix products and convolutions.

Note [Precision of products]
TPUs multiply bfloat16 numbers, and GPUs may take TensorFloat-32: "default" lets the device choose the fastest way, "high"
takes three passes (or TensorFloat-32), "highest" computes in float32. On CPU they are the same. There is one setting, which
`torch.set_float32_matmul_precision` (where "medium" is "default") and `torch_xla.backends.set_mat_mul_precision` both
set; until one is called it is "default", as in PyTorch/XLA. It is part of the key of a program, and so may change between
steps.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

CHOICES = ("default", "high", "highest")
_OF_TORCH = {"medium": "default", "high": "high", "highest": "highest"}
_precision = "default"


def get() -> str:
    """The precision programs are compiled for: one of CHOICES."""
    return _precision


def set_(precision: str) -> None:
    """Sets it, for programs that are launched from now on. ValueError for what is none of CHOICES."""
    global _precision
    if precision not in CHOICES:
        raise ValueError(f"the precision of matrix products is one of {', '.join(CHOICES)}, not {precision!r}")
    _precision = precision


def _following(original: Any) -> Any:
    """`torch._C._set_float32_matmul_precision`, which `torch.set_float32_matmul_precision` calls."""

    @functools.wraps(original)
    def set_float32_matmul_precision(precision: str) -> None:
        original(precision)
        set_(_OF_TORCH[precision])

    return set_float32_matmul_precision


def install() -> None:
    """Follows torch's setting from now on."""
    torch._C._set_float32_matmul_precision = _following(torch._C._set_float32_matmul_precision)
