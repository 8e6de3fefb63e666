"""Names of PyTorch/XLA's `torch_xla.debug.metrics`, usually imported as `met`: counters and metrics of this process.

Times are in nanoseconds, sizes in bytes. `xla::OP` counts how often an op was recorded, `aten::OP` how often it ran on
the CPU or read a value. Besides the names of PyTorch/XLA there are `RowsReplayed`, `RowsRebuilt` (rows of recordings
reused and made anew) and `MetaKernelCalls`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_xla._src import surface
from torch_xla._src.runtime import metrics as _metrics
from torch_xla._src.runtime import metrics_report as _report


def counter_names() -> list[str]:
    """Names of the counters that have moved since the last clear."""
    return list(_metrics.all_counters())


def counter_value(name: str) -> int | None:
    """A counter's value, or None if it has not moved since the last clear."""
    return _metrics.all_counters().get(name)


def metric_names() -> list[str]:
    """Names of the metrics that have samples."""
    return list(_metrics.all_metrics())


def metric_data(name: str) -> tuple[int, float, _metrics.Samples] | None:
    """(number of samples, their sum, the last of them as (unix seconds, value)), or None without samples."""
    metric = _metrics.all_metrics().get(name)
    return None if metric is None else (metric.count, metric.total, tuple(metric.samples))


def executed_fallback_ops() -> list[str]:
    """Names of the ops that ran on the CPU for want of a lowering, or that read a value."""
    return [name for name in _metrics.all_counters() if name.startswith(_report.FALLBACKS)]


def clear_counters() -> None:
    """Sets all counters to zero."""
    _metrics.clear_counters()


def clear_metrics() -> None:
    """Forgets the samples of all metrics."""
    _metrics.clear_metrics()


def clear_all() -> None:
    """Both."""
    clear_counters()
    clear_metrics()


def metrics_report() -> str:
    """All metrics and counters as text; an empty string if there are none."""
    return _report.report(_metrics.all_metrics(), _metrics.all_counters())


def short_metrics_report(counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None) -> str:
    """The metrics and counters that matter most, or the named ones, and all ops that ran on the CPU, as text."""
    return _report.short_report(_metrics.all_metrics(), _metrics.all_counters(), counter_names, metric_names)


__getattr__ = surface.missing(__name__)
