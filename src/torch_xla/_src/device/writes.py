"""In-place ops and `out=`: kernels of our own under dispatch key Functionalize for all that write to xla tensors.

PyTorch's kernels for that key run the op's meta kernel first, which costs more than recording the op, cast the result
to the dtype of its target where the CPU raises, and do not see that a target overlaps itself. A kernel here computes
the functional form of the op, checks that the target can take the result, and writes it as a whole. Functional tensors
of other devices (torch.compile traces with them) get PyTorch's kernels.

Some functional forms return contiguous tensors although the target is transposed: the strides of a target are kept.

Note [Writes that nobody else sees]
A tensor that is alone in its storage and shows all of it takes the new Value in its inner tensor, and functionalization
is not told. Told, it makes every later view of the tensor twice, since a new view starts behind the writes of its
storage; and a view that C++ code holds during an op (a lazy `conj()` in the gradient of an FFT) has new sizes and
strides behind its back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

from torch_xla._src.device.aliasing import is_alone
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import XlaTensor, inner_like, inner_of, inner_of_value
from torch_xla._src.graph.value import Value, is_dense

_aten = torch.ops.aten
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
_is_functional = torch._is_functional_tensor
_sync = torch._functionalize_sync
_from_functional = torch._from_functional_tensor
_num_modes = torch._C._len_torch_dispatch_stack
_library = torch.library.Library("aten", "IMPL", "Functionalize")

# In-place ops that PyTorch's kernels do right: those that change the metadata of a tensor, or have no functional form.
_LEFT_ALONE = {
    "as_strided_", "detach_", "set_", "resize_", "resize_as_", "resize_as_sparse_", "_resize_output_", "sparse_resize_",
    "sparse_resize_and_clear_", "squeeze_", "unsqueeze_", "t_", "transpose_", "_mkldnn_transpose_", "_coalesced_",
    "copy_sparse_to_sparse_", "_index_put_impl_",
}  # fmt: skip
# PyTorch has no kernel for these under this key.
_WITHOUT_KERNEL = {"aten::polygamma_"}
# Ops that return results beside what they write.
_WITH_RESULTS = ("aten::_native_batch_norm_legit", "aten::_batch_norm_with_update", "aten::rrelu_with_noise")
# Ops that write the same value wherever they write: they may see an element of the target more than once.
_REPEATABLE = {"fill_", "zero_", "masked_fill_", "index_put_", "index_fill_"}
# Ops that cannot read what they write to, not even element by element.
_NO_OVERLAP = {
    "scatter_", "scatter_add_", "scatter_reduce_", "index_add_", "index_copy_", "index_put_", "index_reduce_", "put_",
    "masked_scatter_", "index_fill_",
}  # fmt: skip
# out= of these may be of a wider dtype than the result, as that of pointwise ops may; of other ops it has to be exact.
_CASTING = {
    "sum", "nansum", "mean", "prod", "std", "var", "cumsum", "cumprod", "cat", "_chunk_cat", "stack", "clamp", "copy", "addr",
    "linspace", "logspace", "range", "arange", "_to_copy", "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf",
    "linalg_householder_product", "linalg_lstsq", "linalg_pinv", "logsumexp", "floor_divide", "bernoulli", "normal",
    "aten::max.unary_out", "aten::min.unary_out", "_fft_c2r", "_fft_r2c", "_fft_c2c",
}  # fmt: skip
# out= of these has to be of the result's dtype although they are pointwise or take a dtype.
_EXACT = {
    "where", "linalg_vector_norm", "norm", "abs", "ceil", "conj_physical", "floor", "frac", "frexp",
    "heaviside", "isneginf", "bitwise_not", "isposinf", "signbit", "nan_to_num", "neg", "gelu", "hardshrink",
    "softplus", "softshrink", "round", "sgn", "sign", "trunc",
}  # fmt: skip
# out= of these may share no memory with an input, not even all of it, and may hold no element twice.
_SEPARATE = {"cat", "gather", "index_select", "kthvalue", "masked_select", "take"}
# These raise a TypeError where others raise a RuntimeError.
_JOINING = {"cat", "_chunk_cat", "stack"}
# These compute in the dtype of `out`, if none is given.
_IN_DTYPE_OF_OUT = {"sum", "nansum", "prod", "cumsum", "cumprod", "linspace", "logspace"}
# Some part of the name of every overload that has outputs as arguments.
_OUTPUTS = {
    "out", "output", "values", "input", "max", "min", "stable", "result", "sign", "inverse", "eigenvalues", "a", "U", "X", "L",
    "OutScalar", "OutTensor",
}  # fmt: skip


def _unwrap(x: Any) -> Any:
    """The inner tensor(s), up to date, of an argument of an op."""
    if isinstance(x, torch.Tensor):
        if not _is_functional(x):
            return x
        _sync(x)
        return _from_functional(x)
    if not isinstance(x, (list, tuple)):
        return x
    inner = []
    for item in x:  # most often a list of tensors: no call for each
        if isinstance(item, torch.Tensor) and _is_functional(item):
            _sync(item)
            inner.append(_from_functional(item))
        else:
            inner.append(_unwrap(item))
    return inner


def _is_written(x: Any) -> bool:
    """Whether the target(s) of an op are xla tensors of the user."""
    if isinstance(x, (list, tuple)):
        return bool(x) and _is_written(x[0])
    return isinstance(x, torch.Tensor) and x.is_xla and _is_functional(x)


# ---- what can be written ------------------------------------------------------------------------------------------


def _repeats(target: torch.Tensor) -> bool:
    """Whether an element of the tensor stands in it more than once, for sure (an expanded dimension)."""
    strides = target.stride()
    return 0 in strides and 0 not in target.shape and any(s == 0 and n > 1 for s, n in zip(strides, target.shape))


def _accumulate(target: torch.Tensor, indices: Any, values: torch.Tensor) -> torch.Tensor:
    """`index_put_(accumulate=True)` to a tensor that repeats elements: each takes what is added to it anywhere."""
    added = torch.zeros_like(target, memory_format=torch.contiguous_format).index_put_(indices, values, accumulate=True)
    once = target
    for dim, (stride, size) in enumerate(zip(target.stride(), target.shape)):
        if stride == 0 and size > 1:
            added, once = added.sum(dim, keepdim=True, dtype=target.dtype), once.narrow(dim, 0, 1)
    once.add_(added)
    return target


def _refuse_repeats(target: torch.Tensor) -> None:
    if _repeats(target):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def _span(x: torch.Tensor) -> tuple[int, int]:
    """First element of the storage that a dense tensor occupies, and the one after the last."""
    return int(x.storage_offset()), int(x.storage_offset()) + x.numel()


def _refuse_overlap(target: torch.Tensor, args: Any, at_all: bool) -> None:
    """RuntimeError if an input shares a part of the target's memory; or, if `at_all`, all of it."""
    for other in args:
        if isinstance(other, (list, tuple)):
            _refuse_overlap(target, other, at_all)
        elif isinstance(other, torch.Tensor) and torch._C._is_alias_of(target, other):
            partly, wholly = _overlap(target, other)
            if partly or (wholly and at_all):
                raise RuntimeError(
                    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                    "memory location. Please clone() the tensor before performing the operation."
                )


