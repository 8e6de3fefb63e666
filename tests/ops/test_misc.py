"""Ops of no larger family."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from tests.ops.harness import to_jax
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((6, 4), (3, 4, 5), lambda a, b, i, s: a[s] @ b[i]),
        ((4, 6), (6, 5), lambda a, b, i, s: a[:, s] @ b[s]),
        ((3, 4, 5), (5, 6), lambda a, b, i, s: a[i] @ b[:, s]),
    ],
    ids=["rows", "terms", "columns"],
)
def test_grouped_mm(left: Any, right: Any, expected: Any) -> None:
    """Groups of 1, 0 and 5; the CPU kernel asks for sizes that are multiples of 16 bytes, so it cannot be the judge."""
    torch.manual_seed(0)
    a, b, ends = torch.randn(left), torch.randn(right), [1, 1, 6]
    groups = [expected(a, b, i, slice(s, e)) for i, (s, e) in enumerate(zip([0, *ends], ends))]
    wanted = torch.stack(groups) if len(left) == len(right) == 2 else torch.cat(groups, 0 if len(left) == 2 else 1)
    with jax.enable_x64(True):
        offs = to_jax(torch.tensor(ends, dtype=torch.int32))
        got = lower(aten._grouped_mm.default, (to_jax(a), to_jax(b), offs), {}, specs_of(wanted))
        torch.testing.assert_close(torch.from_numpy(jax.device_get(got[0]).copy()), wanted)


def test_masked_scale() -> None:
    x = torch.randn(5)
    with jax.enable_x64(True):
        got = lower(aten._masked_scale.default, (to_jax(x), to_jax(x > 0), 2.0), {}, specs_of(x))
        torch.testing.assert_close(torch.from_numpy(jax.device_get(got[0]).copy()), x.relu() * 2)
