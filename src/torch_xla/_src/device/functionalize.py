"""Kernels of our own under dispatch key Functionalize, for ops whose schema does not say all that they do.

* `_pack_padded_sequence` returns a tensor that must stay on the host.
* `native_batch_norm` writes its running statistics although its schema does not say so.

The kernels serve any functional tensor (torch.compile traces with them), not only those on device xla.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "Functionalize")
_aten = torch.ops.aten
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


def _native_batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """`native_batch_norm` by the op whose schema declares the writes to the running statistics."""
    if running_mean is None or running_var is None:
        return _aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    return _aten._native_batch_norm_legit.default(x, weight, bias, running_mean, running_var, training, momentum, eps)


def _pack_padded_sequence(x: Any, lengths: Any, batch_first: bool) -> Any:
    """As the CPU kernel; the batch sizes stay on the host, where PyTorch's kernel for this key would wrap them."""
    functional = torch._is_functional_tensor(x)
    if functional:
        torch._functionalize_sync(x)
    with torch._C._ExcludeDispatchKeyGuard(_KEY):
        inner = torch._from_functional_tensor(x) if functional else x
        data, batch_sizes = _aten._pack_padded_sequence(inner, lengths, batch_first)
        return (torch._to_functional_tensor(data) if functional else data), batch_sizes


def install() -> None:
    """Registers the kernels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # overriding is meant
        _library.impl("native_batch_norm", _native_batch_norm)
        _library.impl("_pack_padded_sequence", _pack_padded_sequence)
