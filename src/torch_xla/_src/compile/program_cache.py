"""Which compiled programs are kept: the last `XLA_COMPILATION_CACHE_SIZE` (2048) that ran.

Programs hang on the rows of the tree of recordings. Dropping one also drops the rows that lead to no other, so a process
that keeps meeting new shapes holds a bounded number of rows and programs.

Note [Memory maps]
On CPU the code of a program takes some ten memory maps, and Linux gives a process 65,530 in all: XLA crashes when there are
none left. So the oldest programs go, whatever the number, once half of the maps are in use. XLA keeps the maps of a program
that has gone for others to come, so the next ones go when the number has risen again.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

from torch_xla._src.compile.program import Program
from torch_xla._src.graph.value import Row

_EVERY = 32  # programs: how often maps are counted, which takes milliseconds
_used: OrderedDict[tuple[int, Any], Row] = OrderedDict()  # least recently used first
_empty: OrderedDict[int, Row] = OrderedDict()  # the same for recordings of which nothing was alive when they were cut
_added = 0
_maps_in_use = 0  # when programs were last dropped for them


def capacity() -> int:
    """How many programs are kept."""
    return int(os.environ.get("XLA_COMPILATION_CACHE_SIZE", "2048"))


def find(row: Row, key: Any) -> Program | None:
    """The program for a recording that ends at `row`, if it is kept."""
    program = row.programs.get(key)
    if program is not None:
        _used.move_to_end((id(row), key))
    return program


def add(row: Row, key: Any, program: Program) -> None:
    """Keeps a new program, dropping the one that has not run for longest if there are too many."""
    global _added, _maps_in_use
    row.programs[key] = program
    _used[(id(row), key)] = row
    _added += 1
    kept = capacity()
    if _added % _EVERY == 0 and (maps := _num_maps()) > max(_max_maps() // 2, _maps_in_use + _max_maps() // 50):
        kept, _maps_in_use = min(kept, len(_used) * 3 // 4), maps
    while len(_used) > kept:
        (_, old_key), old_row = _used.popitem(last=False)
        old_row.programs.pop(old_key, None)
        _prune(old_row, keep=row)


def nothing_to_run(row: Row) -> None:
    """Keeps a recording that has no program, for which rows would be built each time otherwise."""
    _empty[id(row)] = row
    _empty.move_to_end(id(row))
    while len(_empty) > capacity():
        _, old_row = _empty.popitem(last=False)
        _prune(old_row, keep=row)


def size() -> int:
    """The number of programs kept."""
    return len(_used)


@cache
def _max_maps() -> int:
    """Memory maps that a process may have; 0 where there is no such limit."""
    limit = Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 0


def _num_maps() -> int:
    """Memory maps that this process has; 0 if nobody counts."""
    return Path("/proc/self/maps").read_bytes().count(b"\n") if _max_maps() else 0


def _prune(row: Row, keep: Row) -> None:
    """Takes rows that lead to no program out of the tree, from `row` up."""
    while row.parent is not None and row is not keep and not row.programs and not row.children:
        if row in row.parent.children:
            row.parent.children.remove(row)
        row = row.parent
