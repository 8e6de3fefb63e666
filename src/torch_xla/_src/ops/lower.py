"""Applies one aten op to JAX arrays: by its lowering, else by PyTorch's decomposition, expanded when the program is built."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.utils._pytree as pytree
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import OutSpec, lookup


class NoLowering(Exception):
    """The op has neither a lowering nor a decomposition: only PyTorch's CPU kernel can compute it."""


class DrawsNumbers(NotImplementedError):
    """A function that is traced without a seed draws random numbers."""


class CapturedTensor(Exception):
    """A function that is traced uses an xla tensor that it was not given; holds its shape."""


@cache
def load_families() -> None:
    """Imports every op family, filling the table."""
    package = importlib.import_module("torch_xla._src.ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"torch_xla._src.ops.{module.name}")


@cache
def decomposition(overload: Any) -> Any | None:
    """PyTorch's own decomposition of `overload`, or None."""
    if overload in decomposition_table:
        return decomposition_table[overload]
    if overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return overload.decompose
    return None


def how(overload: Any) -> str:
    """How `overload` is computed: "native", "decomposed" or "fallback"."""
    load_families()
    return "native" if lookup(overload) else "decomposed" if decomposition(overload) else "fallback"


def specs_of(outputs: Any) -> list[OutSpec | None]:
    """OutSpecs of the (meta) tensors in an op's outputs, flattened; None where the op returns no tensor."""
    leaves = pytree.tree_leaves(outputs, is_leaf=lambda x: x is None)
    return [
        OutSpec(tuple(o.shape), dtypes.numpy_dtype(o.dtype)) if isinstance(o, torch.Tensor) else None for o in leaves
    ]


def lower(overload: Any, args: Any, kwargs: Any, specs: list[OutSpec | None], key: Any = None) -> list[Any]:
    """The outputs (flattened) of `overload` on JAX arrays, in the shapes and dtypes of `specs`.

    key: PRNG key for ops that draw random numbers. Raises NoLowering where only the CPU kernel can compute it.
    """
    load_families()
    lowering = lookup(overload)
    if lowering is None:
        outputs = _decompose(overload, args, kwargs, key)
    else:
        if lowering.random and key is None:
            raise DrawsNumbers(f"{overload} draws random numbers, and there is no seed to draw them from here")
        extra: list[Any] = [key] if lowering.random else []
        if lowering.specs:
            extra.append(specs[0] if len(specs) == 1 else specs)
        outputs = lowering.fn(*extra, *args, **kwargs)
    flat = pytree.tree_leaves(outputs, is_leaf=lambda x: x is None)
    return [_conform(overload, out, spec) for out, spec in zip(flat, specs, strict=True)]


def infer(overload: Any, args: Any, kwargs: Any) -> Any:
    """What `overload` returns, as jax.ShapeDtypeStructs, for such arguments, from its lowering; None if that cannot tell."""
    load_families()
    lowering = lookup(overload)
    if lowering is None or lowering.specs:
        return None
    flat, tree = pytree.tree_flatten((args, kwargs))
    places = [i for i, a in enumerate(flat) if isinstance(a, jax.ShapeDtypeStruct)]

    def call(*arrays: Any) -> Any:
        filled = list(flat)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        inner_args, inner_kwargs = pytree.tree_unflatten(filled, tree)
        key = [jax.random.key(0)] if lowering.random else []
        return lowering.fn(*key, *inner_args, **inner_kwargs)

    with jax.enable_x64(True):
        return jax.eval_shape(call, *[flat[i] for i in places])


def _conform(overload: Any, out: Any, spec: OutSpec | None) -> Any:
    if spec is None:
        return out
    if out is None:  # an output the caller masked out (gradient not asked for) that the meta kernel still describes
        return jnp.zeros(spec.shape, spec.dtype)
    out = dtypes.cast(out, spec.dtype)
    assert out.shape == spec.shape, f"lowering of {overload}: shape {out.shape}, PyTorch says {spec.shape}"
    return out


# Note [Expanding a decomposition]
# PyTorch's decompositions are written for torch tensors and may take views and write in place. They are run once, while
# the program is built, on functional wrappers (C++ functionalization turns views and writes into pure ops) around
# `_Traced` tensors, which stand on device meta and carry a JAX value. `_Expand` lowers each op they send.


class _Traced(torch.Tensor):
    """A meta tensor that carries the JAX array it stands for."""

    array: jax.Array

    @staticmethod
    def of(array: jax.Array) -> _Traced:
        dtype = dtypes.torch_dtype(array.dtype)
        tensor = torch.Tensor._make_wrapper_subclass(_Traced, array.shape, dtype=dtype, device="meta")
        tensor.array = array
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} reached a traced tensor outside of the expansion")


