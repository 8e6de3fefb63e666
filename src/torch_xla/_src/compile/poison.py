"""What becomes of tensors that were computed from an index out of range, or the like.

Note [Failed checks]
A program that checks what its rows are given (Note [Checks of contents]) returns a vector that says which checks failed.
Waiting for it at each launch would leave the device idle, so a launch is remembered until somebody looks at the vector:
whoever reads a tensor that this launch computed, or waits for the device, and else the first cut after it is there.
Launches are looked at in order. If a check has failed,

* each tensor of the launch that depends on the row at fault loses its buffer and raises the error whenever it is used,
  unless it was there before and has been written to: then it holds what it held (Note [Writes undone]);
  those that do not depend on the row are as good as ever;
* launches that took such a tensor, before anybody had looked, are treated alike: that is why a launch without checks is
  remembered too, if it takes buffers of one that is. A recording that is pending still holds those buffers; they are
  recognised when it is launched;
* the error is raised, once, where the failure was found. No recording is lost by that.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_xla._src.graph.value import Ref, Row, ValueRef

CheckedRow = tuple[Row, type[Exception], str]  # a row, and what to raise if a check of it fails
WeakValue = ValueRef | Callable[[], None]
pending: list[Launched] = []  # launches that nobody has looked at, oldest first
_wrong: list[Launched] = []  # those that failed, while one of their buffers lives
num_failed = 0  # launches with a failed check so far
watching = False  # whether a program with checks has run
_failed: Any = None  # on the device: whether a check has failed since the last failure was raised; None: no
_raising: Exception | None = None  # while what is pending is launched before it is raised
flush: Callable[[], None] = lambda: None  # launches what is pending; the recorder sets it
_lock = threading.RLock()


class Launched:
    """A launch whose outputs may turn out to be wrong.

    values: the Values of the recording by number. numbers, buffers: its outputs, and what it gave for each of them.
    flags: bool[checks], whether each check failed; None if it has none.
    earlier: for those of its outputs whose write is undone if one of the first n checks failed: n, and the buffer to
        take then or None if the program has seen to it.
    sources: for each of its leaves that another Launched gave, that one and the number of the output.
    errors: the outputs that are wrong, by number, once it has been looked at.
    prior: the error of an earlier launch, if it was launched before that was noticed: then its writes are undone.
    """

    __slots__ = (
        "buffers",
        "checks",
        "earlier",
        "errors",
        "flags",
        "node",
        "numbers",
        "places",
        "prior",
        "sources",
        "values",
    )

    def __init__(
        self,
        node: Row,
        values: Sequence[WeakValue],
        numbers: Sequence[int],
        buffers: Sequence[Any],
        earlier: dict[int, tuple[int, Any]],
        flags: Any,
        checks: Sequence[CheckedRow],
    ) -> None:
        self.node, self.values, self.numbers, self.flags, self.checks = node, values, numbers, flags, checks
        self.earlier = earlier
        self.prior: Exception | None = None
        self.buffers = list(map(weakref.ref, buffers))
        self.places = dict(zip(map(id, buffers), range(len(buffers))))
        self.sources: dict[int, tuple[Launched, int]] = {}
        self.errors: dict[int, Exception] = {}

    def number_of(self, buffer: Any) -> int | None:
        """The number of the output that a buffer is, or None."""
        place = self.places.get(id(buffer))
        return None if place is None or self.buffers[place]() is not buffer else self.numbers[place]

    def examine(self) -> Exception | None:
        """Finds out which outputs are wrong, and takes their buffers away. The error if a check of this launch failed."""
        failed = self._failed()
        of_leaves = {-1 - i: s.errors[number] for i, (s, number) in self.sources.items() if number in s.errors}
        if of_leaves:  # and so an earlier check failed, and the program has undone its writes
            self._spoil({n: e for n, e in self._spread({}, of_leaves).items() if n not in self.earlier})
        if self.prior is not None:
            self._undo({0: self.prior})
        if failed:
            global num_failed
            num_failed += 1
            self._undo(failed)
            self._spoil({n: e for n, e in self._spread(failed, {}).items() if n not in self.earlier})
        self.sources, self.earlier = {}, {}  # no chain of launches is kept, and no buffer
        return failed[min(failed)] if failed else None

    def _failed(self) -> dict[int, Exception]:
        """Depth of each row with a failed check -> its error."""
        if self.flags is None:
            return {}
        try:
            flags = np.asarray(self.flags)
        except Exception:  # the run failed as a whole: whoever reads a result of it is told so
            return {}
        found: dict[int, Exception] = {}
        for flag, (row, kind, text) in zip(flags, self.checks, strict=True):
            if flag and row.depth not in found:
                place = f"{row.op._schema.name} at {row.line or 'an unknown line'}"
                found[row.depth] = kind(f"{text}: {place}")
        return found

    def _spread(self, failed: dict[int, Exception], errors: dict[int, Exception]) -> dict[int, Exception]:
        """From rows (by depth) and leaves to all that depends on them, by reference."""
        for row in self.node.path():
            error = failed.get(row.depth) or inherited(errors, row)
            if error is not None:
                errors |= outputs_with(error, row)
        return errors

    def _spoil(self, errors: dict[int, Exception]) -> None:
        """Takes away the buffers of outputs with errors."""
        for number in self.numbers:
            if number in errors and number not in self.errors:
                self.errors[number] = errors[number]
                if (value := self.values[number]()) is not None:
                    value.error, value.buffer = errors[number], None

    def _undo(self, failed: dict[int, Exception]) -> None:
        """Gives outputs back the buffers of before a write that came after a failed check."""
        for number, (num_checks, buffer) in self.earlier.items():
            last = self.checks[num_checks - 1][0].depth if num_checks else 0
            if buffer is None or min(failed) > last:
                continue
            self.errors[number] = error = failed[min(failed)]  # of what has been launched with the new buffer
            if (value := self.values[number]()) is not None:
                value.buffer, value.error = (None, error) if _is_wrong(buffer) else (buffer, None)

    def lives(self) -> bool:
        """Whether a wrong buffer is still held by somebody."""
        return any(number in self.errors and b() is not None for number, b in zip(self.numbers, self.buffers))


def fresh(error: BaseException) -> BaseException:
    """A copy to raise of an error that is kept: one that was raised holds on to the tensors of the frames it passed.

    So does its cause, of which a copy is made, too.
    """
    new = copy.copy(error)
    if error.__cause__ is not None:
        try:
            new.__cause__ = fresh(error.__cause__)
        except Exception:  # a class that cannot be copied
            new.__cause__ = RuntimeError(f"{type(error.__cause__).__name__}: {error.__cause__}")
    return new


def inherited(errors: dict[int, Exception], row: Row) -> Exception | None:
    """The error of an argument of the row. errors: by reference, of outputs (>= 0) and leaves."""
    return _first(errors, (row.args, row.kwargs))


def outputs_with(error: Exception, row: Row) -> dict[int, Exception]:
    """The error for each output of the row, by number."""
    return dict.fromkeys(range(row.base, row.base + len(row.outs)), error)


def _first(errors: dict[int, Exception], templates: Any) -> Exception | None:
    """The error of the first reference in (nested) argument templates that has one."""
    for t in templates:
        error = errors.get(t) if type(t) is Ref else _first(errors, t) if type(t) is tuple else None
        if error is not None:
            return error
    return None


def _is_wrong(buffer: Any) -> bool:
    return any(launched.number_of(buffer) in launched.errors for launched in _wrong)


def _sources(leaf_buffers: Sequence[Any]) -> dict[int, tuple[Launched, int]]:
    """For each leaf that a launch gave of which more is to be known, that one and the number of the output."""
    found: dict[int, tuple[Launched, int]] = {}
    if pending or _wrong:
        leaves = dict(zip(map(id, leaf_buffers), range(len(leaf_buffers))))
        for launched in (*_wrong, *pending):
            for key in leaves.keys() & launched.places.keys():
                leaf = leaves[key]
                if (number := launched.number_of(leaf_buffers[leaf])) is not None:
                    found[leaf] = launched, number
    return found


def remember(
    node: Row,
    values: Sequence[WeakValue],
    numbers: Sequence[int],
    buffers: Sequence[Any],
    leaf_buffers: Sequence[Any],
    earlier: dict[int, tuple[int, Any]],
    failed: Any,
    flags: Any,
    checks: Sequence[CheckedRow],
) -> None:
    """Takes note of a launch (as for Launched), and of the buffers it took. failed: what later launches are to take."""
    global watching, _failed
    with _lock:
        if flags is not None:
            watching, _failed = True, failed
        sources = _sources(leaf_buffers)
        if flags is None and not sources:
            return
        launched = Launched(node, values, numbers, buffers, earlier, flags, checks)
        launched.sources = sources
        pending.append(launched)


def concerns(checks: Sequence[CheckedRow]) -> bool:
    """Whether `remember` would take note of a launch with these checks."""
    return bool(checks or pending or _wrong)


def prior(checked: bool = False) -> list[Any]:
    """The input of a program that says whether a check of an earlier launch failed; empty if there was never one.

    checked: whether the program has checks itself. Then it gets the input the first time, too, so as to be compiled once.
    """
    return [np.False_ if _failed is None else _failed] if watching or checked else []


def settle(buffer: Any = None, wait: bool = False) -> None:
    """Looks at the launches that have finished; waits for the one that gives `buffer` and those before it, or for all.

    Raises the error of the first check that failed.
    """
    global _failed, _raising
    if not pending:
        return
    with _lock:
        first = _examine(buffer, wait)
    if first is None:
        return
    _raising = first
    try:
        flush()
    finally:
        with _lock:
            _failed = _raising = None
            for launched in pending:
                launched.prior = launched.prior or first
    raise fresh(first)


def _examine(buffer: Any, wait: bool) -> Exception | None:
    places = [i for i, launched in enumerate(pending, 1) if wait or launched.number_of(buffer) is not None]
    due = places[-1] if places else 0
    first = None
    while pending and (due > 0 or pending[0].flags is None or pending[0].flags.is_ready()):
        pending[0].prior = pending[0].prior or first or _raising
        error = pending[0].examine()
        launched = pending.pop(0)
        if launched.errors:
            _wrong.append(launched)
        if launched.prior is None:  # else it would not have run on the CPU, and has nothing of its own to say
            first = first or error
        due -= 1
    _wrong[:] = [launched for launched in _wrong if launched.lives()]
    return first
