"""`linear` as one op: values, gradients, second derivatives, and what goes through its composition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from tests.same import raised, same
from torch_xla._src.graph.recorder import RECORDER

SHAPES = {
    "matrix": ((4, 8), (3, 8), (3,)),
    "without bias": ((4, 8), (3, 8), None),
    "batches": ((2, 4, 8), (3, 8), (3,)),
    "vector": ((8,), (3, 8), (3,)),
    "weight is a vector": ((4, 8), (8,), None),
    "bias of one element": ((4, 8), (3, 8), (1,)),
    "bias of a row each": ((4, 8), (3, 8), (4, 3)),
    "no rows": ((0, 8), (3, 8), (3,)),
    "no columns": ((4, 0), (3, 0), (3,)),
}


def _inputs(device: str, *shapes: Any) -> list[Any]:
    torch.manual_seed(0)
    return [None if s is None else torch.randn(s, dtype=torch.float64).to(device).requires_grad_() for s in shapes]


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_first_and_second_derivatives(shapes: Any) -> None:
    def run(device: str) -> Any:
        x, weight, bias = _inputs(device, *shapes)
        leaves = [t for t in (x, weight, bias) if t is not None]
        y = F.linear(x, weight, bias)
        first = torch.autograd.grad((y * y).sum(), leaves, create_graph=True)
        return y, first, torch.autograd.grad(sum((g * g).sum() for g in first), leaves)

    same(run, tolerance=1e-9)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_gradients_that_are_not_wanted(frozen: tuple[int, ...]) -> None:
    def run(device: str) -> Any:
        tensors = _inputs(device, (4, 8), (3, 8), (3,))
        for number in frozen:
            tensors[number].requires_grad_(False)
        F.linear(*tensors).sin().sum().backward()
        return [t.grad for t in tensors]

    same(run, tolerance=1e-9)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is")  # PyTorch's own use for forward derivatives
def test_forward_mode() -> None:
    def run(device: str) -> Any:
        x, weight, bias = (t.detach() for t in _inputs(device, (4, 8), (3, 8), (3,)))
        with forward_ad.dual_level():
            y = F.linear(forward_ad.make_dual(x, torch.ones_like(x)), weight, bias)
            return tuple(forward_ad.unpack_dual(y))

    same(run, tolerance=1e-9)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is")  # PyTorch's own use for forward derivatives
def test_function_transforms() -> None:
    def run(device: str) -> Any:
        x, weight = (t.detach() for t in _inputs(device, (2, 8), (3, 8)))
        cubes = lambda w, x: F.linear(x, w).pow(3).sum()
        return (
            torch.func.hessian(cubes)(weight, x),
            torch.func.vmap(torch.func.grad(cubes), (None, 0))(weight, x),
            torch.func.jvp(cubes, (weight, x), (weight, x)),
        )

    same(run, tolerance=1e-9)


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        (((4, 7), (3, 8), (3,)), (torch.float32,) * 3),
        (((4, 8), (3, 8), (2,)), (torch.float32,) * 3),
        (((4, 8), (3, 8), (3,)), (torch.float32, torch.float64, torch.float32)),
        (((4, 8), (3, 8), (3,)), (torch.bool,) * 3),
    ],
    ids=["columns", "bias", "dtypes", "booleans"],
)
def test_errors(shapes: Any, dtypes: Any) -> None:
    errors = []
    for device in ("cpu", "xla"):
        tensors = [torch.zeros(s, dtype=d, device=device) for s, d in zip(shapes, dtypes)]
        errors.append(type(raised(lambda tensors=tensors: F.linear(*tensors))))
    assert errors[0] is errors[1]


def test_a_layer_is_one_row_forward_and_one_backward() -> None:
    x, weight, bias = _inputs("xla", (4, 8), (3, 8), (3,))
    y = F.linear(x, weight, bias)
    gradient = torch.ones_like(y)
    before = RECORDER.pending
    y = F.linear(x, weight, bias)
    assert RECORDER.pending == before + 1
    torch.autograd.grad(y, [x, weight, bias], gradient)
    assert RECORDER.pending == before + 2
