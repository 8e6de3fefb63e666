"""The metrics report as text, in the format of PyTorch/XLA: what `parse_metrics_report` and scripts read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from torch_xla._src.runtime.metrics import Metric, Samples

_BYTES = frozenset({"InboundData", "OutboundData"})
_NUMBERS = frozenset(
    {"InputOutputAliasCount", "TensorsGraphSize", "RunCachedGraphInputData", "RunCachedGraphOutputData"}
)
_PERCENTILES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)
SHORT_COUNTERS = ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime")
SHORT_METRICS = (
    "CompileTime", "ExecuteTime", "ExecuteReplicatedTime", "TransferToDeviceTime", "TransferFromDeviceTime",
)  # fmt: skip
FALLBACKS = ("aten::", "torchvision::")  # prefixes of counters of ops that ran on the CPU


def format_time(nanoseconds: float) -> str:
    """ "06m09s401ms746.001us": units from the largest that is not zero down to microseconds."""
    whole, rest = divmod(nanoseconds, 1e3)
    micros = int(whole)
    parts: list[str] = []
    for unit, size, width in (
        ("d", 86_400_000_000, 2), ("h", 3_600_000_000, 2), ("m", 60_000_000, 2), ("s", 1_000_000, 2), ("ms", 1_000, 3),
    ):  # fmt: skip
        number, micros = divmod(micros, size)
        if number or parts:
            parts.append(f"{number:0{width}d}{unit}")
    return "".join(parts) + f"{micros + rest / 1e3:07.3f}us"


def format_bytes(count: float) -> str:
    """ "36.00B", "1.50KB": in steps of 1024."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(count) < 1024:
            return f"{count:.2f}{unit}"
        count /= 1024
    return f"{count:.2f}PB"


def format_number(value: float) -> str:
    """A plain number with two decimals."""
    return f"{value:.2f}"


def _formatter(name: str) -> Callable[[float], str]:
    return format_bytes if name in _BYTES else format_number if name in _NUMBERS else format_time


def percentiles() -> tuple[float, ...]:
    """Which percentiles a report shows: `XLA_METRICS_PERCENTILES`, numbers between colons, or nine of them."""
    text = os.environ.get("XLA_METRICS_PERCENTILES", "")
    return tuple(float(part) for part in text.split(":") if part) if text else _PERCENTILES


def of_metric(name: str, metric: Metric) -> str:
    """The block of one metric. The rates are those of the samples that are kept."""
    show = _formatter(name)
    lines = [f"Metric: {name}", f"  TotalSamples: {metric.count}", f"  Accumulator: {show(metric.total)}"]
    samples: Samples = tuple(metric.samples)
    elapsed = samples[-1][0] - samples[0][0] if samples else 0.0
    if elapsed > 0:
        lines.append(f"  ValueRate: {show(sum(value for _, value in samples) / elapsed)} / second")
        lines.append(f"  Rate: {len(samples) / elapsed:.6g} / second")
    values = sorted(value for _, value in samples)
    shown = (f"{p * 100:.6g}%={show(values[min(int(p * len(values)), len(values) - 1)])}" for p in percentiles())
    lines.append(f"  Percentiles: {'; '.join(shown)}")
    return "\n".join(lines) + "\n"


def report(metrics: Mapping[str, Metric], counters: Mapping[str, int]) -> str:
    """All metrics, then all counters."""
    blocks = [of_metric(name, metric) for name, metric in metrics.items()]
    return "".join(blocks) + "".join(f"Counter: {name}\n  Value: {value}\n" for name, value in counters.items())


def short_report(
    metrics: Mapping[str, Metric],
    counters: Mapping[str, int],
    counter_names: Iterable[str] | None,
    metric_names: Iterable[str] | None,
) -> str:
    """The named ones (by default those that matter most) and all ops that ran on the CPU."""
    wanted = tuple(counter_names or SHORT_COUNTERS)
    chosen = {name: value for name, value in counters.items() if name in wanted or name.startswith(FALLBACKS)}
    return report({name: metrics[name] for name in metric_names or SHORT_METRICS if name in metrics}, chosen)
