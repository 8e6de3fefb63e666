"""The examples run, agree with the CPU, compile a bounded number of programs and replay the rest. `make demo` shows more."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
# Settings that keep a run to seconds, and how many programs it may compile: the first step, which makes the optimizer's
# state; the steps after it; digits has a smaller last batch; the evaluation; chargpt writes its sample.
QUICK = {
    "digits": (["--epochs=2", "--width=8"], 4),
    "chargpt": (["--steps=12", "--width=32", "--num_layers=1", "--batch_size=8", "--context=16", "--sample_length=5"], 4),
}


def run(example: str, device: str, folder: Path) -> dict[str, Any]:
    """The record of a quick run in a process of its own, warnings being errors there too."""
    record = folder / f"{example}_{device}.json"
    command = [sys.executable, "-W", "error::UserWarning", str(FOLDER / f"{example}.py")]
    command += [f"--device={device}", f"--record={record}", *QUICK[example][0]]
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


# One worker of pytest-xdist runs all of these (with --dist loadgroup); otherwise each would train for itself.
pytestmark = pytest.mark.xdist_group("examples")


@pytest.mark.parametrize("example", QUICK)
def test_xla_agrees_with_cpu(results: dict[tuple[str, str], dict[str, Any]], demo: ModuleType, example: str) -> None:
    xla, cpu = results[example, "xla"], results[example, "cpu"]
    assert demo.parity(xla["losses"], cpu["losses"]) < 1e-3
    assert xla["scores"]["test_loss"] == pytest.approx(cpu["scores"]["test_loss"], rel=1e-2)
    assert xla["losses"][-1] < xla["losses"][0]


@pytest.mark.parametrize("example", QUICK)
def test_steps_replay(results: dict[tuple[str, str], dict[str, Any]], example: str) -> None:
    xla = results[example, "xla"]
    assert xla["programs"] <= QUICK[example][1]
    assert xla["replayed_steps"] >= len(xla["losses"]) - 3


def test_table_and_curves(results: dict[tuple[str, str], dict[str, Any]], demo: ModuleType, tmp_path: Path) -> None:
    demo.draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(demo.table(results).rows) == 4
