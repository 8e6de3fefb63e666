"""Times this package against PyTorch eager and compiled, hand-written JAX and PyTorch/XLA 2.9, side by side.

    python -m benchmarks [--models mlp20,gpt] [--optimizers sgd,adamw] [--repeats 30] [--out build/benchmarks]

Each contender runs in a process of its own; they take turns, a few steps at a time, so that what else the machine does
hits all of them. Medians with quartiles, in milliseconds: *host* until Python has returned from the step, *step* until
its results are ready. *First step* is that of a process with an empty disk cache, *second process* that of another one
after it. *frozen* is this package with the step given to `torch_xla.compile(full_graph=True)`. PyTorch/XLA 2.9 takes part if
BENCH_TORCH_XLA29_PYTHON names an interpreter that has it.
Writes results.json, results.md and results.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.models import CASES

OLD = "xla-2.9"
_ROOT = Path(__file__).parent.parent


class Process:
    """A contender's process. See benchmarks/worker.py."""

    def __init__(self, contender: str, model: str, optimizer: str, cache: Path) -> None:
        python = os.environ["BENCH_TORCH_XLA29_PYTHON"] if contender == OLD else sys.executable
        environment = os.environ | {
            "PJRT_DEVICE": "CPU",
            "XLA_PERSISTENT_CACHE_PATH": str(cache / "xla"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            # That of PyTorch/XLA 2.9 must not find this package in place of its own.
            "PYTHONPATH": str(_ROOT) if contender == OLD else f"{_ROOT / 'src'}{os.pathsep}{_ROOT}",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages come with their bytecode
        command = [python, "-m", "benchmarks.worker", contender, model, optimizer]
        with open(cache / "log", "a") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=cache,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended: {' '.join(map(str, self.process.args))}")
        return json.loads(line)

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def contenders() -> list[str]:
    """Those that can run here."""
    return [
        "torch_xla",
        "frozen",
        "jax",
        "eager",
        "inductor",
        *([OLD] if os.environ.get("BENCH_TORCH_XLA29_PYTHON") else []),
    ]


def compare(names: list[str], model: str, optimizer: str, repeats: int) -> dict[str, Any]:
    """Everything measured of one model, by contender; `error` for one that could not run."""
    results: dict[str, Any] = {}
    running: dict[str, Process] = {}
    with tempfile.TemporaryDirectory(prefix="benchmarks_", ignore_cleanup_errors=True) as folder:
        for name in names:
            cache = Path(folder, name)
            cache.mkdir()
            try:
                first = Process(name, model, optimizer, cache)
                results[name] = {"first": first.ask("step 1")["step"][0], "host": [], "step": []}
                first.close()
                running[name] = second = Process(name, model, optimizer, cache)
                results[name]["second process"] = second.ask("step 1")["step"][0]
                second.ask("step 6")  # steps are frozen after the third
            except RuntimeError as error:
                running.pop(name, None)
                log = (cache / "log").read_text().strip().splitlines()
                results[name] = {"error": f"{error}: {log[-1] if log else ''}"}
        for _ in range(repeats):
            for name, process in running.items():
                for kind, times in process.ask("step 2").items():
                    results[name][kind] += times
        for name, process in running.items():
            results[name] |= process.ask("facts")
            process.close()
    return results


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Medians and quartiles in place of the single times."""
    short = {}
    for name, result in results.items():
        short[name] = dict(result)
        for kind in ("host", "step"):
            if times := result.get(kind):
                low, median, high = statistics.quantiles(times, n=4)
                short[name][kind] = {"median": median, "low": low, "high": high}
    return short


def table(measured: dict[str, dict[str, Any]]) -> str:
    """The results in Markdown; ratios are those of step times to torch_xla's contender."""
    lines = [
        "| model, optimizer | contender | host, ms | step, ms (quartiles) | torch_xla / this | first step | second process "
        "| programs | peak, MiB | loss |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, results in measured.items():
        ours = results.get("torch_xla", {}).get("step", {}).get("median")
        for name, r in results.items():
            if "error" in r:
                lines.append(f"| {title} | {name} | {r['error'][:60]} | | | | | | | |")
                continue
            step = r["step"]
            ratio = f"{ours / step['median']:.2f}" if ours else ""
            lines.append(
                f"| {title} | {name} | {r['host']['median']:.2f} | {step['median']:.2f} ({step['low']:.2f}-{step['high']:.2f}) "
                f"| {ratio} | {r['first'] / 1e3:.2f} s | {r['second process'] / 1e3:.2f} s | {r['programs'] or ''} "
                f"| {r['peak_mib']:.0f} | {r['loss']:.5f} |"
            )
    return "\n".join(lines) + "\n"


def chart(measured: dict[str, dict[str, Any]], path: Path) -> None:
    """Step times relative to torch_xla, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [n for n in contenders() if n != "torch_xla"]
    figure, axes = plt.subplots(figsize=(max(6.0, 1.4 * len(measured)), 4))
    for position, name in enumerate(names):
        heights = [
            r[name]["step"]["median"] / r["torch_xla"]["step"]["median"]
            if "error" not in r.get(name, {"error": ""}) and "error" not in r["torch_xla"]
            else 0.0
            for r in measured.values()
        ]
        places = [i + (position - len(names) / 2 + 0.5) * 0.8 / len(names) for i in range(len(measured))]
        axes.bar(places, heights, 0.8 / len(names), label=name)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_xticks(range(len(measured)), list(measured), rotation=30, ha="right")
    axes.set_ylabel("time of a step, torch_xla = 1")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--optimizers", default="sgd,adamw")
    parser.add_argument("--contenders", default=",".join(contenders()))
    parser.add_argument("--repeats", type=int, default=20, help="turns of two steps (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    measured: dict[str, dict[str, Any]] = {}
    for model in options.models.split(","):
        for optimizer in options.optimizers.split(",") if CASES[model].trains else ["sgd"]:
            title = f"{model}, {optimizer}" if CASES[model].trains else model
            measured[title] = summary(compare(options.contenders.split(","), model, optimizer, options.repeats))
            print(table({title: measured[title]}), flush=True)
            (options.out / "results.json").write_text(json.dumps(measured, indent=1))
            (options.out / "results.md").write_text(table(measured))
    chart(measured, options.out / "results.png")


if __name__ == "__main__":
    main()
