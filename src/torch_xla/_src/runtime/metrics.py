"""Counters and metrics, cheap enough to be always on. Names and units are those of PyTorch/XLA."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_SAMPLES = 1024  # kept per metric, as PyTorch/XLA's XLA_METRICS_SAMPLES


@dataclass(slots=True)
class Metric:
    """Samples of a quantity; `total` and `count` cover all, `samples` the last ones as (unix seconds, value)."""

    count: int = 0
    total: float = 0.0
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))


counters: dict[str, int] = {}
metrics: dict[str, Metric] = {}


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


def clear() -> None:
    """Forgets all counters and metrics."""
    counters.clear()
    metrics.clear()
