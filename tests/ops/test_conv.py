"""Convolutions: op_db entries, then all combinations of stride, padding, dilation, groups and transposition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries

aten = torch.ops.aten
NAMES = [f"nn.functional.{kind}{n}d" for n in (1, 2, 3) for kind in ("conv", "conv_transpose")]
FORWARD_ONLY = {
    torch.int64: ["nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv_transpose2d"],
    torch.bfloat16: ["nn.functional.conv2d", "nn.functional.conv_transpose2d"],
    torch.complex64: ["nn.functional.conv2d"],
}
LAYOUTS = [  # stride, padding, dilation, output_padding, groups
    ((1, 1), (0, 0), (1, 1), (0, 0), 1),
    ((2, 3), (1, 2), (1, 1), (1, 2), 1),
    ((3, 2), (2, 0), (2, 1), (2, 1), 2),
    ((1, 1), (4, 3), (2, 2), (0, 0), 4),
]


OTHERS = [case for dtype, names in FORWARD_ONLY.items() for case in entries(names, dtype)]


# The CPU adds these up in bfloat16 on some machines, and sums of hundreds in an order of its own: the reference is the CPU
# in a wider dtype, within the bounds of the narrow one.
WIDE = {
    ("conv_transpose2d", torch.bfloat16): torch.float32,
    ("conv_transpose3d", torch.float32): torch.float64,
}


@pytest.mark.parametrize(("op", "dtype"), entries(NAMES, torch.float32) + OTHERS)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, wide=WIDE.get((op.name.rpartition(".")[2], dtype)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradients(layout: Any, transposed: bool) -> None:
    stride, padding, dilation, extra, groups = layout
    x = torch.randn(2, 4, 9, 8)
    w = torch.randn(4, 4 // groups, 3, 2) if not transposed else torch.randn(4, 8 // groups, 3, 2)
    bias = torch.randn(w.shape[0] if not transposed else w.shape[1] * groups)
    where = (stride, padding, dilation, transposed, extra if transposed else (0, 0), groups)
    agrees(aten.convolution.default, x, w, bias, *where)
    g = torch.randn_like(aten.convolution.default(x, w, bias, *where))
    agrees(aten.convolution_backward.default, g, x, w, bias.shape, *where, (True, True, True))
    agrees(aten.convolution_backward.default, g, x, w, None, *where, (False, True, False))


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise(stride: int, multiplier: int) -> None:
    x, w = torch.randn(2, 6, 7, 8, requires_grad=True), torch.randn(6 * multiplier, 1, 3, 3, requires_grad=True)
    agrees(lambda: torch.nn.functional.conv2d(x, w, None, stride, 1, groups=6).square().sum().backward())


def test_rows_that_no_window_reaches() -> None:
    """With stride 3 the last rows of the input have no part in the output: their gradient is zero."""
    x, w = torch.randn(1, 1, 11, 10), torch.randn(1, 1, 2, 2)
    where = ((3, 3), (0, 0), (1, 1), False, (0, 0), 1)
    g = torch.randn_like(aten.convolution.default(x, w, None, *where))
    agrees(aten.convolution_backward.default, g, x, w, None, *where, (True, True, False))


def test_empty_batch() -> None:
    agrees(torch.nn.functional.conv2d, torch.ones(0, 3, 5, 5), torch.ones(2, 3, 3, 3), torch.ones(2))


def test_double_backward() -> None:
    x, w = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)

    def twice() -> None:
        y = torch.nn.functional.conv2d(x, w, stride=2, padding=1)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        g.square().sum().backward()

    agrees(twice)


def test_over_time() -> None:
    agrees(torch.conv_tbc, torch.randn(7, 2, 3), torch.randn(3, 3, 4), torch.randn(4), 1)


def test_gradient_of_an_output_padding_that_no_input_element_reaches() -> None:
    """With a dilation above the stride, the output padding may exceed the stride."""
    x, w = torch.randn(1, 2, 4, requires_grad=True), torch.randn(2, 3, 2, requires_grad=True)

    def run() -> None:
        torch.nn.functional.conv_transpose1d(x, w, stride=1, output_padding=2, dilation=3).square().sum().backward()

    agrees(run)
