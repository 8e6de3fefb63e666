"""segment_reduce and its gradient: empty segments, ties, NaN, zeros in products, an inner axis."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.database import agrees, assert_agrees, entries

NAN = float("nan")


@pytest.mark.parametrize(("op", "dtype"), entries(["_segment_reduce"], torch.float32, torch.bfloat16))
def test_database(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype)


CASES = {  # data, lengths, axis
    "empty segment, ties": ([1.0, 3.0, 3.0, 2.0, 0.0, 2.0, 0.0, 0.0, 5.0], [3, 0, 3, 3], 0),
    "NaN": ([1.0, NAN, 3.0, 2.0, 4.0, 2.0, NAN, NAN, 0.0], [3, 0, 3, 3], 0),
    "inner axis": (torch.arange(36.0).reshape(2, 6, 3).tolist(), [[1, 2, 3], [4, 0, 2]], 1),
    "rows": (torch.arange(24.0).reshape(6, 4).tolist(), [4, 1, 1], 0),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("by", "initial"), [("lengths", None), ("offsets", 2.5)])
@pytest.mark.parametrize("reduce", ["max", "min", "mean", "sum", "prod"])
def test_cases(reduce: str, by: str, initial: float | None, case: str) -> None:
    data, lengths, axis = CASES[case]
    bounds = torch.tensor(lengths)
    if by == "offsets":
        bounds = torch.nn.functional.pad(bounds.cumsum(-1), (1, 0))

    def run(x: torch.Tensor) -> None:
        y = torch.segment_reduce(x, reduce, axis=axis, initial=initial, **{by: bounds})
        y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape))

    agrees(run, torch.tensor(data, requires_grad=True), rtol=None, atol=None)
