"""What each aten op that reaches an xla tensor does: most are recorded; those that read, alias or leave the device are
handled here.

Ops whose output shape depends on data are in `dynamic.py`; ops that only the CPU can compute in `fallback.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from torch_xla._src.graph import checks, contents, lengths
from torch_xla._src.graph import tensor as tensors
from torch_xla._src.graph.opinfo import host_leaf, op_info
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import DEVICE, XlaTensor, check_device, inner_like, inner_of_value, value_of
from torch_xla._src.graph.value import Spec, Value
from torch_xla._src.runtime import live, metrics, rng, transfer

aten = torch.ops.aten
_MAX_DIMS = 64  # NumPy's limit
Handler = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}  # what an op does, by overload: here from the start, or chosen when it is first met
_CHECKED: dict[Any, Handler] = {}  # the same with the checks that go before


def handles(*ops: Any) -> Callable[[Handler], Handler]:
    """Registers the decorated function for these overloads."""

    def register(fn: Handler) -> Handler:
        for op in ops:
            HANDLERS[op] = fn
        return fn

    return register


def dispatch(op: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
    """Runs one op on inner tensors. The entry from XlaTensor.__torch_dispatch__."""
    handler = _CHECKED.get(op) or _handler_of(op)
    return handler(op, args, kwargs or {})


def _handler_of(op: Any) -> Handler:
    if op not in HANDLERS:
        HANDLERS[op] = _choose(op)
    _CHECKED[op] = handler = _checked(op, HANDLERS[op])
    return handler


def is_recorded(op: Any) -> bool:
    """Whether all that `dispatch` does with an op is to record it."""
    return _handler_of(op) is _record


def _record(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return RECORDER.record(op, args, kwargs)


def _checked(op: Any, handler: Handler) -> Handler:
    """`handler` after the checks that `op` has; itself if it has none."""
    of_arguments, of_contents = checks.ARGUMENTS.get(op), contents.checks_of(op)
    if of_arguments is None and of_contents is None:
        return handler

    def checked(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if of_arguments is not None:
            of_arguments(*args, **kwargs)
        if of_contents is not None:
            contents.check_call(op, args, kwargs)
        return handler(op, args, kwargs)

    return checked


def _choose(op: Any) -> Handler:
    """The handler of an op met for the first time."""
    from torch_xla._src.graph import fallback
    from torch_xla._src.ops.lower import how

    if op._schema.is_mutable:
        return _mutate
    if _is_composite(op):
        return _record_composite
    if op_info(op).random:
        return _record_random
    return fallback.run if how(op) == "fallback" else _record


def _is_composite(op: Any) -> bool:
    """Whether PyTorch composes an op of others, and no rule for padded tensors knows the whole."""
    from torch_xla._src.ops.lower import load_families
    from torch_xla._src.ops.padded import rule_of

    load_families()
    composite = op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return bool(composite) and rule_of(op) is None


def _record_composite(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Records a composite op that has a lowering as one row; else, or if sizes may vary, as its parts.

    Autograd takes composite ops apart before they come here, so this is about inference_mode.
    """
    from torch_xla._src.ops.registry import lookup

    if not lengths.in_use and lookup(op) is not None:
        return (_record_random if op_info(op).random else _record)(op, args, kwargs)
    return _record_parts(op, args, kwargs)


