"""PyTorch's databases of operators, modules and optimizers, as entries that make calls."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_device_type import tol, toleranceOverride
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.opinfo.core import DecorateInfo, ForeachFuncInfo

from tests.conformance import expected
from tests.conformance.calls import (
    Call,
    Forward,
    InPlace,
    Module,
    Optimize,
    Out,
    Raises,
    Shown,
    plainly,
    pointed_to,
    processed,
)
from tests.conformance.moving import OnHost
from tests.conformance.outcome import Tolerance

# The columns of the table. "errors" is no dtype: inputs that the CPU refuses choose their own.
DTYPES = ("float32", "float64", "int64", "int32", "bool", "bfloat16", "float16", "complex64", "errors")
GRADIENTS = {"float32"}
CASTS = {"float32": ("float64", "int64"), "int64": ("float32",)}  # dtypes of out= beside the result's own
VARIANTS = ("forward", "gradient", "inplace", "out", "cast", "errors")

# Tests of PyTorch that compare two computations of the same numbers: their tolerances are meant for us.
_COMPARING_TESTS = {
    None,
    "test_compare_cpu",
    "test_out",
    "test_variant_consistency_eager",
    "test_noncontiguous_samples",
}


def seed() -> None:
    """The same random numbers for each call."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@dataclass(frozen=True)
class Samples:
    """Which samples of an operator are compared.

    number: the first so many, all if 0. reference: those of the tests against NumPy, forward only; they are many (empty
    and non-contiguous tensors, broadcasting, infinities, NaN, very large and very small numbers).
    """

    number: int = 3
    reference: bool = False


class Entry:
    """One line of the table."""

    name: str
    kind: str
    dtypes: tuple[str, ...]

    def calls(self, dtype: str, samples: Samples) -> list[Call]:
        """What is compared for this dtype."""
        raise NotImplementedError

    def tolerance(self, dtype: str, variant: str) -> Tolerance:
        """What counts as equal."""
        rtol, atol, _ = expected.TOLERANCES.get((self.name, dtype, variant), (None, None, ""))
        return Tolerance(rtol, atol, self.name not in expected.RANDOM)


@dataclass
class Operator(Entry):
    """An OpInfo."""

    op: Any

    def __post_init__(self) -> None:
        self.name = self.op.full_name
        self.kind = "foreach" if isinstance(self.op, ForeachFuncInfo) else "operator"
        supported = self.op.supported_dtypes("cpu")
        dtypes = [d for d in DTYPES if d != "errors" and getattr(torch, d) in supported]
        self.dtypes = tuple(dtypes + (["errors"] if self.op.error_inputs_func is not None else []))

    def calls(self, dtype: str, samples: Samples) -> list[Call]:
        seed()
        if dtype == "errors":
            inputs = _some(self.op.error_inputs("cpu"), Samples(0))
            return [Raises(i, e.sample_input, op=self.op) for i, e in enumerate(inputs)]
        kind = getattr(torch, dtype)
        grad = dtype in GRADIENTS and self.op.supports_autograd and kind in self.op.supported_backward_dtypes("cpu")
        if samples.reference:
            grad, inputs = False, self.op.reference_inputs("cpu", kind)
        else:
            options = {"num_input_tensors": [3]} if self.kind == "foreach" else {}
            inputs = self.op.sample_inputs("cpu", kind, requires_grad=grad, **options)
        calls = [
            call for i, sample in enumerate(_some(inputs, samples)) for call in self._calls(i, sample, dtype, grad)
        ]
        return [call for call in calls if type(call) is Forward] if samples.reference else calls

    def _calls(self, i: int, sample: Any, dtype: str, grad: bool) -> Iterable[Call]:
        op, inplace = self.op, self.op.get_inplace()
        if self.name in expected.ON_HOST:
            sample.args = OnHost(sample.args)
        shown: Shown = plainly
        if self.name in expected.NOT_UNIQUE:
            shown = processed
        elif self.name in expected.TIES:
            shown = pointed_to
        contents = not sample.kwargs.get("dropout_p")
        if self.op.op is not inplace:
            yield Forward(i, sample, op=op, grad=grad, shown=shown, contents=contents)
        if inplace is not None and not sample.broadcasts_input:
            yield InPlace(i, sample, op=inplace, grad=grad and self.op.supports_inplace_autograd)
        if self.op.supports_out and self.kind != "foreach" and "out" not in sample.kwargs:
            yield Out(i, sample, op=op, shown=shown)
            if i == 0:
                yield from (Out(i, sample, op=op, form=form, shown=shown) for form in ("empty", *CASTS.get(dtype, ())))

    def tolerance(self, dtype: str, variant: str) -> Tolerance:
        ours = super().tolerance(dtype, variant)
        if ours.rtol is not None or dtype == "errors":
            return ours
        found = list(_overrides(self.op, getattr(torch, dtype)))
        if variant == "cast":  # to float64 what was computed in float32, or the other way round
            found.append(tol(*reversed(default_tolerances(torch.float32))))
        if not found:
            return ours
        return Tolerance(max(t.rtol for t in found), max(t.atol for t in found), ours.contents)


