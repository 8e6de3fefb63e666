"""A share of the conformance run (`make conformance`), another one each time the document is written; the document; and
the runner itself: that it sees what is wrong."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance import expected, workers
from tests.conformance.entries import Samples, entries
from tests.conformance.evaluate import evaluate
from tests.conformance.moving import moved
from tests.conformance.outcome import Facts, Outcome, Tolerance, difference
from tests.conformance.report import DOCUMENT, document, stale
from tests.conformance.results import Results, unexpected

SHARES = 80  # one of so many is run
TEXT = DOCUMENT.read_bytes() if DOCUMENT.exists() else b""
TASKS = [
    (name, dtype)
    for name, entry in entries().items()
    for dtype in entry.dtypes
    if zlib.crc32(f"{name} {dtype}".encode()) % SHARES == zlib.crc32(TEXT) % SHARES
]


@pytest.mark.parametrize(("name", "dtype"), TASKS)
def test_agrees_with_the_cpu(name: str, dtype: str) -> None:
    result = evaluate(entries()[name], dtype, Samples(2))
    assert not unexpected(result.json())


@pytest.mark.skipif(
    bool(TEXT) and f"PyTorch {torch.__version__.partition('+')[0]}." not in TEXT.decode(),
    reason="the document is about another release",
)
def test_document_is_current() -> None:
    assert not stale(TEXT.decode())


def _facts(values: Any, dtype: torch.dtype = torch.float32, device: str = "xla", grad: bool = False) -> Outcome:
    return Outcome([Facts(torch.tensor(values, dtype=dtype), device, grad)])


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (_facts([1.0, 2.0]), _facts([1.0, 2.1]), "Expected|not close"),
        (_facts([1.0]), _facts([float("nan")]), "not close"),
        (_facts([1.0]), _facts([1.0], torch.float64), "float32.* instead of float64"),
        (_facts([1.0]), _facts([[1.0]]), r"float32\[1\] instead of float32\[1, 1\]"),
        (_facts([1.0], device="cpu"), _facts([1.0]), "on device cpu"),
        (_facts([1.0]), _facts([1.0], grad=True), "requires_grad is False"),
        (Outcome([1]), Outcome([2]), "1 instead of 2"),
        (Outcome([1]), Outcome((1,)), "structure"),
        (Outcome(error=IndexError("a")), _facts([1.0]), "raised IndexError"),
        (
            Outcome(error=IndexError("a")),
            Outcome(error=RuntimeError("b")),
            "IndexError: a; the CPU raises RuntimeError: b",
        ),
        (_facts([1.0]), Outcome(error=RuntimeError("b")), "nothing was raised"),
    ],
)
def test_differences_are_seen(got: Outcome, want: Outcome, said: str) -> None:
    text = difference(got, want, Tolerance(), "xla")
    assert text is not None
    assert re.search(said, text)
    assert difference(want, want, Tolerance(), "xla") is None


def test_an_expected_failure_has_to_fail() -> None:
    entry, dtype, variant = next(iter(expected.FAILURES))
    result = {"entry": entry, "dtype": dtype, "calls": {variant: 1}, "failures": {variant: ["differs"]}}
    assert unexpected(result) == []
    assert "agrees now" in unexpected(result | {"failures": {}})[0]
    assert "FAIL" in unexpected(result | {"entry": "another"})[0]


def test_results_survive_an_interrupted_run(tmp_path: Path) -> None:
    Results(tmp_path).add({"entry": "add", "dtype": "int64"})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"entry": "sub", "dty')  # the process was killed here
    assert set(Results(tmp_path).known) == {("add", "int64")}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.arange(12.0).reshape(3, 4)[:, 1:3],
        lambda: torch.arange(3.0).expand(2, 3),
        lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
        lambda: torch.arange(6.0).reshape(2, 1, 3).transpose(0, 2),
    ],
)
def test_samples_keep_their_strides(make: Any) -> None:
    there = moved([make()], "xla")[0]
    assert there.stride() == make().stride()
    assert torch.equal(there.cpu(), make())


def test_the_document_shows_what_is_unexpected() -> None:
    known = {(name, dtype): _agreeing(name, dtype) for name, entry in entries().items() for dtype in entry.dtypes}
    text = document(known)
    assert stale(text) == []
    known["add", "int64"]["failures"] = {"inplace": ["differs"]}
    assert stale(document(known)) == ["add in int64 is '?i' in the document and should be '+'"]


def _agreeing(name: str, dtype: str) -> dict[str, Any]:
    failures = {variant: ["differs"] for n, d, variant in expected.FAILURES if (n, d) == (name, dtype)}
    return {"entry": name, "dtype": dtype, "calls": {"forward": 1}, "failures": failures}


def test_a_process_that_dies_is_a_failure_of_its_task_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "tests" / "conformance" / "workers.py"  # answers, but for one task that ends it
    fake.parent.mkdir(parents=True)
    fake.write_text(
        "import json, os, sys\n"
        "answers = os.fdopen(int(sys.argv[1]), 'w', buffering=1)\n"
        "print('{}', file=answers)\n"
        "for line in sys.stdin:\n"
        "    entry, dtype = json.loads(line)\n"
        "    if entry == 'aborts': os.abort()\n"
        "    print(json.dumps({'entry': entry, 'dtype': dtype, 'failures': {}, 'full': False}), file=answers)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    results: list[dict[str, Any]] = []
    workers.run([("a", "int64"), ("aborts", "int64"), ("b", "int64")], ["3"], 1, 60, results.append)
    assert [r["entry"] for r in results] == ["a", "aborts", "b"]
    assert [bool(r["failures"]) for r in results] == [False, True, False]
