"""Names of PyTorch/XLA's `torch_xla.debug.metrics_saver`."""

from __future__ import annotations

from torch_xla._src import step_end, surface


def save_metrics(metrics_file: str | None = None) -> None:
    """Appends the metrics report to a file, by default `XLA_METRICS_FILE`; STDERR and STDOUT stand for those streams."""
    step_end.save_metrics(metrics_file)


__getattr__ = surface.missing(__name__)
