"""What the examples share and what is not training: overriding defaults, the progress bar, the record of a run."""

from __future__ import annotations

import ast
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import torch_xla.debug.metrics as met

WARM_UP = 20  # steps left out of the median: they contain compilation on xla, first-touch allocation on both


def override(settings: dict[str, Any]) -> None:
    """Replaces the plain assignments at the top of an example by `--name=value` arguments of the command line."""
    for argument in sys.argv[1:]:
        name, _, text = argument.removeprefix("--").partition("=")
        if name not in settings:
            raise SystemExit(f"unknown setting {argument}; an example is: --device=cpu")
        settings[name] = text if isinstance(settings[name], str) else ast.literal_eval(text)


def counter(name: str) -> int:
    """A torch_xla counter; zero if it never moved."""
    return met.counter_value(name) or 0


class Run:
    """Follows a training run: shows a bar, keeps losses and step times, and writes all of it to a JSON file."""

    def __init__(self, name: str, device: str, num_steps: int) -> None:
        self.name, self.device = name, device
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.replayed_steps = 0  # steps for which the recorder made not one new row
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.progress = Progress(*columns, TextColumn("{task.fields[note]}"))
        self.bar = self.progress.add_task(f"{name} on {device}", total=num_steps, note="")
        self.progress.start()
        self._start = time.perf_counter()
        self._rebuilt = 0

    def step(self, loss: float) -> None:
        """Ends a step. It takes a float, so the device has computed the loss by now: times are honest."""
        now, rebuilt = time.perf_counter(), counter("RowsRebuilt")
        self.losses.append(loss)
        self.seconds.append(now - self._start)
        self.replayed_steps += self.device == "xla" and rebuilt == self._rebuilt
        self.progress.update(self.bar, advance=1, note=f"loss {loss:.3f}")
        self.resume()

    def resume(self) -> None:
        """Starts the clock of the next step: what happened since the last one (an evaluation) belongs to no step."""
        self._start, self._rebuilt = time.perf_counter(), counter("RowsRebuilt")

    def finish(self, record: str, **scores: float) -> None:
        """Ends the run; with a path in `record`, writes it there. scores: closing values by name."""
        self.progress.stop()
        print(f"{self.name} on {self.device}: " + ", ".join(f"{k} {v:.4f}" for k, v in scores.items()))
        if not record:
            return
        steady = self.seconds[WARM_UP:] or self.seconds
        result = {
            "name": self.name,
            "device": self.device,
            "scores": scores,
            "losses": self.losses,
            "step_seconds": statistics.median(steady),
            "programs": counter("UncachedCompile"),
            "replayed_steps": self.replayed_steps,
            "rows_replayed": counter("RowsReplayed"),
            "rows_rebuilt": counter("RowsRebuilt"),
            "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts in KiB
        }
        Path(record).write_text(json.dumps(result))
