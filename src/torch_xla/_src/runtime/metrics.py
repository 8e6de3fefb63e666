"""Counters and metrics, cheap enough to be always on. Names and units are those of PyTorch/XLA.

What can be derived is not counted as it happens: a module that keeps totals of its own for other reasons adds a function
to `derived` that gives them, and the totals at the last clear are taken off.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Samples = tuple[tuple[float, float], ...]


def _samples_kept() -> int:
    text = os.environ.get("XLA_METRICS_SAMPLES", "")
    return int(text) if text.isdigit() and int(text) else 1024


@dataclass(slots=True)
class Metric:
    """Samples of a quantity; `total` and `count` cover all, `samples` the last ones as (unix seconds, value)."""

    count: int = 0
    total: float = 0.0
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_samples_kept()))


counters: dict[str, int] = {}
metrics: dict[str, Metric] = {}
derived: list[Callable[[], dict[str, int]]] = []  # totals since the process started, by counter
settle: list[Callable[[], None]] = []  # called before metrics are read, by those who sample from other threads
epoch = 0  # how often the metrics have been cleared
_at_clear: dict[str, int] = {}


def count(name: str, by: int = 1) -> None:
    """Adds to a counter."""
    counters[name] = counters.get(name, 0) + by


def sample(name: str, value: float) -> None:
    """Adds one sample to a metric; times are in nanoseconds, sizes in bytes."""
    metric = metrics.get(name)
    if metric is None:
        metric = metrics[name] = Metric()
    metric.count += 1
    metric.total += value
    metric.samples.append((time.time(), value))


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Samples the duration of the block."""
    start = time.perf_counter_ns()
    try:
        yield
    finally:
        sample(name, time.perf_counter_ns() - start)


def all_counters() -> dict[str, int]:
    """The counters that have moved since the last clear, by name."""
    found = dict(counters)
    for name, total in _derived().items():
        found[name] = found.get(name, 0) + total - _at_clear.get(name, 0)
    return {name: value for name, value in sorted(found.items()) if value}


def all_metrics() -> dict[str, Metric]:
    """The metrics that have samples, by name."""
    for function in settle:
        function()
    return dict(sorted(metrics.items()))


def _derived() -> dict[str, int]:
    totals: dict[str, int] = {}
    for function in derived:
        for name, total in function().items():
            totals[name] = totals.get(name, 0) + total
    return totals


def clear_counters() -> None:
    """Sets all counters to zero."""
    global _at_clear
    counters.clear()
    _at_clear = _derived()


def clear_metrics() -> None:
    """Forgets the samples of all metrics; programs that are still running leave none."""
    global epoch
    epoch += 1
    metrics.clear()
