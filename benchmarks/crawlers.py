"""Ops that used to crawl under XLA, against PyTorch on the CPU, at sizes that models use.

    python -m benchmarks.crawlers [--only REGEX] [--repeats 15]

Each case is timed forward, or forward and backward where it has a gradient, until the results are ready, in turn on
both devices. The table gives medians in milliseconds and their ratio; the exit status is 1 if one is above --limit.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import torch_xla

Case = Callable[[str], Callable[[], Any]]  # device -> a function that does the work once and returns what it gives
CASES: dict[str, Case] = {}


def case(fn: Case) -> Case:
    """Adds a case under the function's name."""
    CASES[fn.__name__] = fn
    return fn


def _with_gradient(fn: Callable[..., torch.Tensor], *shape: int) -> Case:
    """A case that differentiates `fn` of one tensor of this shape."""

    def build(device: str) -> Callable[[], Any]:
        x = torch.randn(shape).to(device).requires_grad_()

        def work() -> Any:
            x.grad = None
            fn(x).sum().backward()
            return x.grad

        return work

    return build


CASES["reflection_pad1d"] = _with_gradient(lambda x: F.pad(x, (512, 512), mode="reflect"), 16, 64, 4000)
CASES["upsample_nearest1d"] = _with_gradient(lambda x: F.interpolate(x, scale_factor=4, mode="nearest"), 16, 64, 1000)
CASES["adaptive_max_pool2d"] = _with_gradient(lambda x: F.adaptive_max_pool2d(x, 7), 16, 64, 56, 56)
CASES["adaptive_max_pool2d, uneven"] = _with_gradient(lambda x: F.adaptive_max_pool2d(x, (5, 6)), 16, 64, 56, 56)


@case
def weight_norm(device: str) -> Callable[[], Any]:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(256, 256, 7)).to(device)
    x = torch.randn(4, 256, 128).to(device)

    def work() -> Any:
        layer.zero_grad()
        layer(x).sum().backward()
        return [p.grad for p in layer.parameters()]

    return work


def _embedding_bag(mode: str) -> Case:
    def build(device: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        bag = torch.nn.EmbeddingBag(20_000, 64, mode=mode).to(device)
        indices = torch.randint(0, 20_000, (16_384,)).to(device)
        offsets = torch.arange(0, 16_384, 32).to(device)

        def work() -> Any:
            bag.zero_grad()
            bag(indices, offsets).sum().backward()
            return bag.weight.grad

        return work

    return build


for _mode in ("sum", "mean", "max"):
    CASES[f"embedding_bag, {_mode}"] = _embedding_bag(_mode)


def _forward(fn: Callable[..., Any], make: Callable[[], Any]) -> Case:
    def build(device: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        inputs = [t.to(device) for t in make()]
        return lambda: fn(*inputs)

    return build


def _mask() -> list[torch.Tensor]:
    return [torch.rand(1000, 1000) > 0.7]


CASES["nonzero"] = _forward(torch.nonzero, _mask)
CASES["boolean mask, read"] = _forward(lambda x, m: x[m], lambda: [torch.randn(1000, 1000), *_mask()])
CASES["boolean mask, rows"] = _forward(lambda x, m: x[m], lambda: [torch.randn(20_000, 64), torch.rand(20_000) > 0.5])
CASES["boolean mask, masked_select"] = _forward(torch.masked_select, lambda: [torch.randn(1000, 1000), *_mask()])
CASES["repeat_interleave, counts"] = _forward(
    # as many states of 256 numbers as a batch of sentences has phonemes, and the frames that each lasts (FastSpeech)
    lambda x, n: x.repeat_interleave(n, 0),
    lambda: [torch.randn(2_000, 256), torch.randint(0, 10, (2_000,))],
)
CASES["repeat_interleave, number"] = _with_gradient(lambda x: x.repeat_interleave(4, 1), 64, 256, 64)


@case
def boolean_mask_write(device: str) -> Callable[[], Any]:
    torch.manual_seed(0)
    x, mask = torch.randn(1000, 1000).to(device), _mask()[0].to(device)

    def work() -> Any:
        x[mask] = 0.5
        return x

    return work


def _ready(results: Any) -> None:
    torch_xla.sync(wait=True)
    del results


def measure(work: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each contender, interleaved, after warming up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 3):
        for name, fn in work.items():
            start = time.perf_counter()
            _ready(fn())
            if repeat >= 3:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--limit", type=float, default=3.0, help="greatest ratio that is good enough (default: 3)")
    options = parser.parse_args()
    slow = []
    print("| case | torch CPU, ms | xla, ms | ratio |\n| --- | ---: | ---: | ---: |")
    for name, build in CASES.items():
        if re.search(options.only, name):
            times = measure({device: build(device) for device in ("cpu", "xla")}, options.repeats)
            ratio = times["xla"] / times["cpu"]
            slow += [name] if ratio > options.limit else []
            print(f"| {name} | {times['cpu']:.2f} | {times['xla']:.2f} | {ratio:.2f} |", flush=True)
    print(f"\nabove {options.limit:g}: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
