"""Runs both examples on device xla and on the CPU and compares them: `make demo`, or

    python examples/demo.py

Every run is a process of its own, so that its peak memory is its own too. Curves go to demo_output/curves.png.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")  # no display is needed to write a file
from matplotlib import pyplot

examples = ("digits", "chargpt")
devices = ("xla", "cpu")
parity_steps = 30  # the losses compared step by step: later, rounding differences have grown through training itself
folder = Path(__file__).parent
output = folder.parent / "demo_output"


def run(example: str, device: str) -> dict[str, Any]:
    """Trains one example on one device and returns its record."""
    record = output / f"{example}_{device}.json"
    command = [sys.executable, str(folder / f"{example}.py"), f"--device={device}", f"--record={record}"]
    subprocess.run(command, check=True)
    return json.loads(record.read_text())


def draw(results: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    """Training losses of both devices, one panel an example."""
    figure, panels = pyplot.subplots(1, len(examples), figsize=(5.5 * len(examples), 4), layout="constrained")
    for example, panel in zip(examples, panels, strict=True):
        for device, style in zip(devices, ({"linewidth": 3, "alpha": 0.5}, {"linewidth": 1, "color": "black"})):
            panel.plot(results[example, device]["losses"], label=device, **style)
        panel.set(title=example, xlabel="step", ylabel="training loss", yscale="log")
        panel.legend()
    figure.savefig(path, dpi=120)


def parity(first: list[float], second: list[float]) -> float:
    """The largest relative difference of the losses at the beginning."""
    return max(abs(a - b) / abs(b) for a, b in zip(first[:parity_steps], second[:parity_steps], strict=True))


def row(result: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The cells of one run; `other` is the run it is compared with."""
    steps, scores = len(result["losses"]), result["scores"]
    accuracy = f"{scores['test_accuracy']:.2%}" if "test_accuracy" in scores else "-"
    cells = [accuracy, f"{scores['test_loss']:.4f}", f"{1e3 * result['step_seconds']:.1f} ms"]
    if result["device"] == "xla":
        rows = result["rows_replayed"] + result["rows_rebuilt"]
        cells += [f"{parity(result['losses'], other['losses']):.0e}", str(result["programs"])]
        cells += [f"{result['replayed_steps']} of {steps}", f"{result['rows_replayed'] / rows:.1%}"]
    else:
        cells += ["-"] * 4
    return [*cells, f"{result['peak_rss'] / 2**20:.0f} MiB"]


def table(results: dict[tuple[str, str], dict[str, Any]]) -> Table:
    """All runs, one a line."""
    caption = (
        "Time per step: median after warm-up, data loading and reading the loss included. Difference: the largest "
        f"relative one between the training losses of both devices in the first {parity_steps} steps. Replayed: steps "
        "(and ops) for which nothing new had to be recorded. Peak memory: resident set, Python and libraries included."
    )
    closing = Table(title="The same loops, seeds and initial weights on xla and on the CPU", caption=caption)
    closing.add_column("example")
    closing.add_column("device")
    heads = "test accuracy", "test loss", "time per step", "difference", "programs", "steps replayed", "ops replayed"
    for head in (*heads, "peak memory"):
        closing.add_column(head, justify="right")
    for example in examples:
        for device, other in zip(devices, reversed(devices)):
            closing.add_row(example, device, *row(results[example, device], results[example, other]))
        closing.add_section()
    return closing


def main() -> None:
    start = time.perf_counter()
    output.mkdir(exist_ok=True)
    results = {(example, device): run(example, device) for example in examples for device in devices}
    draw(results, output / "curves.png")
    # Where nothing says how wide the terminal is (a log file), the table gets the width it needs.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 132)
    console.print(table(results))
    console.print(f"Loss curves: {output.name}/curves.png. All of it took {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
