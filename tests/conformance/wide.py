"""Judges results in 16-bit floats where the CPU's own are not near what they should be.

Many CPU kernels round to 16 bits after each addition, others once at the end. Two such results may differ by more than
any tolerance for the dtype without either being wrong. What then counts is the same computation in float32: the device
must not be further from it than the CPU is, or than one rounding of the largest number.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.conformance.calls import Call
from tests.conformance.outcome import Facts, Outcome, Tolerance, attempt, difference, read

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def as_good(call: Call, dtype: str, variant: str, got: Outcome, want: Outcome, device: str) -> bool:
    """Whether the outcome on `device` is as near to the float32 computation as the CPU's outcome `want`."""
    if difference(got, want, Tolerance(contents=False), device):
        return False
    exact = attempt(lambda: _widened(call, NARROW[dtype]).prepare("cpu")()[variant])
    exact = read(exact.value) if exact.error is None else exact
    if exact.error is not None:
        return False
    triples = zip(*(pytree.tree_leaves(o.value) for o in (got, want, exact)), strict=True)
    return all(_near(g, w, e, torch.finfo(NARROW[dtype]).eps) for g, w, e in triples)


def _near(got: Any, want: Any, exact: Any, eps: float) -> bool:
    if not isinstance(want, Facts) or not want.host.is_floating_point():
        device = got.device if isinstance(got, Facts) else ""
        return difference(Outcome([got]), Outcome([want]), Tolerance(), device) is None
    if exact.host.shape != want.host.shape:
        return False
    truth = exact.host.double()
    finite = truth.isfinite()
    if not torch.equal(got.host.double()[~finite].nan_to_num(), truth[~finite].nan_to_num()):
        return False
    if not finite.any():
        return True
    off_by = [(x.host.double() - truth)[finite].abs().max().item() for x in (got, want)]
    return bool(off_by[0] <= max(off_by[1], eps * truth[finite].abs().max().item()))


def _widened(call: Call, dtype: torch.dtype) -> Call:
    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().to(torch.float32) if x.dtype == dtype else x
        return torch.float32 if x == dtype else x

    sample = copy.copy(call.sample)
    sample.input, sample.args, sample.kwargs = pytree.tree_map(widen, (sample.input, sample.args, sample.kwargs))
    return replace(call, sample=sample, cotangents={})
