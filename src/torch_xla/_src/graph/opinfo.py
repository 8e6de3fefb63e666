"""What the recorder knows about an aten overload, derived once from its schema: slots, randomness, output metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree

from torch_xla._src.graph.shapes import SHAPES, WITHOUT_META
from torch_xla._src.graph.tensor import DEVICE, XlaTensor, check_device, inner_of_value
from torch_xla._src.graph.value import Spec, Value, contiguous_strides, is_dense
from torch_xla._src.ops import dynamic_slice as _defines_the_ops  # noqa: F401  (for its effect on torch.ops)
from torch_xla._src.runtime import metrics, transfer

# Ops some arguments of which PyTorch lets stand on the host; 0-d tensors may anywhere.
_HOST_ARGUMENTS = {
    "aten::index",
    "aten::index_put",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
}
# Specs of a call's outputs; the function that puts tensors into its return structure (None: one tensor); Row.view.
Outputs = tuple[tuple[Spec | None, ...], Any, Any]
_META_CACHE: dict[Any, Outputs] = {}
_MOVING = {torch.ops.torch_xla.slice.default, torch.ops.torch_xla.select.default}


class OnlyOnCpu(Exception):
    """Neither PyTorch nor a lowering can tell the outputs of a call without computing it, or it did not compile before."""


class OpInfo:
    """Facts about one overload.

    slottable: for each positional argument, whether numbers in it may become slots; slottable_kwargs: the same by name.
    random: whether its lowering draws random numbers.
    """

    def __init__(self, op: Any) -> None:
        from torch_xla._src.ops.lower import load_families
        from torch_xla._src.ops.registry import lookup

        load_families()
        lowering = lookup(op)
        self.op = op
        self.meta_op = _view_of(op)
        arguments = op._schema.arguments
        static = lowering.static if lowering else frozenset()
        allowed = {a.name: lowering is not None and a.name not in static and _holds_number(a) for a in arguments}
        # A factory: its metadata has to be asked on device meta, or it would allocate on the host.
        self.factory = any(a.name == "device" for a in arguments) and not any(
            "Tensor" in str(a.type) for a in arguments
        )
        self.slottable = [allowed[a.name] for a in arguments if not a.kwarg_only]
        self.slottable_kwargs = {a.name: allowed[a.name] for a in arguments if a.kwarg_only}
        self.random = lowering.random if lowering else _is_random(op)

    def outputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Outputs:
        """What the op returns.

        Asks PyTorch's meta kernel, once for the same op, input shapes and constants. Raises what that raises.
        """
        key = self.key(args, kwargs)
        known = _META_CACHE.get(key)
        if known is None:
            known = _META_CACHE[key] = self._ask_meta(args, kwargs)
        return known

    def key(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Identifies a call by op, input shapes, dtypes and strides, and constants."""
        return self.op, _key(args), _key(kwargs)

    def _ask_meta(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Outputs:
        check_device(kwargs.get("device"))
        if self.op in SHAPES:
            specs: tuple[Spec | None, ...] = tuple(SHAPES[self.op]([*args, *kwargs.values()]))
            return specs, None if len(self.op._schema.returns) == 1 else tuple, None
        metrics.count("MetaKernelCalls")
        meta_kwargs = {k: _to_meta(v) for k, v in kwargs.items()}
        if self.factory:
            meta_kwargs["device"] = torch.device("meta")
        meta_args = [_to_meta(a) for a in args]
        try:
            with torch._C.DisableTorchFunction():  # a default-device mode must not reach the kernel's own factories
                result = self._call_meta(meta_args, meta_kwargs)
        except AssertionError as error:  # some Python meta kernels assert what C++ kernels check
            raise RuntimeError(str(error)) from error
        except NotImplementedError:  # PyTorch has no meta kernel for this op
            if self.op in WITHOUT_META:
                return tuple(WITHOUT_META[self.op](args)), tuple, None
            return self._ask_lowering(args, kwargs)
        if isinstance(result, torch.Tensor):
            return (spec_of(result),), None, self._view([result], meta_args)
        if isinstance(result, (list, tuple)) and all(isinstance(x, torch.Tensor) for x in result):
            rebuild = list if isinstance(result, list) else tuple
            return tuple(map(spec_of, result)), rebuild, self._view(result, meta_args)
        leaves, tree = pytree.tree_flatten(result, is_leaf=lambda x: x is None)
        specs = tuple(spec_of(x) if isinstance(x, torch.Tensor) else None for x in leaves)
        return specs, _rebuilder(leaves, specs, tree), None

    def _call_meta(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.meta_op is not self.op:
            try:
                return self.meta_op(*args, **kwargs)
            except RuntimeError:  # no view of tensors with these strides: the result is a copy
                pass
        return self.op(*args, **kwargs)

    def _view(self, outputs: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
        """Row.view, from what the meta kernel returned for the first argument at offset 0."""
        if self.op in _MOVING:  # torch_xla.slice(x, dim, start, length)
            stride = args[0].stride(args[1])
            return lambda args: (args[2] * stride,)
        if self.meta_op is self.op or any(not _same_storage(o, args[0]) for o in outputs):
            return None
        return tuple(int(o.storage_offset()) for o in outputs)

    def _ask_lowering(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Outputs:
        from torch_xla._src.ops.dtypes import torch_dtype
        from torch_xla._src.ops.lower import infer

        shapes = infer(self.op, *pytree.tree_map(_to_shape, (list(args), kwargs)))
        if shapes is None:
            raise OnlyOnCpu
        if isinstance(shapes, list) and len(self.op._schema.returns) > 1:
            shapes = tuple(shapes)
        leaves, tree = pytree.tree_flatten(shapes)
        specs = tuple(None if s is None else Spec(tuple(s.shape), torch_dtype(s.dtype)) for s in leaves)
        return specs, None if not isinstance(shapes, (list, tuple)) else _rebuilder(leaves, specs, tree), None

    def adopt_host_tensors(self, args: Sequence[Any]) -> list[Any]:
        """`args` with host tensors uploaded, where PyTorch allows them beside tensors of another device."""
        return [self.adopt(a) for a in args]

    def adopt(self, a: Any) -> Any:
        """The same for one argument. RuntimeError for a host tensor that has to be moved by the user."""
        if isinstance(a, (list, tuple)):
            return [self.adopt(x) for x in a]
        if not isinstance(a, torch.Tensor) or type(a) is XlaTensor:
            return a
        if a.device.type != "cpu" or (a.ndim and self.op._schema.name not in _HOST_ARGUMENTS):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and "
                f"{a.device}! ({self.op._schema.name}: move the tensor of shape {list(a.shape)} with .to('xla'))"
            )
        return host_leaf(a)


def host_leaf(tensor: torch.Tensor) -> XlaTensor:
    """An inner tensor with the contents of a host tensor, and its strides if it has no gaps."""
    tensor = tensor.detach()
    spec = spec_of(tensor)
    if spec.strides is not None and not is_dense(spec.shape, spec.strides):
        spec = spec._replace(strides=None)
    return inner_of_value(Value(spec, transfer.upload(tensor)))


def spec_of(tensor: torch.Tensor) -> Spec:
    """The Spec of any strided tensor."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return Spec(shape, tensor.dtype, None if strides == contiguous_strides(shape) else strides)


def _same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _holds_number(argument: Any) -> bool:
    # Not List[float]: those are scale factors, which determine shapes. `x * 2` passes a number for a Tensor.
    return str(argument.type) in ("number", "Optional[number]", "List[number]", "float", "Optional[float]", "Tensor")


def _view_of(op: Any) -> Any:
    """The view op that `op` copies (`t` for `t_copy`), else `op`: outputs report the strides that a view would have.

    `contiguous()` and `reshape()` decide by strides whether they copy, and so whether a later write reaches the base.
    """
    name = op._schema.name.partition("::")[2]
    view = (
        getattr(torch.ops.aten, name.removesuffix("_copy"), None) if name.endswith("_copy") and name[0] != "_" else None
    )
    return getattr(view, op._overloadname or "default", op) if view is not None else op


def _is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _key(x: Any) -> Any:
    if type(x) is XlaTensor:
        return x.value.spec
    if type(x) is Spec:
        return x
    if isinstance(x, (list, tuple)):
        return tuple(map(_key, x))
    if isinstance(x, dict):
        return tuple((k, _key(v)) for k, v in x.items())
    return type(x), (repr(x) if isinstance(x, (float, complex)) else x)  # NaN equals itself, -0.0 differs from 0.0


def _to_meta(a: Any) -> Any:
    if type(a) is XlaTensor:
        spec = a.value.spec
        if spec.strides is None:
            return torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")
    if isinstance(a, (list, tuple)):
        return [_to_meta(x) for x in a]
    if isinstance(a, torch.device):
        return torch.device("meta")
    if isinstance(a, torch.Tensor):
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
    return a


def _to_shape(a: Any) -> Any:
    import jax

    from torch_xla._src.ops.dtypes import numpy_dtype

    return jax.ShapeDtypeStruct(a.value.spec.shape, numpy_dtype(a.value.spec.dtype)) if type(a) is XlaTensor else a


def _rebuilder(leaves: list[Any], specs: Sequence[Spec | None], tree: Any) -> Callable[[list[Any]], Any]:
    others = [None if spec is not None else leaf for leaf, spec in zip(leaves, specs)]

    def rebuild(outs: list[Any]) -> Any:
        filled = [other if spec is None else out for out, spec, other in zip(outs, specs, others)]
        return pytree.tree_unflatten(filled, tree)

    return rebuild


@cache
def op_info(op: Any) -> OpInfo:
    """The OpInfo of an overload."""
    return OpInfo(op)
