"""Runs one entry in one dtype on both devices."""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch_xla
from tests.conformance.calls import Call, Forward, Shared
from tests.conformance.entries import Entry, Samples, seed
from tests.conformance.outcome import NOTHING_RAISED, Outcome, Tolerance, attempt, difference, read, stride_difference
from tests.conformance.served import Served
from tests.conformance.wide import NARROW, as_good

DEVICE = "xla"


@dataclass
class Result:
    """What came out for one entry and dtype. calls: how many were compared, failures: what differed, by variant. strides:
    results that lie in memory in another order, which is no failure: XLA lays out its results itself."""

    entry: str
    kind: str
    dtype: str
    calls: dict[str, int] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    served: str = "native"
    ops: list[str] = field(default_factory=list)
    decomposed: list[str] = field(default_factory=list)
    fallback: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    strides: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(entry: Entry, dtype: str, samples: Samples) -> Result:
    """Compares all calls of an entry. They are made together, so that one program is compiled for all of them; what
    then differs is repeated call by call, so that each is judged alone."""
    start = time.perf_counter()
    result = Result(entry.name, entry.kind, dtype)
    served = Served()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls, wanted = _on_cpu(entry.calls(dtype, samples))
    with served.watch_compilation():
        together = attempt(lambda: _together(calls, served))
        for position, (call, want) in enumerate(zip(calls, wanted, strict=True)):
            got = None if together.error else together.value[position]
            _judge(entry, result, call, want, got)
    if dtype != "errors":  # what the CPU refuses need not compile
        result.served, result.broken = served.worst, served.broken
    result.decomposed, result.fallback = sorted(served.decomposed), sorted(served.fallback)
    result.ops = sorted(served.ops)
    result.seconds = round(time.perf_counter() - start, 2)
    return result


def _on_cpu(calls: list[Call]) -> tuple[list[Call], list[dict[str, Outcome]]]:
    """The calls that the CPU can answer, and its answers. A sample that it refuses says nothing about us."""
    kept, wanted, refused = [], [], set()
    for call in calls:
        seed()
        work = attempt(partial(call.prepare, "cpu"))
        if work.error is not None or id(call.sample) in refused:
            continue
        outcomes = {variant: read(outcome) for variant, outcome in work.value().items()}
        if "forward" in outcomes and outcomes["forward"].error is not None:
            refused.add(id(call.sample))
        outcomes = {
            variant: outcome for variant, outcome in outcomes.items() if _says_something(variant, outcome.error)
        }
        if outcomes:
            kept.append(call)
            wanted.append(outcomes)
    return kept, wanted


def _says_something(variant: str, error: Exception | None) -> bool:
    """Whether the CPU's answer is one to agree with: it is not if it only has no kernel for the dtype."""
    if variant in ("inplace", "out", "cast"):
        return not isinstance(error, NotImplementedError)
    return (error is not None) == (variant == "errors")


def _together(calls: list[Call], served: Served) -> list[dict[str, Outcome]]:
    shared: Shared = {}  # so that XLA sees that variants of one op compute the same
    read_only = {id(call.sample) for call in calls if isinstance(call, Forward) and not call.writes}
    works = [call.prepare(DEVICE, shared if id(call.sample) in read_only else None) for call in calls]
    done = []
    for call, work in zip(calls, works, strict=True):
        seed()
        with served.watch() if call.watched else contextlib.nullcontext():
            done.append(work())
    return [{variant: read(outcome) for variant, outcome in outcomes.items()} for outcomes in done]


def _alone(call: Call, wanted: dict[str, Outcome]) -> dict[str, Outcome]:
    with contextlib.suppress(Exception):  # an error of what came before is no matter of this call
        torch_xla.sync()
    seed()
    done = attempt(lambda: call.prepare(DEVICE)())
    if done.error is not None:
        return {next(iter(wanted)): done}
    return {variant: read(outcome) for variant, outcome in done.value.items()}


def _judge(
    entry: Entry, result: Result, call: Call, wanted: dict[str, Outcome], got: dict[str, Outcome] | None
) -> None:
    def tolerance(variant: str) -> Tolerance:
        bounds = entry.tolerance(result.dtype, variant)
        return replace(bounds, contents=bounds.contents and call.contents)

    def differences(outcomes: dict[str, Outcome]) -> dict[str, str]:
        found = {v: difference(outcomes[v], wanted[v], tolerance(v), DEVICE) for v in outcomes}
        texts = {variant: text for variant, text in found.items() if text}
        if result.dtype not in NARROW:
            return texts
        return {v: t for v, t in texts.items() if not as_good(call, result.dtype, v, outcomes[v], wanted[v], DEVICE)}

    got = None if got is None else _asked(got, wanted)
    texts = {} if got is None else differences(got)
    if got is None or any(NOTHING_RAISED not in text for text in texts.values()):
        got = _asked(_alone(call, wanted), wanted)
        alone = differences(got)
        texts = alone or {variant: f"only in one program with other calls: {text}" for variant, text in texts.items()}
    for variant in got:
        result.calls[variant] = result.calls.get(variant, 0) + 1
    for variant, text in texts.items():
        result.failures.setdefault(variant, []).append(f"{call.describe()}: {text}")
    for variant in got.keys() - texts.keys() - {"errors"}:
        strides = stride_difference(got[variant], wanted[variant])
        if strides:
            result.strides.append(f"{variant}, {call.describe()}: {strides}")


def _asked(got: dict[str, Outcome], wanted: dict[str, Outcome]) -> dict[str, Outcome]:
    """What the CPU has an answer to. Gradients are not there if the op itself failed."""
    return {variant: got[variant] for variant in wanted if variant in got}