@handles(aten.isclose.default)  # whose decomposition for tracing writes in place
def _record_parts(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    include = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
    autocast = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastXLA"))  # it has done its part
    # Views of tensors that inference_mode did not make have to be made outside of it.
    with torch.inference_mode(False), torch.no_grad(), torch._C._ForceDispatchKeyGuard(include, autocast):
        args, kwargs = pytree.tree_map(_functional, (list(args), kwargs))
        outs = pytree.tree_map(_value, op.decompose(*args, **kwargs))
    return pytree.tree_map(lambda x: inner_of_value(x) if type(x) is Value else x, outs)


def _functional(x: Any) -> Any:
    return torch._to_functional_tensor(x) if type(x) is XlaTensor else x


def _value(x: Any) -> Any:
    return value_of(x) if isinstance(x, torch.Tensor) else x


# ---- aliases: values never change, so an alias shares the Value -----------------------------------------------------


@handles(aten.detach_copy.default, aten.alias_copy.default, aten.detach.default, aten.alias.default)
def _alias(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return inner_like(args[0], args[0].value)


@handles(aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default)
def _lift(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """torch.tensor(..., device="xla") builds a bare inner tensor with functionalization off, then lifts it."""
    return torch._to_functional_tensor(inner_of_value(args[0].value))


@handles(aten._has_compatible_shallow_copy_type.default)
def _has_compatible_shallow_copy_type(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return all(type(a) is XlaTensor for a in args)


@handles(aten.zeros.default, aten.zeros_like.default)
def _zeros(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if not RECORDER.makes_state:
        return RECORDER.record(op, args, kwargs)
    (spec,), _, _ = op_info(op).outputs(args, kwargs)
    assert spec is not None
    return inner_of_value(Value(spec, transfer.zeros(spec.shape, spec.dtype)))


# ---- between host and device ----------------------------------------------------------------------------------------


def download(inner: XlaTensor) -> torch.Tensor:
    """A host copy of an inner tensor; cuts the recording if it is pending."""
    spec = inner.value.spec
    buffer = RECORDER.buffer(inner.value)
    try:
        host = transfer.download(buffer, spec.dtype)
    except RuntimeError as error:  # of JAX: the device has failed since the launch
        raise _failed_since(inner.value, error) from error
    if spec.strides is None:
        return host
    # The strides of a copy: those of the original if it has no holes and no overlap (`t()`), else what PyTorch chooses.
    copy = torch.empty_like(
        torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta"), device="cpu"
    )
    return copy.copy_(host)


def _failed_since(value: Value, error: RuntimeError) -> Exception:
    row = live.row_of(value)
    if row is None:
        return error
    from torch_xla._src.compile import recovery  # imports JAX

    return recovery.explain(error, row.path())


def upload_like(spec: Spec, source: torch.Tensor) -> XlaTensor:
    """An inner tensor of `spec`'s shape and dtype with the contents of a host tensor, broadcast and cast on the host."""
    _check_movable(source)
    source = source.detach()
    if source.dtype != spec.dtype:
        source = source.to(spec.dtype)
    if tuple(source.shape) != spec.shape:
        source = source.expand(spec.shape)
    return inner_of_value(Value(spec, transfer.upload(source)))


def _check_movable(source: torch.Tensor) -> None:
    if source.is_meta:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")  # Module.to looks for this text
    if source.ndim > _MAX_DIMS:
        raise RuntimeError(f"only tensors with up to {_MAX_DIMS} dims are supported")


@handles(aten._to_copy.default)
def _to_copy(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    device = kwargs.get("device") or DEVICE
    check_device(device)
    if type(source) is not XlaTensor:  # from the host
        _check_movable(source)
        RECORDER.about_to_upload()
        host = source.to(dtype=kwargs.get("dtype"), memory_format=kwargs.get("memory_format") or torch.preserve_format)
        return host_leaf(host)
    if device.type == "xla":
        options = {k: v for k, v in kwargs.items() if k in ("dtype", "memory_format")}
        return RECORDER.record(op, args, options)
    host = download(source)
    return host.to(
        device=device, dtype=kwargs.get("dtype"), memory_format=kwargs.get("memory_format") or torch.preserve_format
    )


@handles(aten.copy.default)
def _copy(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if type(target) is XlaTensor and type(source) is not XlaTensor:
        RECORDER.about_to_upload()
        return upload_like(target.value.spec, source)
    return RECORDER.record(op, args[:2], {})


@handles(aten.copy_.default)
def _copy_into(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if type(target) is XlaTensor:
        target.value = _copy(aten.copy.default, (target, source), {}).value
        return target
    return target.copy_(download(source))  # a host tensor takes the contents of one on the device


@handles(aten._local_scalar_dense.default, aten.item.default)  # under inference_mode the latter comes as it is
def _item(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    metrics.count("aten::_local_scalar_dense")
    return download(args[0]).item()


@handles(aten.is_nonzero.default)
def _is_nonzero(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if args[0].numel() != 1:
        return bool(aten.is_nonzero(torch.empty(min(args[0].numel(), 2))))  # raises what PyTorch raises
    return bool(_item(op, args, kwargs))


@handles(aten.equal.default)
def _equal(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    left, right = args
    if left.shape != right.shape:
        return False
    same = RECORDER.record(aten.eq.Tensor, [left, right], {})
    return bool(download(RECORDER.record(aten.all.default, [same], {})).item())


@handles(aten.allclose.default)
def _allclose(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    close = dispatch(aten.isclose.default, args, kwargs)
    return bool(download(dispatch(aten.all.default, [close], {})).item())


@handles(aten._linalg_check_errors.default)
def _check_linalg(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises torch.linalg.LinAlgError for a matrix that could not be factorised; that needs a host read."""
    op(download(args[0]), *args[1:], **kwargs)


@handles(aten._has_same_storage_numel.default)
def _has_same_storage_numel(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return bool(args[0].numel() == args[1].numel())


@handles(aten._nested_tensor_from_mask_left_aligned.default)
def _no_nested_tensors(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """TransformerEncoder asks before it makes a nested tensor, which it never does on device xla."""
    return False


@handles(aten.is_pinned.default)
def _is_pinned(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return False


@handles(aten.record_stream.default)
def _record_stream(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    return None


# ---- writes that reach inner tensors: out= of factories, and ops without a functional form -------------------------


def _mutate(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs the functional form of an op that writes, then lets the written inner tensors hold the results.

    C++ functionalization normally leaves no writes. What remains is written as a whole, so rebinding the Value is all.
    """
    functional = functional_form(op)
    names = [a.name for a in op._schema.arguments]
    bound = dict(zip(names, args)) | kwargs
    written = [bound[a.name] for a in op._schema.arguments if a.is_write]
    arguments = functional._schema.arguments
    positional = [bound.pop(a.name) for a in arguments if not a.kwarg_only and a.name in bound]
    inputs = {a.name: bound[a.name] for a in arguments if a.name in bound}
    if any(a.name == "dtype" for a in arguments):  # a factory with out=
        inputs["dtype"] = written[0].dtype
    results = dispatch(functional, positional, inputs)
    results = results if isinstance(results, (list, tuple)) else [results]
    for target, result in zip(written, results[-len(written) :]):
        target.value = (
            dispatch(aten.copy.default, (target, result), {}).value if target.shape == result.shape else result.value
        )
    return written[0] if len(written) == 1 else tuple(written)


def functional_form(op: Any) -> Any:
    """The overload that computes what `op` writes. NotImplementedError names an op that has none."""
    namespace, _, name = op._schema.name.partition("::")
    name = name.rstrip("_") or name
    packets = [
        getattr(getattr(torch.ops, namespace), n, None) for n in (name, f"{name}_functional")
    ]  # normal_functional
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
    for candidate in [getattr(packet, overload) for packet in packets if packet for overload in packet.overloads()]:
        arguments = candidate._schema.arguments
        named = [(a.name, str(a.type)) for a in arguments]
        optional = all(a.has_default_value() or a.kwarg_only for a in arguments[len(wanted) :])
        if not candidate._schema.is_mutable and named[: len(wanted)] == wanted and optional:
            return candidate
    raise NotImplementedError(f"{op} writes to its arguments and has no functional form on device xla")


# ---- randomness -----------------------------------------------------------------------------------------------------


def _record_random(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    generators = [a for a in (*args, *kwargs.values()) if isinstance(a, torch._C.Generator)]
    args = [None if isinstance(a, torch._C.Generator) else a for a in args]  # each run has its key instead
    kwargs = {k: None if isinstance(v, torch._C.Generator) else v for k, v in kwargs.items()}
    with rng.drawing_from(generators[0] if generators else None):
        return RECORDER.record(op, args, kwargs)


tensors.dispatch = dispatch
from torch_xla._src.graph import dynamic as _dynamic  # noqa: E402, F401  (registers handlers; it imports this module)
from torch_xla._src.graph import slicing as _slicing  # noqa: E402, F401  (registers handlers; it imports this module)
