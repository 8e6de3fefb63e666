"""What a call gave, brought to the host, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

NOTHING_RAISED = "nothing was raised"


@dataclass(frozen=True)
class Facts:
    """A tensor that a call gave: on the host, with what it said about itself on its device."""

    host: torch.Tensor
    device: str
    requires_grad: bool
    strides: tuple[int, ...] = ()  # of the dimensions in which there is anywhere to go

    @staticmethod
    def of(tensor: torch.Tensor) -> Facts:
        strides = () if tensor.layout is not torch.strided or not tensor.numel() else tensor.stride()
        moving = tuple(stride for size, stride in zip(tensor.shape, strides) if size > 1)
        return Facts(tensor.detach().cpu(), tensor.device.type, tensor.requires_grad, moving)

    def __str__(self) -> str:
        return f"{str(self.host.dtype).removeprefix('torch.')}{list(self.host.shape)}"


@dataclass(frozen=True)
class Outcome:
    """Either a value (nested) or the exception that was raised instead."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal. contents: compare numbers at all; None: torch.testing's own for the dtype."""

    rtol: float | None = None
    atol: float | None = None
    contents: bool = True


def attempt(fn: Callable[[], Any]) -> Outcome:
    """The outcome of `fn()`."""
    try:
        return Outcome(fn())
    except Exception as error:
        return Outcome(error=error)


def read(outcome: Outcome) -> Outcome:
    """The outcome with its tensors as Facts. What reading raises is what the call raised, late."""
    if outcome.error is not None:
        return outcome
    return attempt(lambda: pytree.tree_map(lambda x: Facts.of(x) if isinstance(x, torch.Tensor) else x, outcome.value))


def difference(got: Outcome, want: Outcome, tolerance: Tolerance, device: str) -> str | None:
    """What differs between the outcome on `device` and the CPU's, in words; None if nothing does."""
    if want.error is not None:
        expected = type(want.error).__name__
        if got.error is None:
            return f"{NOTHING_RAISED}, the CPU raises {expected}: {_short(want.error)}"
        if type(got.error) is not type(want.error):
            return f"raised {_named(got.error)}; the CPU raises {_named(want.error)}"
        return None
    if got.error is not None:
        return f"raised {_named(got.error)}"
    left, left_tree = pytree.tree_flatten(got.value)
    right, right_tree = pytree.tree_flatten(want.value)
    if left_tree != right_tree:
        return f"structure {left_tree} instead of {right_tree}"
    for position, (g, w) in enumerate(zip(left, right, strict=True)):
        text = _leaf_difference(g, w, tolerance, device)
        if text:
            return f"result {position}: {text}"
    return None


def stride_difference(got: Outcome, want: Outcome) -> str | None:
    """Which tensors of two equal outcomes lie differently in memory; None if none does."""
    pairs = zip(pytree.tree_leaves(got.value), pytree.tree_leaves(want.value))
    texts = [
        f"{w} has strides {g.strides} instead of {w.strides}"
        for g, w in pairs
        if isinstance(w, Facts) and isinstance(g, Facts) and g.strides != w.strides
    ]
    return "; ".join(texts) or None


def _leaf_difference(got: Any, want: Any, tolerance: Tolerance, device: str) -> str | None:
    if not isinstance(want, Facts):
        if isinstance(want, (float, complex)) and type(got) is type(want) and tolerance.contents:
            return _mismatch(torch.tensor(got), torch.tensor(want), tolerance)
        same = type(got) is type(want) and (got == want or got != got or not tolerance.contents)
        return None if same else f"{got!r} instead of {want!r}"
    if not isinstance(got, Facts):
        return f"{got!r} instead of a tensor"
    if str(got) != str(want):
        return f"{got} instead of {want}"
    if got.device != device:
        return f"on device {got.device}"
    if got.requires_grad != want.requires_grad:
        return f"requires_grad is {got.requires_grad}"
    return _mismatch(got.host, want.host, tolerance) if tolerance.contents else None


def _mismatch(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> str | None:
    bounds = {} if tolerance.rtol is None else {"rtol": tolerance.rtol, "atol": tolerance.atol}
    try:
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **bounds)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return "; ".join(lines) + _excerpt(got, want)
    return None


def _excerpt(got: torch.Tensor, want: torch.Tensor) -> str:
    """The numbers themselves, if they are few."""
    return f" ({got.tolist()} instead of {want.tolist()})" if 0 < want.numel() <= 8 else ""


def _named(error: Exception) -> str:
    cause = f" <- {type(error.__cause__).__name__}: {_short(error.__cause__)}" if error.__cause__ else ""
    return f"{type(error).__name__}: {_short(error)}{cause}"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
