"""Names of PyTorch/XLA's `torch_xla.test.test_utils`, which its sample training scripts use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch_xla.debug.metrics as met
from torch_xla._src import surface
from torch_xla.core import xla_model as xm


def now(format: str = "%H:%M:%S") -> str:
    """The time of day."""
    return time.strftime(format)


def get_summary_writer(logdir: Any) -> Any:
    """A writer of TensorBoard summaries on the first process, else None; None too without `logdir`."""
    if not logdir or not xm.is_master_ordinal():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def close_summary_writer(summary_writer: Any) -> None:
    """Flushes and closes a writer, if there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Adds scalars at a step, and with `write_xla_metrics` counters and the medians of metrics, if there is a writer."""
    if summary_writer is None:
        return
    scalars: dict[str, float] = dict(dict_to_write or {})
    if write_xla_metrics:
        scalars |= {f"counters/{name}": float(met.counter_value(name) or 0) for name in met.counter_names()}
        for name in met.metric_names():
            data = met.metric_data(name)
            if data is not None:
                values = sorted(value for _, value in data[2])
                scalars[f"metrics/{name}"] = values[len(values) // 2]
    for name, value in scalars.items():
        summary_writer.add_scalar(name, value, global_step)


def _line(kind: str, device: Any, fields: Mapping[str, Any]) -> str:
    parts = [f"| {kind} Device={device}/{xm.get_local_ordinal()}"]
    parts += [f"{name}={value}" for name, value in fields.items() if value is not None]
    return " ".join([*parts, f"Time={now()}"])


def print_training_update(
    device: Any,
    step: int,
    loss: float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Prints a line of progress, and adds loss and rates to the summaries."""
    fields = {
        "Epoch": epoch, "Step": step, "Loss": f"{float(loss):.5f}", "Rate": f"{rate:.2f}", "GlobalRate": f"{global_rate:.2f}",
    }  # fmt: skip
    print(_line("Training", device, fields), flush=True)
    scalars = {"examples/sec": rate, "average_examples/sec": global_rate, "loss": float(loss)}
    write_to_summary(summary_writer, step, scalars)


def print_test_update(device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None) -> None:
    """Prints a line of progress."""
    shown = None if accuracy is None else f"{float(accuracy):.2f}"
    print(_line("Test", device, {"Epoch": epoch, "Step": step, "Accuracy": shown}), flush=True)


__getattr__ = surface.missing(__name__)
