"""`linear` on device xla is one op forward and one backward, not the six of its composition.

PyTorch declares a derivative of `linear` for backends that have a kernel of it. What that derivative does not cover goes
through the composition: weights and biases of other ranks, dtypes that are not floating, forward-mode derivatives; and
so do dtypes that differ, which is an error. So does what a TorchDispatchMode looks at: a policy of selective checkpointing,
or a count of operations, names the matrix products that other devices have.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.autograd import forward_ad

from torch_xla._src.graph.tensor import inner_of

_backend = torch.library.Library("aten", "IMPL", "XLA")
_library = torch.library.Library("aten", "IMPL", "AutogradXLA")
_functionalize = torch.library.Library("aten", "IMPL", "Functionalize")
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


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
            and not torch._C._len_torch_dispatch_stack()
        ):
            return original.call_boxed(keys, x, weight, bias)
        return compose(x, weight, bias)

    return linear


def _functional(original: Any) -> Any:
    """For releases of torch (2.9) in which functionalization takes the op apart."""

    def linear(keys: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        if not (x.is_xla and torch._is_functional_tensor(x)):
            return original.call_boxed(keys, x, weight, bias)
        inner = [None if t is None else inner_of(t) for t in (x, weight, bias)]
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            return torch._to_functional_tensor(torch.ops.aten.linear.default(*inner))

    return linear


def _is_taken_apart() -> bool:
    lines = torch._C._dispatch_dump_table("aten::linear").splitlines()
    return any(line.startswith("Functionalize:") and "math kernel" in line for line in lines)


def install() -> None:
    """Registers the kernels."""
    _backend.impl("linear", _never_called)  # that there is one is what makes PyTorch choose the derivative
    original = torch.library.get_kernel("aten::linear", "AutogradXLA")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # overriding is meant
        _library.impl("linear", _linear(original), with_keyset=True)
        if _is_taken_apart():
            taken_apart = torch.library.get_kernel("aten::linear", "Functionalize")
            _functionalize.impl("linear", _functional(taken_apart), with_keyset=True)
