"""What a training step costs the host, counted, not timed: Python calls, rows, meta kernels, programs, cuts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.compile import donation
from torch_xla._src.graph.recorder import RECORDER

LAYERS = 4
# Calls of Python functions of this package on the caller's thread in one step; the backward pass runs on another thread.
CALLS = {"sgd": 360, "adamw": 470}
FROZEN_CALLS = 115 + 2 * LAYERS  # a new Value for each gradient; nothing else goes by tensors
PARAMETERS = 4 * LAYERS * (8 * 8 + 8)  # bytes
# Parameters and what the optimizer keeps for them; Adam counts steps, too, in float32.
STATE = {"sgd": 2 * PARAMETERS, "adamw": 3 * PARAMETERS + 4 * 2 * LAYERS}
ROWS = {"sgd": 2 * LAYERS + 11, "adamw": 2 * LAYERS + 16}  # linear: one forward, one backward
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}


def _calls(run: Callable[[], None]) -> int:
    """How often Python functions of the package are entered on this thread."""
    count = 0

    def notice(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event == "call" and "torch_xla" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename:
            count += 1

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def _facts() -> tuple[int, ...]:
    counted = [int(met.counter_value(name) or 0) for name in ("UncachedCompile", "MetaKernelCalls")]
    return RECORDER.replayed, RECORDER.rebuilt, RECORDER.num_cuts, *counted


def _cost(name: str, frozen: bool) -> dict[str, int]:
    """What one step adds to each count: a replayed one, or a frozen one. donated: bytes that its program takes over."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).to("xla")
    optimizer, x = OPTIMIZERS[name](model.parameters()), torch.randn(4, 8).to("xla")

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    step = torch_xla.compile(step, full_graph=True) if frozen else step
    for _ in range(6):
        step()
    before = _facts()
    calls = _calls(step)
    counts = (after - old for after, old in zip(_facts(), before))
    donated = sum(math.prod(x.spec.shape) * x.spec.dtype.itemsize for x in donation.leaves() if x.donated)
    names = "replayed", "rebuilt", "cuts", "programs", "meta"
    return dict(zip(names, counts)) | {"calls": calls, "donated": donated}


@pytest.fixture(scope="module")
def costs() -> Any:
    """By optimizer; from a process of its own, since a check that failed in an earlier test costs calls."""
    command = [sys.executable, "-m", "tests.test_host_cost"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_replayed_step(name: str, costs: Any) -> None:
    cost = costs[name]
    assert cost["donated"] == STATE[name]
    assert (cost["rebuilt"], cost["programs"], cost["meta"], cost["cuts"]) == (0, 0, 0, 1)
    assert cost["replayed"] <= ROWS[name]
    assert cost["calls"] <= CALLS[name], "a step calls more functions than it did: profile it, or say why it has to"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_step(name: str, costs: Any) -> None:
    cost = costs[f"frozen {name}"]
    assert cost["donated"] == STATE[name]
    assert [cost[n] for n in ("replayed", "rebuilt", "programs", "meta", "cuts")] == [0, 0, 0, 0, 1]
    assert cost["calls"] <= FROZEN_CALLS, "a frozen step calls more functions than it did"


if __name__ == "__main__":
    found = {name: _cost(name, frozen=False) for name in OPTIMIZERS}
    print(json.dumps(found | {f"frozen {name}": _cost(name, frozen=True) for name in OPTIMIZERS}))
