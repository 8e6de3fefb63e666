"""How often each op has been recorded: `xla::OP` counters, derived from the recordings that were cut when somebody asks.

Counting each op as it is recorded would cost more than a tenth of recording it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import metrics

_KEPT = 64  # recordings whose counts have not been added up; each keeps its rows from being dropped
_cuts: dict[Row, int] = {}  # by last row, how often the recording was cut
_totals: Counter[str] = Counter()


def recorded(last: Row, times: int = 1) -> None:
    """Counts a recording, by its last row."""
    _cuts[last] = _cuts.get(last, 0) + times
    if len(_cuts) > _KEPT:
        _add_up()


def _add_up() -> None:
    for last, times in list(_cuts.items()):
        del _cuts[last]
        _count(last, times, _totals)


def _count(last: Row, times: int, totals: Counter[str]) -> None:
    row = last
    while row.parent is not None:
        totals[f"xla::{row.op._schema.name.partition('::')[2]}"] += times
        totals["CreateXlaTensor"] += times * len(row.outs)
        row = row.parent


def attach(recorder: Any) -> None:
    """Derives the counters of a recorder: ops, and the rows that were reused and made anew."""

    def totals() -> dict[str, int]:
        with recorder.lock:
            _add_up()
            found = Counter(_totals)
            _count(recorder.node, 1, found)
        return dict(found) | {"RowsReplayed": recorder.replayed, "RowsRebuilt": recorder.rebuilt}

    metrics.derived.append(totals)