def _some(items: Iterable[Any], samples: Samples) -> list[Any]:
    return list(itertools.islice(items, samples.number or None))


def _overrides(op: Any, dtype: torch.dtype) -> Iterable[Any]:
    for info in op.decorators:
        if not isinstance(info, DecorateInfo) or info.cls_name not in (None, "TestCommon"):
            continue
        if info.test_name not in _COMPARING_TESTS or info.device_type not in (None, "cpu"):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                yield decorator.d[dtype]


@dataclass
class ModuleEntry(Entry):
    """A ModuleInfo, in training and in eval mode."""

    info: Any
    kind: str = "module"

    def __post_init__(self) -> None:
        self.name = self.info.name
        self.dtypes = tuple(d for d in ("float32", "float64") if getattr(torch, d) in self.info.dtypes)

    def calls(self, dtype: str, samples: Samples) -> list[Call]:
        calls: list[Call] = []
        grad = dtype in GRADIENTS
        for training in (True, False) if self.info.train_and_eval_differ else (True,):
            seed()
            inputs = self.info.module_inputs_func(
                self.info, device="cpu", dtype=getattr(torch, dtype), requires_grad=grad, training=training
            )
            for i, sample in enumerate(_some(inputs, samples)):
                calls.append(Module(i, sample, cls=self.info.module_cls, training=training, grad=grad))
        return calls


@dataclass
class OptimizerEntry(Entry):
    """An OptimizerInfo: its configurations, and each of its implementations once."""

    info: Any
    kind: str = "optimizer"

    def __post_init__(self) -> None:
        self.name = f"optim.{self.info.name}"
        self.dtypes = ("float32",)

    def calls(self, dtype: str, samples: Samples) -> list[Call]:
        info = self.info
        inputs = info.optim_inputs_func(device="cpu")
        ways: list[dict[str, Any]] = [{}] + [
            {way: on} for way in info.supported_impls if way != "differentiable" for on in (True, False)
        ]
        if info.step_requires_closure:  # LBFGS: near the minimum, all that is left is rounding
            ways = [{"max_iter": 2, "history_size": 2}]
        return [
            Optimize(
                i, sample, cls=info.optim_cls, extra=way, sparse=info.only_supports_sparse_grads,
                needs_closure=info.step_requires_closure,
            )
            for way in ways
            for i, sample in enumerate(inputs if way is ways[0] else inputs[:1])
        ]  # fmt: skip


@cache
def entries() -> dict[str, Entry]:
    """All entries by name: op_db (which holds the unary, binary and reduction databases), foreach, modules, optimizers."""
    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    foreach = [op for kind in kinds for op in getattr(database, f"foreach_{kind}_op_db")]
    found: list[Entry] = [Operator(op) for op in [*database.op_db, *foreach]]
    found += [ModuleEntry(info) for info in module_db] + [OptimizerEntry(info) for info in optim_db]
    return {entry.name: entry for entry in found}
