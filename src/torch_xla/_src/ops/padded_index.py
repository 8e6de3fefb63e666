"""Rules for ops that take indices, on padded tensors.

Indices count true elements, so they are translated to places in the array; those in padding are replaced by 0.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_xla._src.graph.lengths import Dim, Layout, is_static
from torch_xla._src.ops.padded import Call, Padded, pads


def _places(call: Call, index: Padded, dim: Dim, wraps: bool = False) -> Padded:
    """Indices along `dim` as places in the array. wraps: negative ones count from the end."""
    index = call.scope.fill(index, 0)
    if is_static(dim):
        return index
    array = index.array.astype(np.int64)
    if wraps:
        array = jnp.where(array < 0, array + call.scope.true_size(dim), array)
    return Padded(call.scope.to_array(dim, array).astype(np.int64), index.dims)


def _apart(call: Call, x: Padded, index: Padded, axis: int) -> Padded:
    """`index` arranged as `x` along all other axes."""
    for other in range(len(x.dims)):
        if other != axis:
            index = call.matched(index, other, x.dims[other])
    return index


@pads("aten.gather")
def gather(call: Call) -> Any:
    x, index = call.args[0], call.args[2]
    if not x.dims or not index.dims:
        raise call.refuse()
    axis = call.constant(call.args[1]) % len(x.dims)
    index = _places(call, _apart(call, x, index, axis), x.dims[axis])
    return call.run([x, axis, index], index.dims)


@pads("aten.scatter.src", "aten.scatter.value", "aten.scatter_add")
def scatter(call: Call) -> Any:
    x, index, source = call.args[0], call.args[2], call.args[3]
    if not x.dims or not index.dims:
        raise call.refuse()
    axis = call.constant(call.args[1]) % len(x.dims)
    call.need_static(index, [axis])  # what indices in padding would write could not be told from the rest
    index = _places(call, _apart(call, x, index, axis), x.dims[axis])
    source = call.matched_all(source, index.dims) if type(source) is Padded else source
    return call.run([x, axis, index, source], x.dims)


@pads("aten.index_select")
def index_select(call: Call) -> Any:
    x, index = call.args[0], call.args[2]
    if not x.dims or not index.dims:
        raise call.refuse()
    axis = call.constant(call.args[1]) % len(x.dims)
    index = _places(call, index, x.dims[axis])
    return call.run([x, axis, index], (*x.dims[:axis], *index.dims, *x.dims[axis + 1 :]))


@pads("aten.index_add")
def index_add(call: Call) -> Any:
    x, index, source = call.args[0], call.args[2], call.args[3]
    if not x.dims or not index.dims or not source.dims:
        raise call.refuse()
    axis = call.constant(call.args[1]) % len(x.dims)
    call.need_static(index, [0])
    source = _apart(call, x, source, axis)
    return call.run([x, axis, _places(call, index, x.dims[axis]), source], x.dims)


def _advanced(call: Call, x: Padded, given: list[Any]) -> tuple[list[Any], Layout, Layout]:
    """Index tensors as places in the array of `x`, the dims they broadcast to, and those of what they choose."""
    axes = [axis for axis, index in enumerate(given) if index is not None]
    tensors = [given[axis] for axis in axes]
    if not axes or any(type(t) is not Padded or t.array.dtype in (np.bool_, np.uint8) for t in tensors):
        raise call.refuse("it has no rule for such indices")
    aligned, common = call.aligned(tensors)
    indices: list[Any] = [None] * len(given)
    for axis, index in zip(axes, aligned):
        indices[axis] = _places(call, index, x.dims[axis], wraps=True)
    rest = [dim for axis, dim in enumerate(x.dims) if axis not in axes]
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if adjacent else 0
    return indices, common, (*rest[:before], *common, *rest[before:])


@pads("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_(call: Call) -> Any:
    x = call.args[0]
    indices, _, dims = _advanced(call, x, call.args[1])
    return call.run([x, indices], dims)


@pads("aten.index_put", "aten._unsafe_index_put")
def index_put(call: Call) -> Any:
    x, given, values, accumulate = call.args
    indices, common, dims = _advanced(call, x, given)
    for axis in range(-len(values.dims), 0):
        if values.dims[axis]:
            values = call.matched(values, axis + len(values.dims), dims[axis])
    if not all(map(is_static, common)):
        if not accumulate:
            raise call.refuse("it has no rule for writes to places that a tensor of varying length names")
        # What padding adds is zero; it goes to place 0.
        shape = call.scope.shape(dims)
        values = call.scope.fill(Padded(jnp.broadcast_to(values.array, shape), dims), 0)
    return call.run([x, indices, values, accumulate], x.dims)
