"""`linear` on device xla is one op forward and one backward, not the six of its composition.

PyTorch declares a derivative of `linear` for backends that have a kernel of it. What that derivative does not cover goes
through the composition: weights and biases of other ranks, dtypes that are not floating, forward-mode derivatives; and
so do dtypes that differ, which is an error.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.autograd import forward_ad

_backend = torch.library.Library("aten", "IMPL", "XLA")
_library = torch.library.Library("aten", "IMPL", "AutogradXLA")


def _never_called(*args: Any) -> Any:
    raise AssertionError("an op on xla tensors passed functionalization by")


def _linear(original: Any) -> Any:
    compose = torch.ops.aten.linear.default.decompose

    def linear(keys: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        dtype = x.dtype
        if (
            weight.ndim == 2
            and weight.dtype is dtype
            and (bias is None or (bias.ndim == 1 and bias.dtype is dtype))
            and dtype.is_floating_point
            and forward_ad._current_level < 0
        ):
            return original.call_boxed(keys, x, weight, bias)
        return compose(x, weight, bias)

    return linear


def install() -> None:
    """Registers the kernels."""
    _backend.impl("linear", _never_called)  # that there is one is what makes PyTorch choose the derivative
    original = torch.library.get_kernel("aten::linear", "AutogradXLA")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # overriding is meant
        _library.impl("linear", _linear(original), with_keyset=True)
