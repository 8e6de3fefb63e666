"""What is done with each row of a recording when its program is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from torch_xla._src.graph import contents
from torch_xla._src.graph.value import Ref, Row
from torch_xla._src.ops.recompute import BEGIN, END


def refs_in(templates: Any) -> list[int]:
    """The outputs (>= 0) and leaves that (nested) argument templates refer to."""
    found: list[int] = []
    for t in templates:
        if type(t) is Ref:
            found.append(t)
        elif type(t) is tuple:
            found += refs_in(t)
    return found


class Use(Enum):
    """What is done with a row of a recording. CHECK: nobody needs its results, but what it is given is checked."""

    RUN = "run"
    CHECK = "check"
    SKIP = "skip"


def uses(rows: Sequence[Row], live: Iterable[int]) -> list[Use]:
    """For each row, whether a live output depends on it, or else a check."""
    wanted = set(live)
    found = [Use.SKIP] * len(rows)
    runs = [False]  # for each recomputation that the row is in, whether any of its rows is run: Note [Recomputation]
    for position in range(len(rows) - 1, -1, -1):
        row = rows[position]
        if row.op is END:
            runs.append(False)
        elif row.op is BEGIN:
            if not runs[-1]:
                runs = runs[:-1] or [False]
                continue
            runs = [*runs[:-2], True] if len(runs) > 1 else runs
            found[position] = Use.RUN
        elif any(number in wanted for number in range(row.base, row.base + len(row.outs))):
            found[position] = Use.RUN
            runs[-1] = True
        elif row.checked and contents.checks_of(row.op) is not None:
            found[position] = Use.CHECK
        else:
            continue
        wanted.update(refs_in((row.args, row.kwargs)))
    return found


class Region(NamedTuple):
    """A recomputation: positions of its first and last marker, the outputs and leaves that it reads from outside, and whether
    it draws random numbers.
    """

    begin: int
    end: int
    reads: tuple[int, ...]
    draws: bool


def regions(rows: Sequence[Row], uses: Sequence[Use]) -> list[Region]:
    """The recomputations that are run, in the order in which they begin.

    A recording that was cut within one ends with it; the rest, in the next recording, is none.
    """
    found: list[Region] = []
    for begin, (row, use) in enumerate(zip(rows, uses, strict=True)):
        if row.op is BEGIN and use is Use.RUN:
            end = _end(rows, begin)
            inside = [row for row, use in zip(rows[begin + 1 : end], uses[begin + 1 : end]) if use is Use.RUN]
            found.append(Region(begin, end, _reads(inside, row.base), any(r.random for r in inside)))
    return found


def _end(rows: Sequence[Row], begin: int) -> int:
    depth = 0
    for position in range(begin, len(rows)):
        depth += (rows[position].op is BEGIN) - (rows[position].op is END)
        if not depth:
            return position
    return len(rows)


def _reads(inside: Sequence[Row], first: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ref for row in inside for ref in refs_in((row.args, row.kwargs)) if ref < first))
