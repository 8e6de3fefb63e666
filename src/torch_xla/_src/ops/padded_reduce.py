"""Rules for reductions, softmax and scans on padded tensors: padding is replaced by what changes no result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_xla._src.graph.lengths import Layout, is_static
from torch_xla._src.ops import dtypes
from torch_xla._src.ops.dtypes import cast, opmath
from torch_xla._src.ops.exact import quotient
from torch_xla._src.ops.padded import Call, Padded, pads
from torch_xla._src.ops.reduce import computing


def lowest(dtype: Any) -> Any:
    """What is smaller than, or equal to, everything else of a dtype."""
    if np.dtype(dtype) == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """What is larger than, or equal to, everything else of a dtype."""
    if np.dtype(dtype) == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def _zero(dtype: Any) -> Any:
    return 0


def _one(dtype: Any) -> Any:
    return 1


def _without(dims: Layout, axes: Sequence[int], keepdim: Any) -> Layout:
    if keepdim:
        return tuple(() if axis in axes else dim for axis, dim in enumerate(dims))
    return tuple(dim for axis, dim in enumerate(dims) if axis not in axes)


def _argument(call: Call, name: str, default: Any) -> Any:
    """A positional or keyword argument by its name in the schema."""
    names = [a.name for a in call.op._schema.arguments if not a.kwarg_only]
    return call.args[names.index(name)] if name in names else call.kwargs.get(name, default)


def _tensor(call: Call) -> Padded:
    if type(call.args[0]) is not Padded:
        raise call.refuse()
    return call.args[0]


def _axes(call: Call, x: Padded) -> tuple[int, ...]:
    return call.axes(_argument(call, "dim", None), len(x.dims))


def _refuse_empty(call: Call, dims: Layout, axes: Sequence[int]) -> None:
    """Nothing is the largest of no elements."""
    if any(0 in call.scope.vector(dims[axis]) for axis in axes):
        raise call.refuse("it cannot reduce a dim that has no elements for some length")


def _filled(identity: Callable[[Any], Any], never_empty: bool = False) -> Callable[[Call], Any]:
    def rule(call: Call) -> Any:
        x = _tensor(call)
        axes = _axes(call, x)
        if call.op._schema.name in ("aten::any", "aten::all") and _argument(call, "dim", None) == []:
            raise call.refuse()
        if never_empty:
            _refuse_empty(call, x.dims, axes)
        filled = call.scope.fill(x, identity(x.array.dtype), axes)
        return call.run([filled, *call.args[1:]], _without(x.dims, axes, _argument(call, "keepdim", False)))

    return rule


for _identity, _names in {
    _zero: ("aten.sum", "aten.nansum", "aten.count_nonzero", "aten.any"),
    _one: ("aten.prod", "aten.all"),
}.items():
    pads(*_names)(_filled(_identity))
pads("aten.amax", "aten.max.default")(_filled(lowest, never_empty=True))
pads("aten.amin", "aten.min.default")(_filled(highest, never_empty=True))


@pads("aten.norm", "aten.linalg_vector_norm")
def norm(call: Call) -> Any:
    p = call.args[1]
    if p is not None and (not isinstance(p, (int, float)) or p < 0):
        raise call.refuse("it has no rule for a negative order")
    return _filled(_zero)(call)


@pads("aten.logsumexp")
def logsumexp(call: Call) -> Any:
    x = _tensor(call)
    axes = _axes(call, x)
    assert call.specs[0] is not None
    wide = Padded(cast(x.array, opmath(call.specs[0].dtype)), x.dims)
    if dtypes.is_complex(wide.array):
        raise call.refuse()
    filled = call.scope.fill(wide, -np.inf, axes)
    return call.run([filled, *call.args[1:]], _without(x.dims, axes, _argument(call, "keepdim", False)))


# ---- what divides by the number of elements


def count(call: Call, dims: Layout, axes: Sequence[int]) -> Any:
    """The true number of elements along these axes: int, or int32[]."""
    total: Any = 1
    for axis in axes:
        total = total * call.scope.true_size(dims[axis])
    return total


@pads("aten.mean")
def mean(call: Call) -> Any:
    x, spec = _tensor(call), call.specs[0]
    assert spec is not None
    axes, keepdim = _axes(call, x), bool(_argument(call, "keepdim", False))
    filled = call.scope.fill(x, 0, axes)
    total = jnp.sum(computing(filled.array, spec.dtype), axes, keepdims=keepdim)
    return Padded(cast(quotient(total, count(call, x.dims, axes)), spec.dtype), _without(x.dims, axes, keepdim))


def _var_mean(call: Call, root: bool) -> tuple[Padded, Padded]:
    x = _tensor(call)
    axes, keepdim = _axes(call, x), bool(call.kwargs.get("keepdim", False))
    if dtypes.is_complex(x.array):
        raise call.refuse()
    wide = call.scope.fill(Padded(cast(x.array, opmath(x.array.dtype)), x.dims), 0, axes).array
    number = count(call, x.dims, axes)
    center = quotient(jnp.sum(wide, axes, keepdims=True), number)
    mask = call.scope.mask(x.dims, axes)
    square = (wide - center) * (wide - center)
    square = square if mask is None else jnp.where(mask, square, jnp.zeros((), square.dtype))
    correction = call.kwargs.get("correction")
    correction = 1 if correction is None else correction
    freedom = cast(jnp.maximum(cast(number, square.dtype) - cast(correction, square.dtype), 0), square.dtype)
    variance = jnp.sum(square, axes, keepdims=keepdim) / freedom  # 0/0 where no degree of freedom is left, as PyTorch
    center = center if keepdim else jnp.squeeze(center, axes)
    variance = jnp.sqrt(variance) if root else variance
    dims = _without(x.dims, axes, keepdim)
    assert call.specs[0] is not None
    return Padded(cast(variance, call.specs[0].dtype), dims), Padded(cast(center, call.specs[0].dtype), dims)


@pads("aten.var.correction", "aten.std.correction")
def var(call: Call) -> Any:
    return _var_mean(call, root=call.op._schema.name == "aten::std")[0]


@pads("aten.var_mean.correction", "aten.std_mean.correction")
def var_mean(call: Call) -> Any:
    return list(_var_mean(call, root=call.op._schema.name == "aten::std_mean"))


# ---- extrema with their places


def _extremum(largest: bool) -> Callable[[Call], Any]:
    def rule(call: Call) -> Any:
        x, dim = _tensor(call), _argument(call, "dim", None)
        keepdim = _argument(call, "keepdim", False)
        axes = call.axes(dim, len(x.dims))
        _refuse_empty(call, x.dims, axes)
        x = call.scope.fill(x, (lowest if largest else highest)(x.array.dtype), axes)
        # Padding never comes before the first of the true elements that it is equal to: element 0 is no padding.
        if dim is None:
            flat = Padded(x.array.reshape(-1), (tuple(f for d in x.dims for f in d),))
            found = call.run([flat, 0], _without(x.dims, axes, False))
            index = call.scope.to_true(flat.dims[0], found.array).astype(found.array.dtype)
            dims = _without(x.dims, axes, keepdim)
            return Padded(index.reshape(call.scope.shape(dims)), dims)
        dims = _without(x.dims, axes, keepdim)
        found = call.run([x, *call.args[1:]], *(dims for _ in call.specs))
        values, indices = found if isinstance(found, list) else (None, found)
        if not axes:
            return found
        true = call.scope.to_true(x.dims[axes[0]], indices.array)
        indices = Padded(jnp.asarray(true, indices.array.dtype) + jnp.zeros_like(indices.array), dims)
        return indices if values is None else [values, indices]

    return rule


pads("aten.max.dim", "aten.argmax")(_extremum(largest=True))
pads("aten.min.dim", "aten.argmin")(_extremum(largest=False))


# ---- softmax, and sums along a dim


def _along(*identities: Any) -> Callable[[Call], Any]:
    """A rule for an op whose result has the shape of its first arguments, filled each with one of `identities`."""

    def rule(call: Call) -> Any:
        x = _tensor(call)
        axis = call.axes(_argument(call, "dim", None), len(x.dims))
        args = list(call.args)
        for place, value in enumerate(identities):
            tensor = call.matched_all(args[place], x.dims)
            args[place] = call.scope.fill(tensor, value, axis)
        return call.run(args, x.dims)

    return rule


pads("aten._softmax", "aten._log_softmax", "aten._safe_softmax", "aten.logcumsumexp")(_along(-np.inf))
pads("aten._softmax_backward_data", "aten._log_softmax_backward_data")(_along(0, 0))
pads("aten.cumsum")(_along(0))
pads("aten.cumprod")(_along(1))


# ---- ops that work along dims which do not vary, the same for each place along the others


def _apart(*names: str) -> Callable[[Call], Any]:
    """names: the arguments that name the dims."""

    def rule(call: Call) -> Any:
        x = _tensor(call)
        for name in names:
            named = _argument(call, name, None)
            axes = call.axes(named, len(x.dims))
            call.need_static(x, axes)
        outs: list[Layout] = []
        for output in range(len(call.specs)):
            kept = [dim for axis, dim in enumerate(x.dims) if axis not in axes]
            whole = len(call.out_sizes(output)) == len(x.dims)
            dims = []
            for axis in range(len(call.out_sizes(output))):
                along = whole and axis in axes
                dims.append(call.out_dim(axis, output) if along else kept.pop(0))
            outs.append(tuple(dims))
        if any(type(a) is Padded and not a.is_static for a in call.args[1:]):
            raise call.refuse()
        return call.run(call.args, *outs)

    return rule


pads(
    "aten.sort", "aten.argsort", "aten.topk", "aten.glu", "aten.median.dim",
    "aten.kthvalue", "aten.mode", "aten.nanmedian.dim",
)(_apart("dim"))  # fmt: skip
pads("aten.roll")(_apart("dims"))


@pads("aten.cummax", "aten.cummin")
def extreme_so_far(call: Call) -> Any:
    x = _tensor(call)
    if any(len(x.dims[axis]) > 1 for axis in call.axes(call.args[1], len(x.dims))):
        raise call.refuse("it has no rule for a flattened dim")
    return call.run(call.args, x.dims, x.dims)  # padding comes last


@pads("aten.glu_backward")
def glu_backward(call: Call) -> Any:
    grad, x, dim = call.args
    call.need_static(x, axes := call.axes(dim, len(x.dims)))
    for axis in range(len(x.dims)):
        grad = grad if axis in axes else call.matched(grad, axis, x.dims[axis])
    return call.run([grad, x, dim], x.dims)


@pads("aten.flip")
def flip(call: Call) -> Any:
    x = _tensor(call)
    array = x.array
    for axis in call.axes(call.args[1], len(x.dims)) if call.args[1] else ():
        dim = x.dims[axis]
        if is_static(dim):
            array = jnp.flip(array, axis)
        else:
            true = call.scope.to_true(dim, call.scope.iota(dim))
            array = call.scope.take(array, dim, call.scope.true_size(dim) - 1 - true, axis)
    return Padded(array, x.dims)