def _is_same(target: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements in the same order: a copy of one to the other writes nothing."""
    return target is other or (
        torch._C._is_alias_of(target, other)
        and target.dtype is other.dtype
        and target.shape == other.shape
        and target.stride() == other.stride()
        and target.storage_offset() == other.storage_offset()
    )


def _overlap(target: torch.Tensor, other: torch.Tensor) -> tuple[bool, bool]:
    """Whether two tensors in one storage share some of their memory, and whether all. (False, False) if hard to tell."""
    if other is target:
        return False, True
    if not (target.numel() and other.numel()):
        return False, False
    if not (is_dense(target.shape, target.stride()) and is_dense(other.shape, other.stride())):
        return False, False
    (start, end), (first, last) = _span(target), _span(other)
    same = (start, end) == (first, last) and target.stride() == other.stride()
    return start < last and first < end and not same, same


_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def _refuse_cast(result: torch.dtype, target: torch.dtype, exact: bool) -> None:
    """Raises unless a target of this dtype can take such a result. exact: it has to be of the same dtype."""
    if exact:
        raise RuntimeError(f"Expected out tensor to have dtype {result}, but got {target} instead")
    if not torch.can_cast(result, target):
        names = _NAMES.get(result, result), _NAMES.get(target, target)
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")


# ---- writing ------------------------------------------------------------------------------------------------------


def _write(target: Any, result: Any, exact: bool = False, resize: bool = False) -> None:
    """`target` (or each tensor of it) takes the contents of `result`, a bare tensor."""
    if isinstance(target, (list, tuple)):
        for one, new in zip(target, result, strict=True):
            _write(one, new, exact, resize)
        return
    if result.dtype is not target.dtype:
        _refuse_cast(result.dtype, target.dtype, exact)
        result = result.to(target.dtype)
    if target.shape == result.shape:
        if resize:
            _refuse_repeats(target)
        result = _with_strides_of(target, result)
    elif not resize:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}: an in-place "
            "op cannot change the shape of its tensor"
        )
    elif target.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(target.shape)}, which does not "
            f"match the required output shape {list(result.shape)}. Pass an out tensor of that shape, or an empty one.",
            stacklevel=3,
        )
    traced = type(result) is not XlaTensor  # by torch.compile, with a fake tensor
    alone = not traced and is_alone(target)
    if alone and target.shape == result.shape:
        _rebind(inner_of(target), result.value)
        return
    # What is alone in its storage takes a larger result as it is; from a smaller one, the rest of the storage remains.
    if target.shape != result.shape and not (alone and result.numel() >= target.numel()):
        target.resize_(result.shape)
    old = () if traced else _with_base(target)
    if not traced and torch.is_inference_mode_enabled():
        result = inner_like(inner_of(target), result.value)
    torch._functionalize_replace(target, result)
    torch._functionalize_commit_update(target)
    torch._functionalize_sync(target)
    if not traced and target._is_view() and (viewed := target._base) is not None and _is_functional(viewed):
        # Else its wrapper would keep what it held before, and the buffer of that, until somebody reads it: a cache that is
        # only written through views would take its memory twice.
        torch._functionalize_sync(viewed)
    for before, after in zip(old, () if traced else _with_base(target)):
        if before is not None and after is not None:
            RECORDER.note_write(before, after)


def _rebind(inner: XlaTensor, value: Value) -> None:
    """See Note [Writes that nobody else sees]."""
    RECORDER.note_write(inner.value, value)
    inner.value = value


def _write_values(target: Any, inner: Any, values: list[Value]) -> None:
    """`_write` of what has no tensor yet; `inner`: the inner tensor(s) of `target`."""
    targets, inners = (target, inner) if type(target) is list else ([target], [inner])
    noted = RECORDER.notes_writes()
    for one, before, value in zip(targets, inners, values, strict=True):
        if before.value.spec == value.spec and is_alone(one):
            if noted:
                RECORDER.note_write(before.value, value)
            before.value = value
        else:
            _write(one, inner_of_value(value))


def write_value(target: torch.Tensor, value: Value) -> None:
    """Writes to a user's tensor what `value` holds."""
    _write_values(target, inner_of(target), [value])


def _with_base(target: torch.Tensor) -> tuple[Value, Value | None]:
    """What a tensor holds, and what the tensor that it is a view of does."""
    value = inner_of(target).value
    return value, None if value.base is None else value.base()


def _with_strides_of(target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A fresh result that reports the strides of the tensor it is written to: an in-place op does not change them."""
    strides = target.stride()
    if strides == result.stride() or type(result) is not XlaTensor:
        return result
    value = result.value
    value.spec = value.spec._replace(strides=None if target.is_contiguous() else tuple(strides))
    return inner_of_value(value)


def _bernoulli(x: Any, p: float = 0.5, **kwargs: Any) -> Any:
    """The functional form of `bernoulli_.float`, which has a default that its own lacks."""
    return _aten.bernoulli.p(x, p, **kwargs)


def _functional_of(op: Any) -> Any:
    """The function that computes what an overload writes, or None."""
    from torch_xla._src.graph.dispatch import functional_form

    if op is _aten.bernoulli_.float:
        return _bernoulli
    if op is _aten.polygamma_.default:
        return lambda x, n: _aten.polygamma.default(n, x)
    try:
        return functional_form(op)
    except NotImplementedError:
        return None


def _in_sequence(targets: list[torch.Tensor], others: Any) -> bool:
    """Whether a later member of a list op sees what an earlier one wrote: a tensor, or its memory, stands there twice."""
    written = {t.untyped_storage()._cdata: position for position, t in enumerate(targets)}
    if len(written) < len(targets):
        return True
    for members in others:
        if type(members) is list and len(members) == len(targets) and isinstance(members[0], torch.Tensor):
            places = [written.get(t.untyped_storage()._cdata) for t in members]
            if any(place is not None and place != position for position, place in enumerate(places)):
                return True
    return False


def _at(args: Any, position: int) -> list[Any]:
    """The arguments of a list op for one member of its lists."""
    length = len(args[0])
    return [a[position : position + 1] if type(a) is list and len(a) == length else a for a in args]


class _InPlace:
    """The kernel of one in-place overload."""

    def __init__(self, name: str, original: Any) -> None:
        self.name, self.original = name, original
        self.op: Any = None

    def _resolve(self) -> None:
        from torch_xla._src.graph.dispatch import is_recorded

        packet, _, overload = self.name.partition("::")[2].partition(".")
        op = getattr(getattr(_aten, packet), overload or "default")
        arguments = op._schema.arguments
        self.functional = _functional_of(op)
        # The results of the functional form stand in the order of what is written.
        self.written = [i for i, a in enumerate(arguments) if a.is_write]
        # Fused optimizers declare a write to the gradients, which happens only when there is a scale to take off.
        self.unscaled = 1 if "grad_scale" in [a.name for a in arguments] else None
        self.single = len(op._schema.returns) == 1
        self.repeatable, self.no_overlap = packet in _REPEATABLE, packet in _NO_OVERLAP
        self.copies = packet == "copy_"
        self.accumulates = packet == "index_put_"  # if told to
        self.elementwise = torch.Tag.pointwise in op.tags or self.copies
        self.real = packet in ("abs_", "_foreach_abs_")  # whose result is real, and has no place in a complex tensor
        self.foreach = packet.startswith("_foreach")
        self.tensors = [i for i, a in enumerate(arguments) if str(a.type) == "Tensor"]
        # Then no dispatcher and no tensor for the result are needed.
        lists = all(str(arguments[i].type) == "List[Tensor]" for i in self.written)
        self.recorded = (
            (len(self.written) == 1 or lists)
            and isinstance(self.functional, OpOverload)
            and is_recorded(self.functional)
        )
        self.op = op  # last: another thread may come at any time, and asks for this

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if self.op is None:
            self._resolve()
        target = args[0]
        if self.functional is None or not (_is_written(target) or self._takes_number(args)):
            return self.original.call_boxed(keys, *args, **kwargs)
        if self.copies and _is_same(target, args[1]):
            return target
        refused = []  # positions of the targets that cannot be written: 0, if there is only one
        if type(target) is not list:
            if _repeats(target):
                if self.accumulates and args[3:4] == (True,):
                    return _accumulate(*args[:3])
                refused = [] if self.repeatable else [0]
                # Written through the storage, where it is seen which elements have changed.
                args = (target.as_strided(target.shape, target.stride(), target.storage_offset()), *args[1:])
        else:
            refused = [i for i, one in enumerate(target) if 0 in one.stride() and _repeats(one)]
            if len(target) > 1 and (refused or _in_sequence(target, args[1:])):
                for position in range(len(target)):
                    self(keys, *_at(args, position), **kwargs)
                return target if self.single else None
        if self.real and any(t.is_complex() for t in (target if type(target) is list else [target])):
            raise RuntimeError("In-place abs is not supported for complex tensors.")
        inputs, named = [_unwrap(a) for a in args], {k: _unwrap(v) for k, v in kwargs.items()} if kwargs else kwargs
        values = None
        ours = type(inputs[0][0] if type(target) is list else inputs[0]) is XlaTensor
        if self.recorded and ours and not _num_modes():
            values = RECORDER.record_values(self.functional, inputs, named)
        else:
            with torch._C._ExcludeDispatchKeyGuard(_KEY):
                results = self.functional(*inputs, **named)
        if refused:  # after what the op itself refuses
            _refuse_repeats(target if type(target) is not list else target[0])
        if self.elementwise or self.no_overlap:
            _refuse_overlap(target, args[1:], self.no_overlap)
        if len(self.written) == 1:
            if values is not None:
                _write_values(args[0], inputs[0], values)
            else:
                _write(args[0], results)
        else:
            if values is not None:
                start, results = 0, []
                for position in self.written:
                    results.append(values[start : (start := start + len(args[position]))])
            for position, result in zip(self.written, results, strict=True):
                if position == self.unscaled and kwargs.get("grad_scale") is None:
                    continue
                if values is None:
                    _write(args[position], result)
                else:
                    _write_values(args[position], inputs[position], result)
        if self.foreach:  # PyTorch leaves it to their kernels to count the write
            increment_version(target)
        return target if self.single else None

    def _takes_number(self, args: Any) -> bool:
        """Whether a number stands for a tensor of a functional tensor's op (`x.add_(1)`): PyTorch's kernel refuses it."""
        numbers = [i for i in self.tensors if i < len(args) and not isinstance(args[i], torch.Tensor)]
        return bool(numbers) and bool(_is_functional(args[0]))


class _Out:
    """The kernel of one overload with `out=` arguments."""

    def __init__(self, name: str, original: Any) -> None:
        self.name, self.original = name, original
        self.op: Any = None

    def _resolve(self) -> None:
        packet, _, overload = self.name.partition("::")[2].partition(".")
        op = getattr(getattr(_aten, packet), overload)
        self.outs = [a.name for a in op._schema.arguments if a.is_out]
        self.functional = _functional_of(op)
        # Its results are those for `out`, then those for inputs that are written to.
        self.inputs = [i for i, a in enumerate(op._schema.arguments) if a.is_write and not a.is_out]
        if self.functional is not None and len(self.functional._schema.returns) != len(self.outs) + len(self.inputs):
            self.functional = None
        takes_dtype = self.functional is not None and "dtype" in [a.name for a in self.functional._schema.arguments]
        self.joins = packet in _JOINING
        self.pointwise = self.functional is not None and torch.Tag.pointwise in self.functional.tags
        self.exact = packet in _EXACT or not (
            takes_dtype or self.pointwise or packet in _CASTING or self.name in _CASTING
        )
        self.separate = packet in _SEPARATE
        self.in_dtype_of_out = takes_dtype and packet in _IN_DTYPE_OF_OUT
        self.op = op

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if self.op is None:
            self._resolve()
        outs = [kwargs.get(name) for name in self.outs]
        inputs = {k: v for k, v in kwargs.items() if k not in self.outs}
        # A factory, which reads no tensor, takes its dtype from `out`.
        if not outs or self.functional is None or not all(map(_is_written, outs)) or not _has_tensor((args, inputs)):
            return self.original.call_boxed(keys, *args, **kwargs)
        inputs = {k: _unwrap(v) for k, v in inputs.items()}
        if self.in_dtype_of_out and inputs.get("dtype") is None:
            inputs["dtype"] = kwargs[self.outs[0]].dtype
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            results = self.functional(*map(_unwrap, args), **inputs)
        for out in outs:
            for one in out if isinstance(out, (list, tuple)) else [out]:
                if self.pointwise or self.separate:
                    _refuse_repeats(one)
                _refuse_overlap(one, args, at_all=self.separate)
        results = [results] if len(self.functional._schema.returns) == 1 else results
        if self.joins and not torch.can_cast(results[0].dtype, kwargs[self.outs[0]].dtype):
            raise TypeError(f"cannot join tensors of dtype {results[0].dtype} in one of {kwargs[self.outs[0]].dtype}")
        # A tensor that is read as well has the shape that it has.
        resize = not (self.pointwise and any(a is out for a in args for out in outs))
        _write(outs, results[: len(outs)], self.exact, resize)
        for position, result in zip(self.inputs, results[len(outs) :], strict=True):
            if args[position] is not None:
                _write(args[position], result)
        if not self.op._schema.returns:
            return None
        return outs[0] if len(outs) == 1 else tuple(outs)


class _Also:
    """The kernel of an op that returns results and writes to some of its arguments."""

    def __init__(self, name: str, original: Any) -> None:
        self.name, self.original = name, original
        self.op: Any = None

    def _resolve(self) -> None:
        op = getattr(_aten, self.name.partition("::")[2]).default
        self.functional = _functional_of(op)
        self.written = [i for i, a in enumerate(op._schema.arguments) if a.is_write]
        self.num_returns = len(op._schema.returns)
        self.op = op

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if self.op is None:
            self._resolve()
        if not all(_is_written(args[i]) for i in self.written):
            return self.original.call_boxed(keys, *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            results = self.functional(*map(_unwrap, args), **{k: _unwrap(v) for k, v in kwargs.items()})
        for position, result in zip(self.written, results[self.num_returns :], strict=True):
            _write(args[position], result)
        outs = tuple(map(torch._to_functional_tensor, results[: self.num_returns]))
        return outs[0] if self.num_returns == 1 else outs


def _has_tensor(x: Any) -> bool:
    if isinstance(x, dict):
        return _has_tensor(list(x.values()))
    return isinstance(x, torch.Tensor) or (isinstance(x, (list, tuple)) and any(map(_has_tensor, x)))


def _kernels() -> list[tuple[str, Callable[..., Any]]]:
    found: list[tuple[str, Callable[..., Any]]] = [(name, _Also) for name in _WITH_RESULTS]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or not (has_kernel(name, "Functionalize") or name in _WITHOUT_KERNEL):
            continue
        packet, _, overload = name[6:].partition(".")
        in_place = packet.endswith("_") and not packet.endswith("__")
        if in_place and packet not in _LEFT_ALONE:
            found.append((name, _InPlace))
        elif not in_place and overload != "input" and not _OUTPUTS.isdisjoint(overload.split("_")):  # grad_input is one
            found.append((name, _Out))
    return found


def install() -> None:
    """Registers the kernels: when the first xla tensor is made, for there are more than a thousand."""
    kernel_of = torch._C._dispatch_get_computed_kernel_for_dispatch_key
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # overriding is meant
        for name, kernel in _kernels():
            original = None if name in _WITHOUT_KERNEL else kernel_of(name, "Functionalize")
            _library.impl(name[6:], kernel(name, original), with_keyset=True)
