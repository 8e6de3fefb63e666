"""Rules for matrix products of padded tensors: where a dim that varies is summed over, both operands are zero in padding.

One of them would do if padding held numbers, but a product of zero and NaN is NaN.
"""

from __future__ import annotations

from typing import Any

from torch_xla._src.graph.lengths import Layout
from torch_xla._src.ops.padded import Call, Padded, pads


def contracted(call: Call, x: Padded, x_axis: int, y: Padded, y_axis: int) -> tuple[Padded, Padded]:
    """Operands that agree along the axes which are summed over, and are zero in the padding there."""
    x_axis, y_axis = x_axis % len(x.dims), y_axis % len(y.dims)
    y = call.matched(y, y_axis, x.dims[x_axis])
    return call.scope.fill(x, 0, [x_axis]), call.scope.fill(y, 0, [y_axis])


def _tensors(call: Call, count: int) -> list[Padded]:
    tensors = call.args[:count]
    if not all(type(x) is Padded for x in tensors):
        raise call.refuse()
    return tensors


def _product(call: Call, x: Padded, y: Padded) -> tuple[Padded, Padded, Layout]:
    """Operands of a product [..., M, K] @ [..., K, N] with equal leading dims, and the dims of the result."""
    for axis in range(len(x.dims) - 2):
        y = call.matched(y, axis, x.dims[axis])
    x, y = contracted(call, x, -1, y, -2)
    return x, y, (*x.dims[:-1], y.dims[-1])


@pads("aten.mm", "aten.bmm")
def mm(call: Call) -> Any:
    x, y, dims = _product(call, *_tensors(call, 2))
    return call.run([x, y, *call.args[2:]], dims)


@pads("aten.addmm", "aten.baddbmm")
def addmm(call: Call) -> Any:
    bias, x, y = _tensors(call, 3)
    x, y, dims = _product(call, x, y)
    return call.run([_broadcast(call, bias, dims), x, y, *call.args[3:]], dims)


def _broadcast(call: Call, x: Padded, dims: Layout) -> Padded:
    """`x` arranged so that it broadcasts to `dims`."""
    for axis in range(-len(x.dims), 0):
        if x.dims[axis]:
            x = call.matched(x, axis + len(x.dims), dims[axis])
    return x


@pads("aten.mv")
def mv(call: Call) -> Any:
    x, y = contracted(call, call.args[0], 1, call.args[1], 0)
    return call.run([x, y], x.dims[:1])


@pads("aten.dot", "aten.vdot")
def dot(call: Call) -> Any:
    x, y = contracted(call, call.args[0], 0, call.args[1], 0)
    return call.run([x, y], ())


@pads("aten.addmv")
def addmv(call: Call) -> Any:
    bias, x, y = _tensors(call, 3)
    x, y = contracted(call, x, 1, y, 0)
    return call.run([_broadcast(call, bias, x.dims[:1]), x, y], x.dims[:1])


@pads("aten.linear")
def linear(call: Call) -> Any:
    x, weight = _tensors(call, 2)
    x, weight = contracted(call, x, -1, weight, -1)
    dims = (*x.dims[:-1], *weight.dims[:-1])
    bias = call.args[2]
    return call.run([x, weight, None if bias is None else call.matched_all(bias, dims[-1:])], dims)


@pads("aten.linear_backward")
def linear_backward(call: Call) -> Any:
    x, grad, weight = _tensors(call, 3)
    for axis in range(len(x.dims) - 1):
        grad = call.matched(grad, axis, x.dims[axis])
    grad, weight = call.matched(grad, len(grad.dims) - 1, weight.dims[0]), call.matched(weight, 1, x.dims[-1])
    # Both are zero in all padding: leading dims are summed over for the weight, the last of `grad` for the input.
    x, grad, weight = (call.scope.fill(t, 0) for t in (x, grad, weight))
    mask = call.args[3]
    return call.run([x, grad, weight, mask], *gradients(call, [x.dims, weight.dims, weight.dims[:1]]))


def gradients(call: Call, dims: list[Layout]) -> list[Layout | None]:
    """The dims of each gradient; PyTorch describes one that is not asked for as an empty tensor."""
    found: list[Layout | None] = []
    for output, layout in enumerate(dims):
        if call.specs[output] is None:
            found.append(None)
            continue
        vectors = [call.scope.vector(dim) for dim in layout]
        found.append(layout if call.out_sizes(output) == vectors else call.out_dims(output))
    return found
