"""Names of PyTorch/XLA's `torch_xla.debug.metrics`, usually imported as `met`: counters and metrics of this process.

Times are in nanoseconds, sizes in bytes. Besides the names of PyTorch/XLA there are `RowsReplayed`, `RowsRebuilt` (rows
of recordings reused and made anew) and `MetaKernelCalls`.
"""

from __future__ import annotations

from torch_xla._src.api import recorder
from torch_xla._src.runtime import metrics as _metrics

_START = {"RowsReplayed": 0, "RowsRebuilt": 0}


def _counters() -> dict[str, int]:
    current = recorder()
    rows = {} if current is None else {"RowsReplayed": current.replayed, "RowsRebuilt": current.rebuilt}
    counted = {name: value - _START[name] for name, value in rows.items()}
    return {name: value for name, value in sorted((_metrics.counters | counted).items()) if value}


def counter_names() -> list[str]:
    """Names of the counters that have moved since the last clear."""
    return list(_counters())


def counter_value(name: str) -> int | None:
    """A counter's value, or None if it has not moved since the last clear."""
    return _counters().get(name)


def metric_names() -> list[str]:
    """Names of the metrics that have samples."""
    return sorted(_metrics.metrics)


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """(number of samples, their sum, the last of them as (unix seconds, value)), or None without samples."""
    metric = _metrics.metrics.get(name)
    return None if metric is None else (metric.count, metric.total, tuple(metric.samples))


def executed_fallback_ops() -> list[str]:
    """Names of the ops that ran on the CPU for want of a lowering, or that read a value."""
    return [name for name in _counters() if name.startswith("aten::")]


def clear_counters() -> None:
    """Sets all counters to zero."""
    _metrics.counters.clear()
    if (current := recorder()) is not None:
        _START.update(RowsReplayed=current.replayed, RowsRebuilt=current.rebuilt)


def clear_metrics() -> None:
    """Forgets the samples of all metrics."""
    _metrics.metrics.clear()


def clear_all() -> None:
    """Both."""
    clear_counters()
    clear_metrics()


def metrics_report() -> str:
    """All metrics and counters as text."""
    lines = []
    for name in metric_names():
        metric = _metrics.metrics[name]
        lines += [f"Metric: {name}", f"  TotalSamples: {metric.count}", f"  Accumulator: {metric.total:.2f}"]
    for name, value in _counters().items():
        lines += [f"Counter: {name}", f"  Value: {value}"]
    return "\n".join(lines) + "\n" if lines else ""
