"""Which compiled programs are kept: the last `XLA_COMPILATION_CACHE_SIZE` (2048) that ran.

Programs hang on the rows of the tree of recordings. Dropping one also drops the rows that lead to no other, so a process
that keeps meeting new shapes holds a bounded number of rows and programs.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

from torch_xla._src.compile.program import Program
from torch_xla._src.graph.value import Row

_used: OrderedDict[tuple[int, Any], Row] = OrderedDict()  # least recently used first


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
    row.programs[key] = program
    _used[(id(row), key)] = row
    while len(_used) > capacity():
        (_, old_key), old_row = _used.popitem(last=False)
        old_row.programs.pop(old_key, None)
        _prune(old_row, keep=row)


def size() -> int:
    """The number of programs kept."""
    return len(_used)


def _prune(row: Row, keep: Row) -> None:
    """Takes rows that lead to no program out of the tree, from `row` up."""
    while row.parent is not None and row is not keep and not row.programs and not row.children:
        if row in row.parent.children:
            row.parent.children.remove(row)
        row = row.parent
