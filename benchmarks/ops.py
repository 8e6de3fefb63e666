"""Microseconds of host time for an op that has been recorded before, beside PyTorch/XLA 2.9 and torch eager.

    python -m benchmarks.ops [--rounds 15]

Time until Python has the result, on the caller's thread; what the device does is not in it, except for torch eager,
which computes at once (tensors are small). PyTorch/XLA 2.9 takes part if BENCH_TORCH_XLA29_PYTHON names an interpreter
that has it. Each contender runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

NUM_CALLS = 200  # of an op in a round, before the recording is cut


def _cases(device: str) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    x, y = torch.randn(8, 8).to(device), torch.randn(8, 8).to(device)
    weight, bias = torch.randn(8, 8).to(device).requires_grad_(), torch.randn(8).to(device).requires_grad_()
    many = [torch.randn(8, 8).to(device) for _ in range(40)]
    others = [torch.randn(8, 8).to(device) for _ in range(40)]
    scratch = torch.randn(8, 8).to(device)

    def forward_backward() -> Any:
        return torch.autograd.grad(F.linear(x, weight, bias), (weight, bias), x)

    return {
        "x + y": lambda: x + y,
        "x * 2.5": lambda: x * 2.5,
        "relu": x.relu,
        "matmul": lambda: x @ y,
        "softmax": lambda: x.softmax(-1),
        "layer_norm": lambda: F.layer_norm(x, (8,)),
        "transpose": lambda: x.transpose(0, 1),
        "slice": lambda: x[2:5],
        "x.add_(y)": lambda: scratch.add_(y),
        "linear": lambda: F.linear(x, weight, bias),
        "linear, forward and backward": forward_backward,
        "_foreach_add_ of 40": lambda: torch._foreach_add_(many, others),
    }


def _child(contender: str, rounds: int) -> None:
    wait: Callable[[], Any] = lambda: None
    device = "cpu"
    if contender != "eager":
        import torch_xla

        device, wait = str(torch_xla.device()), lambda: torch_xla.sync(wait=True)
    torch.set_num_threads(1)
    results = {}
    for name, run in _cases(device).items():
        calls = NUM_CALLS // 20 if "40" in name else NUM_CALLS
        times = []
        for _ in range(rounds + 3):
            kept = []
            start = time.perf_counter()
            for _ in range(calls):
                kept.append(run())
            times.append((time.perf_counter() - start) / calls * 1e6)
            del kept
            wait()
        results[name] = statistics.median(times[3:])
    print(json.dumps(results))


def _measure(contender: str, rounds: int) -> dict[str, float]:
    old = contender == "xla-2.9"
    python = os.environ["BENCH_TORCH_XLA29_PYTHON"] if old else sys.executable
    command = [python, "-m", "benchmarks.ops", "--contender", contender, "--rounds", str(rounds)]
    environment = os.environ | {"PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if done.returncode:
        raise RuntimeError(f"{contender}: {done.stderr.strip().splitlines()[-1:]}")
    results: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        _child(options.contender, options.rounds)
        return
    names = ["torch_xla", *(["xla-2.9"] if os.environ.get("BENCH_TORCH_XLA29_PYTHON") else []), "eager"]
    measured = {name: _measure(name, options.rounds) for name in names}
    print(f"| microseconds a call | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for case in measured["torch_xla"]:
        print(f"| {case} | {' | '.join(f'{measured[name][case]:.1f}' for name in names)} |")


if __name__ == "__main__":
    main()
