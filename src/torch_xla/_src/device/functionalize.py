"""Kernels of our own under dispatch key Functionalize, for in-place ops that PyTorch's handle badly.

* C++ functionalization runs the meta kernel of each in-place op first, to check shapes. For `_foreach_*_` that kernel
  is slow Python, a third of the host time of an optimizer step. Here the shapes of the results are compared instead.
* It takes an empty list of tensors (`max_exp_avg_sqs` of `_fused_adam_`) for one that is not functional, and refuses.
* The meta kernels of `exponential_` and its like refuse a generator.
* `_pack_padded_sequence` returns a tensor that must stay on the host.
* `native_batch_norm` writes its running statistics although its schema does not say so.

The kernels serve any functional tensor (torch.compile traces with them), not only those on device xla.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "Functionalize")
_aten = torch.ops.aten
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
_is_functional = torch._is_functional_tensor


def _unwrap(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        if not _is_functional(x):
            return x
        torch._sync(x)
        return torch._from_functional_tensor(x)
    return [_unwrap(item) for item in x] if isinstance(x, (list, tuple)) else x


def _functional_inputs(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return bool(_is_functional(x))
    return isinstance(x, (list, tuple)) and any(map(_functional_inputs, x))


def _write(target: Any, result: Any) -> None:
    """What the in-place op would have done: `target` (or each tensor of it) takes the contents of `result`."""
    if isinstance(target, (list, tuple)):
        for one, new in zip(target, result, strict=True):
            _write(one, new)
        return
    if target.shape != result.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}: an in-place "
            "op cannot change the shape of its tensor"
        )
    if result.dtype != target.dtype:
        result = result.to(target.dtype)
    torch._functionalize_replace(target, _with_strides_of(target, result))
    torch._functionalize_commit_update(target)
    torch._functionalize_sync(target)


def _with_strides_of(target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A fresh result that reports the strides of the tensor it is written to: an in-place op does not change them."""
    value = getattr(result, "value", None)
    if value is None or target.stride() == result.stride():
        return result
    from torch_xla._src.graph.tensor import inner_of_value

    value.spec = value.spec._replace(strides=None if target.is_contiguous() else tuple(target.stride()))
    return inner_of_value(value)


def _in_place(op: Any, functional: Any) -> Callable[..., Any]:
    """The kernel of in-place `op`, by way of its functional form, whose results stand in the order of what is written."""
    written = [i for i, a in enumerate(op._schema.arguments) if a.is_write]
    returns = len(op._schema.returns)
    # Fused optimizers declare a write to the gradients, which happens only when there is a scale to take off.
    unscaled = 1 if "grad_scale" in [a.name for a in op._schema.arguments] else None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            if not _functional_inputs(args):
                return op(*args, **kwargs)
            results = functional(*map(_unwrap, args), **{k: _unwrap(v) for k, v in kwargs.items()})
            if len(written) == 1:
                results = [results]
            for position, result in zip(written, results, strict=True):
                if not (position == unscaled and kwargs.get("grad_scale") is None):
                    _write(args[position], result)
        return args[0] if returns == 1 else None

    return kernel


_OTHERS = (
    "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "_amp_foreach_non_finite_check_and_unscale_",
    "cauchy_", "exponential_", "geometric_", "log_normal_",
    # Their functional forms return contiguous tensors, which would change the strides of a transposed target.
    "masked_fill_", "masked_scatter_", "index_add_", "index_copy_", "index_fill_", "index_reduce_", "scatter_",
    "scatter_add_", "scatter_reduce_", "put_", "cumsum_", "cumprod_", "bernoulli_", "tril_", "triu_", "addmm_", "addbmm_",
    "baddbmm_", "addmv_", "addr_", "renorm_",
)  # fmt: skip


def _bernoulli(x: Any, p: float = 0.5, **kwargs: Any) -> Any:
    """The functional form of `bernoulli_.float`, which has a default that its own lacks."""
    return _aten.bernoulli.p(x, p, **kwargs)


def _pairs() -> list[tuple[Any, Any]]:
    """(in-place overload, functional overload) of the ops served here."""
    names = {
        n.partition("::")[2].partition(".")[0] for n in torch._C._dispatch_get_all_op_names() if "::_foreach_" in n
    }
    pairs = []
    for name in sorted(n for n in names if n.endswith("_")) + list(_OTHERS):
        packet, functional = getattr(_aten, name, None), getattr(_aten, name[:-1], None)
        for overload in packet.overloads() if packet and functional else ():
            if hasattr(functional, overload):
                pairs.append((getattr(packet, overload), getattr(functional, overload)))
    return [*pairs, (_aten.bernoulli_.float, _bernoulli)]


def _native_batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """`native_batch_norm` by the op whose schema declares the writes to the running statistics."""
    if running_mean is None or running_var is None:
        return _aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    return _aten._native_batch_norm_legit.default(x, weight, bias, running_mean, running_var, training, momentum, eps)


def _pack_padded_sequence(x: Any, lengths: Any, batch_first: bool) -> Any:
    """As the CPU kernel; the batch sizes stay on the host, where PyTorch's kernel for this key would wrap them."""
    with torch._C._ExcludeDispatchKeyGuard(_KEY):
        data, batch_sizes = _aten._pack_padded_sequence(_unwrap(x), lengths, batch_first)
        return (torch._to_functional_tensor(data) if _is_functional(x) else data), batch_sizes


def install() -> None:
    """Registers the kernels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # overriding is meant
        for op, functional in _pairs():
            _library.impl(op, _in_place(op, functional))
        _library.impl("native_batch_norm", _native_batch_norm)
        _library.impl("_pack_padded_sequence", _pack_padded_sequence)
