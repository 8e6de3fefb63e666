"""Tensors made from numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten
NAMES = [
    "arange",
    "linspace",
    "logspace",
    "full",
    "zeros",
    "ones",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
    "fill",
    "zero_",
    "scalar_tensor",
    "eye",
    "triu_indices",
    "tril_indices",
]
FEW = {"eye", "zeros_like", "arange", "fill", "logspace", "full", "linspace"}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {}
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


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("op", [o for o in ENTRIES if o.name in FEW], ids=lambda op: op.full_name)
def test_other_dtypes(op: Any, dtype: torch.dtype) -> None:
    run(op, dtype, backward=False)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "arange f": lambda: torch.arange(0.1, 5, 0.3),
    "arange bf": lambda: torch.arange(0, 300, 1, dtype=torch.bfloat16),
    "arange neg": lambda: torch.arange(5, -7, -3),
    "arange big": lambda: torch.arange(2**40, 2**40 + 5),
    "linspace int": lambda: torch.linspace(-3, 11, 6, dtype=torch.int64),
    "linspace 1": lambda: torch.linspace(-3, 11, 1),
    "logspace": lambda: torch.logspace(0, 4, 5, 2.0, dtype=torch.int32),
    "hann": lambda: torch.hann_window(7),
    "hamm": lambda: torch.hamming_window(8, False, 0.5, 0.4),
    "blk": lambda: torch.blackman_window(9, dtype=torch.float64),
    "bart": lambda: torch.bartlett_window(6, False),
    "kais": lambda: torch.kaiser_window(9, True, 5.0),
    "kais1": lambda: torch.kaiser_window(9, False),
    "eye": lambda: torch.eye(3, 5, dtype=torch.bool),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    torch.manual_seed(0)
    mode = CheckLowerings()
    with mode:
        CASES[case]()
    assert not mode.failures, mode.failures


def test_scalar_slots() -> None:
    """Numbers that have become inputs of the program: 0-d weakly typed arrays under jit."""
    for op, args, number in SLOTS:
        expected = op(*args, number)
        with jax.enable_x64(True):
            arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
            compiled = jax.jit(lambda n, op=op, arrays=arrays, e=expected: lower(op, [*arrays, n], {}, specs_of(e)))
            (out,) = compiled(number)
        torch.testing.assert_close(to_torch(out), expected)


SLOTS = [
    (aten.full.default, ([2, 3],), 2.5),
    (aten.full_like.default, (torch.arange(3),), -2.5),
    (aten.fill.Scalar, (torch.ones(2, dtype=torch.bfloat16),), 3),
    (aten.scalar_tensor.default, (), 4.0),
    (aten.arange.start_step, (1, 8), 2),
    (aten.arange.start_step, (0.5, 8), 0.25),
]
