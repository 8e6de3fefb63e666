"""Ordering: NaN of either sign, ties, empty lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries

aten = torch.ops.aten
NAMES = ["sort", "argsort", "topk", "kthvalue", "msort", "median", "nanmedian", "mode"]
FEW = {"median", "sort", "mode", "msort"}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {
    ("sort", "bool"): "the CPU sort of 8000 elements with ties is not stable, ours is",
    ("sort", "bfloat16"): "the CPU sort of 8000 elements with ties is not stable, ours is",
    ("msort", "bool"): "the CPU sort of 8000 elements with ties is not stable, ours is",
    ("msort", "bfloat16"): "the CPU sort of 8000 elements with ties is not stable, ours is",
}


@pytest.mark.parametrize(
    ("op", "dtype"), entries(NAMES, torch.float32) + entries(FEW, torch.int64, torch.bool, torch.bfloat16)
)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, EXPECTED)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "sort nan": lambda: torch.sort(
        torch.tensor([3.0, float("nan"), -0.0, 0.0, -float("inf"), -float("nan"), 1.0]), stable=True
    ),
    "sort nan desc": lambda: torch.sort(
        torch.tensor([3.0, float("nan"), -0.0, 0.0, -float("inf"), -float("nan"), 1.0]), stable=True, descending=True
    ),
    "topk nan": lambda: torch.topk(torch.tensor([3.0, float("nan"), 2.0, float("inf"), -float("inf"), 1.0]), 3),
    "topk small nan": lambda: torch.topk(
        torch.tensor([3.0, float("nan"), 2.0, float("inf"), -float("inf"), 1.0]), 6, largest=False
    ),
    "topk f64": lambda: torch.topk(
        torch.tensor([3.0, float("nan"), 2.0, float("inf"), -float("inf"), 1.0]).double(), 6, largest=False
    ),
    "topk i64": lambda: torch.topk(torch.tensor([3, -(2**63), 2**63 - 1, 0]), 4, largest=False),
    "topk u8": lambda: torch.topk(torch.tensor([3, 255, 0], dtype=torch.uint8), 2, largest=False),
    "topk bf16": lambda: torch.topk(torch.randn(3, 50).bfloat16(), 1),
    "topk 0d": lambda: torch.topk(torch.tensor(3.0), 1),
    "topk k0": lambda: torch.topk(torch.randn(4, 3), 0),
    "kth nan": lambda: torch.kthvalue(torch.tensor([3.0, float("nan"), 2.0]), 3),
    "median nan": lambda: torch.median(torch.tensor([[3.0, float("nan"), 2.0, float("nan")], [1, 4, 3, 2]]), 1),
    "nanmedian": lambda: torch.nanmedian(torch.tensor([[3.0, float("nan"), 2.0, float("nan")], [1, 4, 3, 2]]), 1),
    "median empty": lambda: torch.median(torch.zeros(0)),
    "median 0d": lambda: torch.median(torch.tensor(1.0), 0),
    "mode": lambda: torch.mode(torch.tensor([[3, 1, 1, 3, 2], [5, 4, 4, 5, 5]])),
    "sort empty": lambda: torch.sort(torch.zeros(0, 3)),
    "sort 0d": lambda: torch.sort(torch.tensor(3.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    agrees(CASES[case], rtol=None, atol=None)
