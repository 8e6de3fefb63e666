"""The examples agree with the CPU, compile a bounded number of programs and replay the rest; code in documents runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_xla

FOLDER = Path(__file__).parents[1] / "examples"
# Settings that keep a run to seconds, and how many programs it may compile. Both: the first step, which makes the
# optimizer's state, the other steps, the evaluation. digits: a smaller last batch. chargpt: the first and every other
# character of its sample, since the first window was copied from the host and the others were computed.
QUICK = {
    "digits": ("epochs=2 width=8", 4),
    "chargpt": ("steps=12 width=32 num_layers=1 batch_size=8 context=16 sample_length=5", 5),
}


def run(example: str, device: str, folder: Path) -> dict[str, Any]:
    """The record of a quick run in a process of its own, warnings being errors there too."""
    record = folder / f"{example}_{device}.json"
    command = [sys.executable, "-W", "error::UserWarning", str(FOLDER / f"{example}.py")]
    command += [f"--device={device}", f"--record={record}", *(f"--{setting}" for setting in QUICK[example][0].split())]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(record.read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    for package in ("sklearn", "matplotlib", "rich"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("records")
    return {(example, device): run(example, device, folder) for example in QUICK for device in ("xla", "cpu")}


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", FOLDER / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# With pytest-xdist's --dist loadgroup, one worker runs all that share the records; else each would train for itself.
shares_records = pytest.mark.xdist_group("examples")


@shares_records
@pytest.mark.parametrize("example", QUICK)
def test_xla_agrees_with_cpu(results: dict[tuple[str, str], dict[str, Any]], demo: ModuleType, example: str) -> None:
    xla, cpu = results[example, "xla"], results[example, "cpu"]
    assert demo.parity(xla["losses"], cpu["losses"]) < 1e-3
    assert xla["scores"]["test_loss"] == pytest.approx(cpu["scores"]["test_loss"], rel=1e-2)
    assert xla["losses"][-1] < xla["losses"][0]


@shares_records
@pytest.mark.parametrize("example", QUICK)
def test_steps_replay(results: dict[tuple[str, str], dict[str, Any]], example: str) -> None:
    xla = results[example, "xla"]
    assert xla["programs"] <= QUICK[example][1]
    assert xla["replayed_steps"] >= len(xla["losses"]) - 3


@shares_records
def test_table_and_curves(results: dict[tuple[str, str], dict[str, Any]], demo: ModuleType, tmp_path: Path) -> None:
    demo.draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(demo.table(results).rows) == 4


def code_blocks() -> Iterator[Any]:
    """Every Python block of the documents that users and developers start from."""
    for document in (
        "README.md",
        "docs/pytorch_xla.md",
        "docs/dev/README.md",
        "docs/checkpointing.md",
        "docs/errors.md",
        "docs/loading.md",
        "docs/memory.md",
        "docs/frozen-steps.md",
        "docs/mixed_precision.md",
        "docs/profiling.md",
        "docs/see-the-program.md",
        "docs/time-report.md",
        "docs/varying-lengths.md",
        "docs/why-compiled.md",
    ):
        text = (FOLDER.parent / document).read_text()
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)):
            yield pytest.param(code, id=f"{document}-{number}")


@pytest.mark.parametrize("code", list(code_blocks()))
def test_code_in_documents_runs(
    code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "documentation"}
    error = re.search(r"^# raises ([\w.]+): (.*)$", code, re.MULTILINE)  # a glossary of errors: docs/errors.md
    if error is None:
        exec(compile(code, "documentation", "exec"), names)
        assert capsys.readouterr().err == ""
    else:
        with pytest.raises(eval(error[1], {"torch": torch, "torch_xla": torch_xla}), match=re.escape(error[2])):
            exec(compile(code, "documentation", "exec"), names)
