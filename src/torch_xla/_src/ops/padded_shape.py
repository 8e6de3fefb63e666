"""Rules for views, factories and what moves elements about, on padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.graph.families import Varying
from torch_xla._src.graph.lengths import Affine, Dim, Layout, dim_of, is_static, static
from torch_xla._src.ops.dtypes import cast
from torch_xla._src.ops.padded import Call, Padded, pads


def _tensor(call: Call) -> Padded:
    if type(call.args[0]) is not Padded:
        raise call.refuse()
    return call.args[0]


# ---- views that name dims


@pads("aten.t_copy", "aten.t")
def t(call: Call) -> Any:
    x = _tensor(call)
    return Padded(x.array.T, x.dims[::-1])


@pads("aten.transpose_copy", "aten.transpose")
def transpose(call: Call) -> Any:
    x = _tensor(call)
    if not x.dims:
        return x
    a, b = (call.constant(d) % len(x.dims) for d in call.args[1:3])
    dims = list(x.dims)
    dims[a], dims[b] = dims[b], dims[a]
    return Padded(jnp.swapaxes(x.array, a, b), tuple(dims))


@pads("aten.permute_copy", "aten.permute")
def permute(call: Call) -> Any:
    x = _tensor(call)
    order = [call.constant(d) % len(x.dims) for d in call.args[1]]
    return Padded(jnp.transpose(x.array, order), tuple(x.dims[d] for d in order))


@pads("aten.unsqueeze_copy", "aten.unsqueeze")
def unsqueeze(call: Call) -> Any:
    x = _tensor(call)
    axis = call.constant(call.args[1]) % (len(x.dims) + 1)
    return Padded(jnp.expand_dims(x.array, axis), (*x.dims[:axis], (), *x.dims[axis:]))


@pads("aten.squeeze_copy", "aten.squeeze")
def squeeze(call: Call) -> Any:
    x = _tensor(call)
    named = call.args[1] if len(call.args) > 1 else None
    axes = [a for a in call.axes(named, len(x.dims)) if not x.dims[a]] if named != [] else []
    return Padded(jnp.squeeze(x.array, tuple(axes)), tuple(d for a, d in enumerate(x.dims) if a not in axes))


@pads("aten.unbind_copy", "aten.unbind")
def unbind(call: Call) -> Any:
    x = _tensor(call)
    axis = call.constant(call.args[1]) % len(x.dims)
    call.need_static(x, [axis])
    dims = x.dims[:axis] + x.dims[axis + 1 :]
    return [Padded(lax.index_in_dim(x.array, i, axis, keepdims=False), dims) for i in range(len(call.specs))]


@pads("aten.split_copy", "aten.split_with_sizes_copy", "aten.split", "aten.split_with_sizes", "aten.unsafe_split")
def split(call: Call) -> Any:
    x = _tensor(call)
    axis = call.constant(call.args[2]) % len(x.dims)
    call.need_static(x, [axis])
    outs, start = [], 0
    for output in range(len(call.specs)):
        size = call.out_sizes(output)[axis][0]
        array = lax.slice_in_dim(x.array, start, start + size, axis=axis)
        outs.append(Padded(array, (*x.dims[:axis], static(size), *x.dims[axis + 1 :])))
        start += size
    return outs


# ---- views that name sizes


def regrouped(call: Call, dims: Layout, sizes: Sequence[tuple[int, ...]]) -> Layout | None:
    """The dims of a view with these sizes (of each sample) that leaves all elements in place, padding included."""
    left = [f for dim in dims for f in dim]
    found: list[Dim] = []
    for wanted in sizes:
        taken: list[Affine] = []
        while any(n != 1 for n in wanted):
            if not left or 0 in wanted:
                return None
            factor = left.pop(0)
            values = call.scope.vector((factor,))
            if 0 in values:
                return None
            if all(n % v == 0 for n, v in zip(wanted, values)):
                wanted = tuple(n // v for n, v in zip(wanted, values))
            elif not factor.terms and len(set(wanted)) == 1 and factor.const % wanted[0] == 0:
                left.insert(0, Affine(factor.const // wanted[0]))
                factor, wanted = Affine(wanted[0]), (1,) * len(wanted)
            else:
                return None
            taken.append(factor)
        found.append(dim_of(taken))
    return tuple(found) if not dim_of(left) else None


@pads(
    "aten.view_copy.default", "aten.view.default", "aten._unsafe_view", "aten._reshape_copy", "aten.reshape", sizes=[1]
)
def view(call: Call) -> Any:
    x = _tensor(call)
    dims = regrouped(call, x.dims, call.out_sizes())
    if dims is not None:
        return Padded(x.array.reshape(call.scope.shape(dims)), dims)
    return _moved(call, x, call.out_dims())


def _moved(call: Call, x: Padded, dims: Layout) -> Padded:
    """A view in which padding is somewhere else: each element is fetched by its place among the true elements."""
    scope = call.scope
    flat: Dim = tuple(f for dim in x.dims for f in dim)
    target: Dim = tuple(f for dim in dims for f in dim)
    scope.equal.append((flat, target))
    array = scope.take(x.array.reshape(-1), flat, scope.to_true(target, scope.iota(target)), 0)
    return Padded(array.reshape(scope.shape(dims)), dims)


@pads("aten.expand_copy", "aten.expand", sizes=[1])
def expand(call: Call) -> Any:
    x = _tensor(call)
    rank = len(call.out_sizes())
    given = ((),) * (rank - len(x.dims)) + x.dims
    dims = tuple(dim or call.out_dim(axis) for axis, dim in enumerate(given))
    return Padded(jnp.broadcast_to(x.array, call.scope.shape(dims)), dims)


@pads("aten.repeat")
def repeat(call: Call) -> Any:
    x, counts = _tensor(call), call.args[1]
    given = ((),) * (len(counts) - len(x.dims)) + x.dims
    dims, times = [], []
    for axis, (dim, number) in enumerate(zip(given, counts)):
        if type(number) is not int and dim:
            raise call.refuse("it repeats a dim as often as a length says")
        dims.append(dim_of([Affine(number), *dim]) if type(number) is int else call.out_dim(axis))
        times.append(number if type(number) is int else call.scope.shape((dims[-1],))[0])
    return Padded(jnp.tile(x.array, times), tuple(dims))


# ---- slices


@pads("torch_xla.slice", sizes=[3])
def slice_(call: Call) -> Any:
    x, axis, start = _tensor(call), call.constant(call.args[1]), call.number(call.args[2])
    dim = call.out_dim(axis)
    source, dims = x.dims[axis], (*x.dims[:axis], dim, *x.dims[axis + 1 :])
    length, held = call.scope.shape((dim, source))
    if isinstance(start, int) and len(source) <= 1:
        missing = max(start + length - held, 0)
        padding = [(0, missing if a == axis else 0) for a in range(len(dims))]
        array = jnp.pad(x.array, padding) if missing else x.array
        return Padded(lax.slice_in_dim(array, start, start + length, axis=axis), dims)
    true = call.scope.to_true(dim, call.scope.iota(dim)) + cast(start, np.int32)
    return Padded(call.scope.take(x.array, source, true, axis), dims)


@pads("torch_xla.select")
def select(call: Call) -> Any:
    x, axis, index = _tensor(call), call.constant(call.args[1]), call.number(call.args[2])
    place = call.scope.to_array(x.dims[axis], cast(index, np.int32))
    return Padded(jnp.take(x.array, place, axis, mode="clip"), x.dims[:axis] + x.dims[axis + 1 :])


def _written(call: Call, x: Padded, source: Padded, axis: int, start: Any) -> Padded:
    """`x` with `source` in place of the slice that begins at `start`."""
    scope, dims = call.scope, x.dims
    for other in range(len(dims)):
        if other != axis:
            source = call.matched(source, other, dims[other])
    if 0 in scope.shape(source.dims):
        return x
    place = scope.to_true(dims[axis], scope.iota(dims[axis])) - cast(start, np.int32)
    inside = (place >= 0) & (place < scope.true_size(source.dims[axis]))
    shape = [-1 if a == axis else 1 for a in range(len(dims))]
    taken = scope.take(source.array.astype(x.array.dtype), source.dims[axis], place, axis)
    return Padded(jnp.where(inside.reshape(shape), taken, x.array), dims)


@pads("torch_xla.slice_scatter")
def slice_scatter(call: Call) -> Any:
    x, source, axis, start = call.args
    return _written(call, x, source, call.constant(axis), call.number(start))


def _zeros(call: Call, dims: Layout) -> Padded:
    assert call.specs[0] is not None
    return Padded(jnp.zeros(call.scope.shape(dims), call.specs[0].dtype), dims)


@pads("aten.select_backward", sizes=[1])
def select_backward(call: Call) -> Any:
    grad, axis, index = call.args[0], call.constant(call.args[2]), call.number(call.args[3])
    axis %= len(grad.dims) + 1
    dims = (*grad.dims[:axis], call.out_dim(axis), *grad.dims[axis:])
    if isinstance(index, int) and index < 0:
        index = index + call.scope.true_size(dims[axis])
    slice_ = Padded(jnp.expand_dims(grad.array, axis), (*grad.dims[:axis], (), *grad.dims[axis:]))
    return _written(call, _zeros(call, dims), slice_, axis, index)


@pads("aten.slice_backward", sizes=[1, 4])
def slice_backward(call: Call) -> Any:
    grad, axis, start = call.args[0], call.constant(call.args[2]), call.number(call.args[3])
    if call.args[5] != 1:
        raise call.refuse("it has no rule for slices with a step")
    axis %= len(grad.dims)
    dims = (*grad.dims[:axis], call.out_dim(axis), *grad.dims[axis + 1 :])
    if isinstance(start, int) and start < 0:
        start = jnp.maximum(start + call.scope.true_size(dims[axis]), 0)
    return _written(call, _zeros(call, dims), grad, axis, start)


@pads("aten.constant_pad_nd", sizes=[])
def constant_pad_nd(call: Call) -> Any:
    x, widths, value = _tensor(call), call.args[1], call.args[2]
    assert call.specs[0] is not None
    for pair in range(len(widths) // 2):
        axis = len(x.dims) - 1 - pair
        if widths[2 * pair] == 0 and widths[2 * pair + 1] == 0:
            continue
        dims = (*x.dims[:axis], call.out_dim(axis), *x.dims[axis + 1 :])
        blank = jnp.broadcast_to(cast(value, call.specs[0].dtype), call.scope.shape(dims))
        x = _written(call, Padded(blank, dims), x, axis, call.number(widths[2 * pair]))
    return x


# ---- joining


@pads("aten.cat")
def cat(call: Call) -> Any:
    tensors, axis = call.args[0], call.constant(call.args[1])
    assert call.specs[0] is not None
    tensors = [x for x in tensors if len(x.dims) > 1 or 0 not in call.scope.vector(x.dims[0])]
    rank = len(tensors[0].dims)
    axis %= rank
    first = tensors[0]
    parts = []
    for x in tensors:
        for other in range(rank):
            x = x if other == axis else call.matched(x, other, first.dims[other])
        parts.append(Padded(cast(x.array, call.specs[0].dtype), x.dims))
    if all(is_static(x.dims[axis]) for x in parts):
        dims = (*first.dims[:axis], call.out_dim(axis), *first.dims[axis + 1 :])
        return Padded(jnp.concatenate([x.array for x in parts], axis), dims)
    return _joined(call, parts, axis)


def _joined(call: Call, parts: Sequence[Padded], axis: int) -> Padded:
    """Parts one after the other, without padding in between."""
    const, terms = 0, dict[Any, int]()
    for x in parts:
        if len(x.dims[axis]) > 1:
            raise call.refuse("it joins tensors along a dim that has been flattened")
        for factor in x.dims[axis] or (Affine(1),):
            const += factor.const
            for key, number in factor.terms:
                terms[key] = terms.get(key, 0) + number
    dim = dim_of([Affine(const, tuple(sorted(terms.items())))])
    dims = (*parts[0].dims[:axis], dim, *parts[0].dims[axis + 1 :])
    joined, start = Padded(jnp.zeros(call.scope.shape(dims), parts[0].array.dtype), dims), 0
    for x in parts:
        joined = _written(call, joined, x, axis, start)
        start = start + call.scope.true_size(x.dims[axis])
    return joined


@pads("aten.stack")
def stack(call: Call) -> Any:
    tensors, rank = call.args[0], len(call.args[0][0].dims)
    assert call.specs[0] is not None
    axis = call.constant(call.args[1]) % (rank + 1)
    dims = tensors[0].dims
    arrays = [cast(call.matched_all(x, dims).array, call.specs[0].dtype) for x in tensors]
    return Padded(jnp.stack(arrays, axis), (*dims[:axis], static(len(arrays)), *dims[axis:]))


# ---- factories


@pads("aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.rand", "aten.randn", sizes=[0])
def factory(call: Call) -> Any:
    dims = call.out_dims()
    return call.run([list(call.scope.shape(dims)), *call.args[1:]], dims)


@pads("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", sizes=[1])
def factory_like(call: Call) -> Any:
    dims = call.out_dims()
    return call.run([call.args[0], list(call.scope.shape(dims)), *call.args[2:]], dims)


@pads("aten.empty_strided", "aten.new_empty_strided", sizes=[0, 1, 2])
def empty_strided(call: Call) -> Any:
    return _zeros(call, call.out_dims())


def _range(call: Call, start: Any, step: Any) -> Padded:
    dims = call.out_dims()
    assert call.specs[0] is not None
    dtype = call.specs[0].dtype
    from_zero = isinstance(start, int) and start == 0 and isinstance(step, int) and step == 1
    if not from_zero and (any(isinstance(x, float) for x in (start, step)) or dtype.kind not in "iu"):
        raise call.refuse("it has no rule for fractions")
    index = call.scope.to_true(dims[0], call.scope.iota(dims[0])).astype(np.int64)
    return Padded(cast(index * cast(step, np.int64) + cast(start, np.int64), dtype), dims)


@pads("aten.arange.default", sizes=[0])
def arange(call: Call) -> Any:
    return _range(call, 0, 1)


@pads("aten.arange.start", "aten.arange.start_step", sizes=[1])
def arange_from(call: Call) -> Any:
    step = call.args[2] if len(call.args) > 2 else 1
    return _range(call, call.number(call.args[0]), call.number(step))


@pads("aten.tril", "aten.triu")
def triangle(call: Call) -> Any:
    x = _tensor(call)
    if any(len(dim) > 1 for dim in x.dims[-2:]) or type(call.args[1]) is Varying:
        raise call.refuse("it has no rule for a flattened dim, or a diagonal that varies")
    return call.run(call.args, x.dims)


@pads("aten.eye", sizes=[0, 1])
def eye(call: Call) -> Any:
    dims = call.out_dims()
    assert call.specs[0] is not None
    rows, columns = call.scope.shape(dims)
    return Padded(jnp.eye(rows, columns, dtype=call.specs[0].dtype), dims)
