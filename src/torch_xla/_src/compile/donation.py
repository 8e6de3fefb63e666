"""Which buffers a launch consumed, and why not the others. See Note [Donation] in graph/recorder.py.

Note [Buffer donors]
A user may declare a tensor a donor: the next launch that reads it may consume its buffer although the tensor is there
still. It does if an output of the same shape and dtype can take it; then every later use of the tensor raises.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_xla._src.graph.value import Row, Spec, Value, ValueRef

if TYPE_CHECKING:
    from torch_xla._src.compile.launch import Launch
    from torch_xla._src.compile.program import Program

_ELSEWHERE = "its jax.Array is held elsewhere"
_donors: weakref.WeakSet[Value] = weakref.WeakSet()
_honoured = True
_last: _Launched | None = None


class _Launched(NamedTuple):
    """What is remembered of the last launch. unheld: leaves without a Value; dead: those whose buffer nobody held either."""

    node: Row
    leaf_values: Sequence[ValueRef]
    unheld: list[int]
    dead: tuple[int, ...]
    program: Program


class Leaf(NamedTuple):
    """One input of a program.

    spec: shape and dtype. donated: whether its buffer was consumed. reason: why not; empty if it was.
    op, line: the first op that reads it, and the user's line. value: what the tensor that holds it holds, if there is one.
    """

    spec: Spec
    donated: bool
    reason: str
    op: str
    line: str
    value: Value | None


def set_donor(value: Value, donor: bool) -> None:
    """Declares what a tensor holds a donor, or not: Note [Buffer donors]."""
    (_donors.add if donor else _donors.discard)(value)


def is_donor(value: Value) -> bool:
    """Whether it has been declared one."""
    return value in _donors


def honour_donors(enabled: bool) -> bool:
    """Whether launches take notice of declared donors; they do at first. Returns what it was."""
    global _honoured
    before, _honoured = _honoured, enabled
    return before


def are_declared() -> bool:
    """Whether there are donors that launches take notice of."""
    return bool(_donors) and _honoured


def unheld(leaf_values: Sequence[ValueRef]) -> list[int]:
    """The leaves whose Value has died or is a donor."""
    if _donors and _honoured:
        return [i for i, ref in enumerate(leaf_values) if (value := ref()) is None or value in _donors]
    return [i for i, ref in enumerate(leaf_values) if ref() is None]


def remember(launch: Launch, unheld: list[int], dead: tuple[int, ...], program: Program) -> None:
    """Notes a launch, for `leaves`."""
    global _last
    _last = _Launched(launch.node, launch.leaf_values, unheld, dead, program)


def end_donors(leaf_values: Sequence[ValueRef], program: Program) -> None:
    """Takes the buffers that a launch has consumed from the tensors that were their donors."""
    if not _donors:
        return
    for i in program.donated:
        if (value := leaf_values[i]()) is not None:
            value.buffer = None
            value.error = RuntimeError(
                "this tensor's buffer was donated to a program, as set_buffer_donation had allowed: it holds nothing now"
            )
            _donors.discard(value)


def leaves() -> list[Leaf]:
    """The inputs of the last launch, in the order in which they are read. RuntimeError if nothing has been launched."""
    if _last is None:
        raise RuntimeError("nothing has been launched on device xla yet")
    node, values, gone, dead, program = _last
    found = []
    for row in node.path():
        for number, spec in enumerate(row.leaves, row.leaf_base):
            donated = number in program.donated
            reason = "" if donated else _reason(number, gone, dead)
            found.append(Leaf(spec, donated, reason, str(row.op), row.line, values[number]()))
    return found


def _reason(number: int, gone: list[int], dead: tuple[int, ...]) -> str:
    if number not in gone:
        return "a tensor holds it, and was not written to"
    if number not in dead:
        return _ELSEWHERE
    return "no output of this shape and dtype is left to take it"


def aliased_bytes() -> int:
    """Bytes of inputs that the last program writes outputs into, by the compiler's own account."""
    assert _last is not None
    plan: Any = _last.program.executable.memory_analysis()
    return 0 if plan is None else int(plan.alias_size_in_bytes)


def report(names: Mapping[Value, str]) -> str:
    """`leaves` as a table. names: of the tensors that hold these."""
    rows = [("leaf", "shape", "dtype", "bytes", "donated", "why not", "tensor", "first read by")]
    found = leaves()
    for number, leaf in enumerate(found):
        shape, dtype = str(list(leaf.spec.shape)), str(leaf.spec.dtype).removeprefix("torch.")
        name = "" if leaf.value is None else names.get(leaf.value, "")
        where = f"{leaf.op} at {leaf.line or 'an unknown line'}"
        rows.append((str(number), shape, dtype, f"{_bytes(leaf):,}", str(leaf.donated), leaf.reason, name, where))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    donated = sum(_bytes(leaf) for leaf in found if leaf.donated)
    total = sum(map(_bytes, found))
    lines.append(
        f"{donated:,} of {total:,} bytes donated; the compiler writes {aliased_bytes():,} bytes of outputs over inputs"
    )
    return "\n".join(lines)


def _bytes(leaf: Leaf) -> int:
    return math.prod(leaf.spec.shape) * leaf.spec.dtype.itemsize


def check(names: Mapping[Value, str]) -> None:
    """AssertionError, with the table, if an input that no tensor holds was not consumed since somebody has its jax.Array."""
    kept = [str(number) for number, leaf in enumerate(leaves()) if leaf.reason == _ELSEWHERE]
    if kept:
        raise AssertionError(f"not donated in the last program: leaf {', '.join(kept)}\n{report(names)}")
