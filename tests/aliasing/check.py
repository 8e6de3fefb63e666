"""Compares random programs on both devices.

python -m tests.aliasing.check --programs 10000 --processes 2     # part of `make conformance`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, strategies

from tests.aliasing.programs import NUMBERS, RUN, Instruction, Refused, run

_NUMBERS = strategies.tuples(*[strategies.integers(0, 11)] * NUMBERS)
PROGRAMS = strategies.lists(strategies.tuples(strategies.sampled_from(sorted(RUN)), _NUMBERS), min_size=3, max_size=16)


def assert_agrees(program: Sequence[Instruction]) -> None:
    """Everything that can be observed of a program is the same on the CPU and on device xla."""
    try:
        expected, actual = run("cpu", program), run("xla", program)
    except Refused:
        hypothesis.reject()
    for got, want in zip(actual, expected):
        assert got == want, f"\n xla: {got}\n CPU: {want}"
    assert len(actual) == len(expected)


def check(seed: int, programs: int) -> str | None:
    """Runs so many programs; the shortest one that differs, with the difference, or None."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=programs,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(PROGRAMS)
    def agrees(program: Any) -> None:
        assert_agrees(program)

    try:
        agrees()
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        return f"seed {seed}: {type(error).__name__}: {error}\n{notes}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seed", type=int, default=0, help="the first of as many seeds as there are hundreds of programs"
    )
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + -(-options.programs // 100))
    failed = 0
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for failure in pool.map(check, seeds, [100] * len(seeds)):
            if failure:
                failed += 1
                print(failure, flush=True)
    print(f"{len(seeds) * 100} programs, {failed} seeds of {len(seeds)} with a difference")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
