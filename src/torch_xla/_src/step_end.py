"""What happens at the end of a step beside the launch: the metrics file, and remarks on the metrics if asked for."""

from __future__ import annotations

import os
import sys

from torch_xla._src import environment
from torch_xla._src.runtime import metrics, metrics_report

_steps = 0
_TOO_FREQUENT = 0.5  # times a step
_FIRST_STEPS = 10  # in which programs are compiled in any case
_SLOW_COMPILE, _SLOW_RUN = 300.0, 30.0  # seconds


def finish() -> None:
    """Called by every sync."""
    global _steps
    _steps += 1
    if "XLA_METRICS_FILE" in os.environ:
        save_metrics(None)
    if "PT_XLA_DEBUG" in os.environ and environment.flag("PT_XLA_DEBUG"):
        remark()


def save_metrics(path: str | None) -> None:
    """Appends `[MetricsData; step=N]` and the report to a file (`XLA_METRICS_FILE` by default), STDERR or STDOUT."""
    path = path or os.environ.get("XLA_METRICS_FILE")
    if not path:
        return
    report = metrics_report.report(metrics.all_metrics(), metrics.all_counters())
    text = f"[MetricsData; step={_steps}]\n{report}\n"
    if path in ("STDERR", "STDOUT"):
        (sys.stderr if path == "STDERR" else sys.stdout).write(text)
        return
    with open(path, "a") as file:
        file.write(text)


def remarks() -> list[str]:
    """What the metrics say about this program, a line each, as PyTorch/XLA words it."""
    found = []
    samples, counters = metrics.all_metrics(), metrics.all_counters()
    steps = counters.get("MarkStep", 0)
    for name, from_step in (("CompileTime", _FIRST_STEPS), ("TransferFromDeviceTime", 0)):
        count = samples[name].count if name in samples else 0
        if steps > from_step and count > _TOO_FREQUENT * steps:
            found.append(f"{name} too frequent: {count} counts during {steps} steps")
    for name, limit in (("CompileTime", _SLOW_COMPILE), ("ExecuteTime", _SLOW_RUN)):
        longest = max((value for _, value in samples[name].samples), default=0.0) if name in samples else 0.0
        if longest > limit * 1e9:
            shown = metrics_report.format_time(longest)
            found.append(
                f"{name} too slow: longest instance took {shown}. Please open a GitHub issue with the graph dump for our "
                "team to optimize."
            )
    fallbacks = [n for n in counters if n.startswith(metrics_report.FALLBACKS) and n != "aten::_local_scalar_dense"]
    if fallbacks:
        found.append(
            f"Op(s) not lowered: {', '.join(fallbacks)},  Please open a GitHub issue with the above op lowering requests."
        )
    return found


def remark() -> None:
    """Writes the remarks to `PT_XLA_DEBUG_FILE` or standard error."""
    from torch_xla._src.compile.analysis import write  # loaded only on request

    for line in remarks():
        write(f"pt-xla-profiler: {line}\n")