def _wrap(array: jax.Array) -> torch.Tensor:
    """What ops called by a decomposition return: functional, or bare while functionalization is already running."""
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Functionalize):
        return _Traced.of(array)
    return torch._to_functional_tensor(_Traced.of(array))


class _Expand(TorchDispatchMode):
    """Lowers every op called under it. See Note [Expanding a decomposition]."""

    def __init__(self, key: Any) -> None:
        super().__init__()
        self.key, self.draws = key, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ALIASES:
            return args[0]
        metas = pytree.tree_map(_to_meta, (args, kwargs or {}))
        with torch.utils._python_dispatch._disable_current_modes():
            outputs = func(*metas[0], **metas[1])
        if not any(isinstance(o, torch.Tensor) for o in pytree.tree_leaves(outputs)):
            return outputs
        inner_args, inner_kwargs = pytree.tree_map(_to_array, (args, kwargs or {}))
        self.draws += 1
        key = None if self.key is None else jax.random.fold_in(self.key, self.draws)
        flat = lower(func, inner_args, inner_kwargs, specs_of(outputs), key)
        _, tree = pytree.tree_flatten(outputs, is_leaf=lambda x: x is None)
        return pytree.tree_unflatten([None if a is None else _wrap(a) for a in flat], tree)


_aten = torch.ops.aten
_ALIASES = {
    _aten.detach_copy.default,
    _aten.alias_copy.default,
    _aten.lift_fresh.default,
    _aten.lift_fresh_copy.default,
}
_ALIASES |= {_aten.detach.default, _aten.alias.default}


def _to_meta(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x


def _to_array(x: Any) -> Any:
    if isinstance(x, _Traced):
        return x.array
    if isinstance(x, torch.Tensor):  # a constant that the decomposition made on the host
        if x.device.type == "xla":
            raise CapturedTensor(list(x.shape))
        return jnp.asarray(x.detach().numpy())
    return x


def _decompose(overload: Any, args: Any, kwargs: Any, key: Any) -> Any:
    fn = decomposition(overload)
    if fn is None or overload in _expanding:  # a decomposition that ends in the op itself is none
        raise NoLowering(str(overload))
    _expanding.append(overload)
    try:
        return _expand(fn, args, kwargs, key)
    finally:
        _expanding.pop()


_expanding: list[Any] = []


def expand(fn: Any, args: Any, kwargs: Any, key: Any = None) -> Any:
    """What a torch function gives for JAX arrays (nested in `args`): its ops are lowered as they are called.

    key: PRNG key, without which random ops are NotImplementedError. Raises CapturedTensor. Autocast for device xla is what
    it is around the call, or what `fn` makes it.
    """
    enabled = torch.is_autocast_enabled("xla")
    include = _BACKEND_SELECT | _AUTOCAST | _FUNCTIONALIZE
    return _expand(fn, args, kwargs, key, include, _NOTHING if enabled else _AUTOCAST)


_BACKEND_SELECT = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_AUTOCAST = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastXLA"))  # which meta tensors do not have
# Without this key `to()` of a tensor on device meta gives one that is not functional, as for a device that is not lazy.
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
_NOTHING = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)


def _expand(fn: Any, args: Any, kwargs: Any, key: Any, include: Any = _BACKEND_SELECT, exclude: Any = _NOTHING) -> Any:
    # The program may be built in the middle of a dispatch (`.item()`): start from a clean thread-local dispatch state.
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.no_grad(), _Expand(key):
        args, kwargs = pytree.tree_map(_enter, (args, kwargs))
        outputs = fn(*args, **kwargs)
        return pytree.tree_map(_unwrap, outputs)


def _enter(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return _wrap(dtypes.cast(x, x.dtype))
    return torch.device("meta") if isinstance(x, torch.device) else x


def carried(x: torch.Tensor) -> Any:
    """The array that a tensor stands for while a function is expanded: another one after a write to the tensor."""
    return _unwrap(x)


def _unwrap(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if torch._is_functional_tensor(x):
        torch._functionalize_sync(x)
        x = torch._from_functional_tensor(x)
    return _to_array(x)
