"""Results on disk, as JSON lines: a run that was interrupted continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance import expected

Task = tuple[str, str]


class Results:
    """What is known of each (entry, dtype); of several lines for one, the last counts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.jsonl"
        self.num_added = 0
        self.known: dict[Task, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                if line.endswith("}"):  # the last one may have been cut short
                    result = json.loads(line)
                    self.known[result["entry"], result["dtype"]] = result

    def clear(self) -> None:
        """Starts over."""
        self.known.clear()
        self.path.unlink(missing_ok=True)

    def add(self, result: dict[str, Any]) -> None:
        """Keeps one more result."""
        self.known[result["entry"], result["dtype"]] = result
        self.num_added += 1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")

    def forget(self, tasks: list[Task]) -> None:
        """These will be run again."""
        for task in tasks:
            del self.known[task]


def unexpected(result: dict[str, Any]) -> list[str]:
    """Lines on what failed without being expected to, on what was expected to fail and did not, and on aten ops that ran
    on the CPU without a reason, or because their lowering did not compile."""
    entry, dtype, failures = result["entry"], result["dtype"], result["failures"]
    lines = [
        f"FAIL {entry} {dtype} {variant}: {text}"
        for variant, texts in failures.items()
        if (entry, dtype, variant) not in expected.FAILURES
        for text in texts
    ]
    for variant in result["calls"]:
        reason = expected.FAILURES.get((entry, dtype, variant))
        if reason and variant not in failures:
            lines.append(f"PASS {entry} {dtype} {variant} agrees now; it was expected not to: {reason}")
    for op in result.get("fallback", []):
        if op not in expected.FALLBACKS:
            lines.append(f"FALLBACK {entry} {dtype}: {op} runs on the CPU")
    lines += [f"BROKEN {entry} {dtype}: {text}" for text in result.get("broken", [])]
    return lines
