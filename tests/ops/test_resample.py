"""Interpolation and grid sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo

aten = torch.ops.aten
NAMES = [
    "nn.functional.interpolate",
    "nn.functional.upsample_bilinear",
    "nn.functional.upsample_nearest",
    "_upsample_bilinear2d_aa",
    "nn.functional.grid_sample",
    "grid_sampler_2d",
]
FEW = {"nn.functional.upsample_bilinear", "nn.functional.interpolate", "nn.functional.upsample_nearest"}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {
    (
        "nn.functional.interpolate.bicubic",
        "uint8",
    ): "the CPU kernel has 16-bit fixed-point weights: some values differ by 1 or 2"
}
ENTRIES = [op for op in op_db if op.name in NAMES]


def run(op: Any, dtype: torch.dtype, backward: bool) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("no such CPU kernel")
    failures = check_opinfo(op, dtype, samples=2, backward=backward)
    reason = EXPECTED.get((op.full_name, str(dtype).removeprefix("torch.")))
    assert not failures if reason is None else failures, failures or f"passes now: {reason}"


@pytest.mark.parametrize("op", ENTRIES, ids=lambda op: op.full_name)
def test_float32(op: Any) -> None:
    run(op, torch.float32, backward=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", [o for o in ENTRIES if o.name in FEW], ids=lambda op: op.full_name)
def test_other_dtypes(op: Any, dtype: torch.dtype) -> None:
    run(op, dtype, backward=False)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "up sf": lambda: F.interpolate(torch.randn(1, 2, 7, 5), scale_factor=1.7, mode="bilinear"),
    "up3 cubic": lambda: F.interpolate(torch.randn(1, 2, 7, 5), scale_factor=3, mode="bicubic"),
    "up 2 bil": lambda: F.interpolate(torch.randn(1, 2, 7, 5), scale_factor=2, mode="bilinear"),
    "down cub aa": lambda: F.interpolate(torch.randn(1, 2, 17, 15), size=(5, 6), mode="bicubic", antialias=True),
    "lanczos": lambda: aten._upsample_lanczos2d_aa(torch.randn(1, 2, 17, 15), [5, 6], False),
    "up inf": lambda: F.interpolate(torch.tensor([[[1.0, float("inf"), 2, 3]]]), scale_factor=2, mode="linear"),
    "up empty": lambda: F.interpolate(torch.randn(0, 2, 7, 5), scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    torch.manual_seed(0)
    mode = CheckLowerings()
    with mode:
        CASES[case]()
    assert not mode.failures, mode.failures
