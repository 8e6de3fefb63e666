"""Names of PyTorch/XLA's `torch_xla.debug.metrics_compare_utils`: reads metrics reports, and compares one with earlier ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch_xla._src import surface

_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?(?:([\d.]+)us)?")
_SIZE = re.compile(r"([\d.]+)(B|KB|MB|GB|TB|PB)")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 1e-3, 1e-6)  # seconds
_SIZES = {unit: 1024.0**i for i, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))}
_DEFAULT = {"base_expression": "v <= v_mean + (v_stddev * 2.0)"}


def _number(text: str) -> tuple[float, str]:
    """The number that a text of the report means, and the unit it is given in: "_sec", "_mb" (10**6 bytes) or none."""
    text = text.strip()
    if match := _SIZE.fullmatch(text):
        return float(match[1]) * _SIZES[match[2]] / 1e6, "_mb"
    match = _TIME.fullmatch(text)
    if match and any(match.groups()):
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part), "_sec"
    return float(text), ""


def _fields(report: str) -> Iterator[tuple[str, str]]:
    """(NAME__FIELD, text) for each number of the report but the rates."""
    name = ""
    for line in report.splitlines():
        key, _, value = line.strip().partition(": ")
        if key in ("Metric", "Counter"):
            name = value.strip()
        elif key == "Percentiles":
            for part in value.split(";"):
                percent, _, amount = part.strip().partition("%=")
                yield f"{name}__Percentile_{percent}", amount
        elif key in ("TotalSamples", "Accumulator", "Value"):
            yield f"{name}__{key}", value


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """The numbers of a report by NAME__FIELD, such as `CompileTime__Percentile_50_sec` and `MarkStep__Value`.

    Times are in seconds and end in `_sec`, sizes in 10**6 bytes and end in `_mb`, counters are integers. dehumanize=False:
    pairs of the number and the text, for metrics.
    """
    found: dict[str, Any] = {}
    for name, text in _fields(report):
        if name.endswith("__Value"):
            found[name] = int(text)
            continue
        number, unit = _number(text)
        found[name + unit] = number if dehumanize else (number, text.strip())
    return found


def get_data_points_from_metrics_reports(metrics_reports: Iterable[str]) -> dict[str, list[Any]]:
    """The values of each field over several reports, by NAME__FIELD."""
    found: dict[str, list[Any]] = {}
    for report in metrics_reports:
        for name, value in parse_metrics_report(report).items():
            found.setdefault(name, []).append(value)
    return found


def compare_metrics(
    data_points: Mapping[str, list[Any]], metrics_report: str, config: Mapping[str, Any] | None = None
) -> str:
    """A line for each field of a report that is not as `get_data_points_from_metrics_reports` of earlier ones says.

    config: "base_expression", a Python condition on `v` (the value), `v_mean` and `v_stddev`, holds for all fields;
    "NAME__FIELD_expression" for one. An empty string if all conditions hold.
    """
    config = _DEFAULT if config is None else config
    lines = []
    for name, value in parse_metrics_report(metrics_report).items():
        earlier = data_points.get(name)
        expression = config.get(f"{name}_expression", config.get("base_expression"))
        if not earlier or expression is None:
            continue
        mean = sum(earlier) / len(earlier)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in earlier) / len(earlier))
        names = {"v": value, "v_mean": mean, "v_stddev": deviation}
        if not eval(expression, {"__builtins__": {"abs": abs, "min": min, "max": max}}, names):
            lines.append(
                f"{name} failed its expression check. Expression: {expression}.  Mean: {mean}.  Stddev: {deviation}.  "
                f"Actual Value: {value}\n"
            )
    return "".join(lines)


__getattr__ = surface.missing(__name__)
