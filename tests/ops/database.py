"""Entries of PyTorch's operator database as test cases for lowerings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of


def entries(names: Iterable[str], *dtypes: torch.dtype) -> list[Any]:
    """Parameters (op, dtype) for the op_db entries of these names, in the dtypes that the CPU has a kernel for."""
    wanted = set(names)
    return [
        pytest.param(op, dtype, id=f"{op.full_name}-{str(dtype).removeprefix('torch.')}")
        for op in op_db
        if op.name in wanted
        for dtype in dtypes
        if dtype in op.supported_dtypes("cpu")
    ]


def assert_agrees(
    op: Any,
    dtype: torch.dtype,
    expected_failures: Mapping[tuple[str, str], str] | None = None,
    backward: bool | None = None,
    samples: int = 2,
    wide: torch.dtype | None = None,
    compiled: bool = False,
) -> None:
    """The first samples of an entry give, lowered, what the CPU gives; in float32 (or if `backward`) gradients too.

    wide: where the CPU rounds more than we do, the dtype that it computes the reference in; the bounds stay those of `dtype`.
    compiled: see CheckLowerings.
    expected_failures: (name, dtype) -> reason; such an entry must fail.
    """
    backward = dtype is torch.float32 if backward is None else backward
    failures = check_opinfo(op, dtype, samples=samples, backward=backward, wide=wide, compiled=compiled)
    reason = (expected_failures or {}).get((op.full_name, str(dtype).removeprefix("torch.")))
    if reason is None:
        assert not failures
    else:
        assert failures, f"passes now: {reason}"


def agrees(
    fn: Callable[..., Any], *args: Any, rtol: float | None = 1e-4, atol: float | None = 1e-4, **kwargs: Any
) -> None:
    """Every aten call that `fn` makes gives, lowered, what the CPU gives."""
    with CheckLowerings(rtol=rtol, atol=atol) as mode:
        fn(*args, **kwargs)
    assert not mode.failures


def assert_slot_agrees(op: Any, args: Sequence[Any], number: float) -> None:
    """`op(*args, number)` with the number an input of the program: a 0-d weakly typed array under jit."""
    expected = op(*args, number)
    with jax.enable_x64(True):
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        (out,) = jax.jit(lambda n: lower(op, [*arrays, n], {}, specs_of(expected)))(number)
    torch.testing.assert_close(to_torch(out), expected)
