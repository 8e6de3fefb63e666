"""Losses: op_db entries forward and backward, and the corners that its samples leave out."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

NAMES = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "kl_div",
    "l1_loss",
    "cosine_embedding_loss",
    "margin_ranking_loss",
    "hinge_embedding_loss",
    "triplet_margin_loss",
]
ENTRIES = {op.name.removeprefix("nn.functional."): op for op in op_db if op.name.startswith("nn.functional.")}
LOW_PRECISION = ["binary_cross_entropy_with_logits", "nll_loss", "mse_loss", "smooth_l1_loss", "huber_loss"]


@pytest.mark.parametrize("name", NAMES)
def test_float32(name: str) -> None:
    assert not check_opinfo(ENTRIES[name], torch.float32, samples=2)


@pytest.mark.parametrize("name", LOW_PRECISION)
def test_bfloat16(name: str) -> None:
    assert not check_opinfo(ENTRIES[name], torch.bfloat16, samples=2)


def check(fn: Any, *tensors: torch.Tensor, **named: Any) -> list[str]:
    """Failures of a loss, forward and backward in its first argument."""
    mode = CheckLowerings()
    x = tensors[0].clone().requires_grad_()
    with mode:
        loss = fn(x, *tensors[1:], **named)
        loss.backward(torch.ones_like(loss))
    return mode.failures


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3, 2)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss_ignores_and_weighs(reduction: str, shape: tuple[int, ...], weighted: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).log_softmax(min(1, len(shape) - 1))
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    weight = torch.rand(5) if weighted else None
    ignored = int(target.flatten()[0])
    assert not check(F.nll_loss, x, target, weight=weight, reduction=reduction)
    assert not check(F.nll_loss, x, target, weight=weight, reduction=reduction, ignore_index=ignored)
    padded = torch.where(torch.rand(target.shape) < 0.5, -100, target)
    assert not check(F.nll_loss, x, padded, weight=weight, reduction=reduction)


def test_nll_loss_of_nothing() -> None:
    assert not check(F.nll_loss, torch.randn(3, 4), torch.full((3,), -100))  # mean of no elements: NaN
    assert not check(F.nll_loss, torch.randn(0, 4), torch.zeros(0, dtype=torch.int64), reduction="sum")
    infinite = torch.tensor([[-math.inf, 0.0], [-1.0, -math.inf]])
    assert not check(F.nll_loss, infinite, torch.tensor([0, 0]), ignore_index=0, reduction="sum")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(reduction: str, p: int) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(4, 5), torch.tensor([0, 4, 2, 2])
    assert not check(F.multi_margin_loss, x, target, p=p, weight=torch.rand(5), margin=0.7, reduction=reduction)
    assert not check(F.multi_margin_loss, x[0], target[0], p=p, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss(reduction: str) -> None:
    torch.manual_seed(0)
    target = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [1, 1, 2, -1], [0, 1, 2, 3]])  # repeated labels count twice
    assert not check(F.multilabel_margin_loss, torch.randn(4, 4), target, reduction=reduction)
    assert not check(F.multilabel_margin_loss, torch.randn(4), target[0], reduction=reduction)


def test_binary_cross_entropy_is_clamped() -> None:
    x, target = torch.tensor([0.0, 1.0, 0.5, 1.0]), torch.tensor([1.0, 0.0, 0.3, 1.0])
    assert not check(F.binary_cross_entropy, x, target, reduction="none")


def test_soft_margin_gradient_does_not_overflow() -> None:
    """The CPU kernel divides exponentials and gives NaN here."""
    args = (jnp.ones(1), jnp.array([-200.0]), jnp.ones(1), 0)
    spec = specs_of([torch.empty(1, device="meta")])
    with jax.enable_x64(True):
        assert lower(torch.ops.aten.soft_margin_loss_backward.default, args, {}, spec)[0].tolist() == [-1.0]


def test_scalar_slots() -> None:
    """beta and delta may be inputs of the program."""
    spec = specs_of([torch.empty((), device="meta")])
    x, y = torch.tensor([0.1, 3.0]), torch.zeros(2)
    for op in (torch.ops.aten.smooth_l1_loss.default, torch.ops.aten.huber_loss.default):
        with jax.enable_x64(True):
            run = jax.jit(lambda a, b, slot, op=op: lower(op, (a, b, 1, slot), {}, spec)[0])
            got = run(to_jax(x), to_jax(y), 0.5)
        torch.testing.assert_close(to_torch(got), op(x, y, 1, 0.5))


# ---- CTC. The forward variables past the lengths are unspecified memory on CPU, so the harness cannot compare them.

CTC_CASES = {
    "padded": (torch.tensor([[1, 2, 2, 0], [3, 1, 1, 3], [4, 0, 0, 0]]), [3, 4, 1], [7, 6, 5]),
    "concatenated": (torch.tensor([1, 2, 2, 3, 1, 1, 3, 4]), [3, 4, 1], [7, 6, 5]),
    "empty target": (torch.tensor([[1, 2], [1, 1], [3, 4]]), [2, 0, 1], [7, 7, 2]),
    "too short": (torch.tensor([[1, 2, 3], [1, 1, 1], [3, 4, 1]]), [3, 3, 3], [7, 4, 2]),
}


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("case", CTC_CASES)
def test_ctc_loss(case: str, zero_infinity: bool) -> None:
    torch.manual_seed(0)
    targets, target_lengths, input_lengths = CTC_CASES[case]
    log_probs = torch.randn(7, 3, 5, dtype=torch.float64).log_softmax(-1).requires_grad_()
    args = (targets, input_lengths, target_lengths, 0, zero_infinity)
    expected = torch.ops.aten._ctc_loss(log_probs, *args)
    grad = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    wanted = torch.autograd.grad(expected[0], log_probs, grad, retain_graph=True)[0]
    backward = (grad, log_probs.detach(), *args[:3], *(e.detach() for e in expected), *args[3:])
    with jax.enable_x64(True):
        as_jax = lambda values: [to_jax(v) if isinstance(v, torch.Tensor) else v for v in values]
        got = lower(torch.ops.aten._ctc_loss.default, as_jax((log_probs, *args)), {}, specs_of(expected))
        got_grad = lower(
            torch.ops.aten._ctc_loss_backward.default,
            [*as_jax(backward[:6]), got[1], *backward[7:]],
            {},
            specs_of(wanted),
        )
        torch.testing.assert_close(to_torch(got[0]), expected[0].detach())
        torch.testing.assert_close(to_torch(got_grad[0]), wanted, equal_nan=True)
