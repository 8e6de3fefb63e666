"""Launches a recording that was cut: finds or builds its program, runs it, hands buffers to the live Values."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_xla._src import eager, placement
from torch_xla._src.compile import analysis, causes, donation, poison, program_cache, shape_report, undo, why
from torch_xla._src.compile.poison import CheckedRow
from torch_xla._src.compile.program import Program, donatable
from torch_xla._src.compile.recovery import Recovered, explain, independent, num_bytes, recover, refuse_if_too_large
from torch_xla._src.graph import contents, lengths, usage
from torch_xla._src.graph.value import Row, Value, ValueRef
from torch_xla._src.runtime import executions, metrics, precision
from torch_xla._src.runtime.interrupts import Uninterrupted

if TYPE_CHECKING:
    from torch_xla._src.compile.padded_program import Prepared

_LARGE = 1 << 16  # bytes; a smaller view takes less memory than the time to record it again is worth
_ONE_BY_ONE = 8  # so many outputs are left out singly when memory does not suffice, then half of the rest at a time
_PROBE = [object()]
_SOLE_OWNER = sys.getrefcount(_PROBE[0])  # what an object that only one list holds gives on this interpreter


class Launch:
    """One run of one recording. Made when the recording is cut; holds its leaves' buffers and its live Values."""

    def __init__(
        self,
        node: Row,
        values: Sequence[ValueRef | Callable[[], None]],
        leaf_values: Sequence[ValueRef],
        leaf_buffers: list[Any],
        replaced: undo.Replaced,
        wanted: Value | None = None,
    ) -> None:
        self.node, self.leaf_buffers = node, leaf_buffers
        self.prior = poison.prior(node.checked)
        self.replaced = replaced if node.checked or self.prior else {}
        self.live: list[tuple[int, Value]] = []
        self.views: list[Value] = []
        for number, ref in enumerate(values):
            if (value := ref()) is None:
                continue
            if value.base is not None and value is not wanted and _can_wait(value):
                self.views.append(value)
            else:
                self.live.append((number, value))
        self.values, self.leaf_values = values, leaf_values
        self.buffers = leaf_buffers  # what the program takes: the same, unless padding has to be taken off
        self.prepared: Prepared | None = None
        self.done = False  # whether the recording has been dealt with, and must not be launched again

    def inputs(self, floats: list[float], ints: list[int], keys: list[tuple[int, int]]) -> None:
        """The numbers and PRNG keys of this run."""
        self.floats, self.ints, self.keys = floats, ints, keys
        self.slots = floats, ints

    def supply(self, floats: list[float], ints: list[int]) -> None:
        """Other numbers, for a program that does not take the slots of the recording as they are."""
        self.floats, self.ints = floats, ints

    def run(self) -> None:
        """Compiles if this recording is new, and launches.

        If that fails, the live Values that can be computed without what failed are; the others keep the error. An
        interrupt leaves everything as it was, so that the recording can be launched again.
        """
        if contents.examine is not None:  # Note [Checking a recording]
            contents.examine(self.node, self.leaf_buffers, self.floats, self.ints, self.keys)
        usage.recorded(self.node)
        if not self.live and not self.node.checked:
            program_cache.nothing_to_run(self.node)
            self._finish()
            return
        analysis.launching(self)
        try:
            try:
                program = self._choose()
                if causes.nothing_may_run or "PT_XLA_DEBUG" in os.environ or "PT_XLA_DEBUG_LEVEL" in os.environ:
                    analysis.executing(self)
            except why.CompileLimitError:
                raise
            except Exception as error:  # nothing has run yet, so no leaf is lost
                self._take(recover(self, error))
            else:
                self._launch(program, self.live)
                donation.end_donors(self.leaf_values, program)
        except why.CompileLimitError:
            raise  # all stays pending
        except Exception as error:
            self._salvage(error)
            self._finish()
            raise
        self._finish()
        metrics.count("ExecuteComputation")
        if self.prepared is not None and self.prepared.error is not None:
            raise self.prepared.error

    def _choose(self) -> Program:
        """The program to run: one over padded buffers if there are such leaves. See Note [Varying lengths]."""
        if lengths.in_use:
            from torch_xla._src.compile.padded_program import prepare  # loads all rules

            self.prepared = prepare(self, self._key)
            if self.prepared is not None:
                self.buffers = self.prepared.buffers
                if self.prepared.program is not None:
                    return self.prepared.program
                self.supply(*self.slots)
        return self._program()

    def _finish(self) -> None:
        for value in self.views:
            value.origin = _base(value)
            value.generation = -1
        self.done = True

    def _take(self, recovered: Recovered) -> None:
        """Hands over what was computed row by row. Raises the first error of a row, which its dependents keep."""
        for number, value in self.live:
            value.error = recovered.errors.get(number)
        good = [(number, value) for number, value in self.live if number not in recovered.errors]
        self._hand_over(good, recovered.outputs, recovered.checks, recovered.undone)
        if recovered.errors:
            raise poison.fresh(next(iter(recovered.errors.values())))

    def _launch(self, program: Program, values: list[tuple[int, Value]]) -> None:
        refuse_if_too_large(program)
        with Uninterrupted():
            start = time.perf_counter_ns()
            try:
                outputs = program(self.buffers, self.floats, self.ints, self.keys, self.prior)
            except Exception as error:
                raise explain(error, self.node.path(), program) from error
            if eager.enabled:  # waiting for each op on another thread would slow ops down by a third
                metrics.sample("EagerOpExecuteTime", time.perf_counter_ns() - start)
            else:
                executions.started(start, outputs)
            if self.prepared is not None:
                self.prepared.mark(outputs)
            self._hand_over(values, outputs, program.checks, program.undone)
            self._finish()

    def _salvage(self, error: Exception) -> None:
        """Computes what fits into memory: the smaller live Values, without donation; or what a failed call is no part of."""
        by_size = sorted(self.live, key=lambda item: num_bytes(item[1].spec))
        padded = self.prepared is not None and self.prepared.program is not None
        keep = 0 if padded else len(by_size) - 1
        if not isinstance(error, torch.OutOfMemoryError):
            good = set(independent(self.node.path(), [number for number, _ in self.live]))
            by_size = [item for item in by_size if item[0] in good]
            keep = min(keep, len(by_size))
        while keep and not any(b.is_deleted() for b in self.leaf_buffers):
            chosen = by_size[:keep]
            try:
                numbers = tuple(number for number, _ in chosen)
                program = self.build(numbers, frozenset())
                self._launch(program, chosen)
                break
            except Exception:
                keep = keep - 1 if len(by_size) - keep < _ONE_BY_ONE else keep // 2
        for _, value in self.live:
            if value.buffer is None and value.error is None:
                value.error = poison.fresh(error)

    def counts(self) -> tuple[int, int, int]:
        """How many floats, integers and keys the program takes."""
        return len(self.floats), len(self.ints), len(self.keys)

    def build(self, numbers: tuple[int, ...], donated: frozenset[int]) -> Program:
        """Compiles the recording to a program that returns these outputs and consumes these leaves."""
        rows, watched = self.node.path(), bool(self.prior)
        reason = None if eager.enabled else why.explain(self, numbers, donated)
        start = time.perf_counter_ns()
        program = Program(rows, self.buffers, numbers, donated, self.counts(), self.replaced, watched)
        analysis.compiled(self, program, time.perf_counter_ns() - start, reason)
        return program

    def _key(self, kept: Sequence[int] = ()) -> tuple[tuple[int, ...], Any]:
        """The leaves whose buffers may be reused, never those in `kept`; and what the program depends on beside rows."""
        numbers = tuple(number for number, _ in self.live)
        # Note [Donation]: leaf_values are weak, so a leaf that is dead here is held by nobody but this launch.
        self.unheld = donation.unheld(self.leaf_values)
        dead = tuple([i for i in self.unheld if i not in kept and self._sole_owner(i)])
        watched = bool(self.prior)
        return dead, (numbers, dead, self.counts(), undo.key(self.replaced), watched, self.memories(), compile_flags())

    def memories(self) -> tuple[str, ...] | None:
        """The memory that each leaf is in, by its kind; None while all are in the device's."""
        return tuple([b.sharding.memory_kind for b in self.buffers]) if placement.in_use else None

    def _program(self) -> Program:
        copied = [i for i, b in enumerate(self.buffers) if b is not self.leaf_buffers[i]] if self.prepared else ()
        dead, key = self._key(copied)
        program = program_cache.find(self.node, key)
        if program is None:
            donated = donatable([value.spec for _, value in self.live], dead, self.buffers)
            program = self.build(key[0], donated)
            program_cache.add(self.node, key, program)
            shape_report.note(self.node)
        elif not eager.enabled:
            metrics.count("CachedCompile")
        donation.remember(self, self.unheld, dead, program)
        return program

    def _sole_owner(self, leaf: int) -> bool:
        holders = self.leaf_values[leaf]() is not None  # a donor: Note [Buffer donors]
        return sys.getrefcount(self.leaf_buffers[leaf]) == _SOLE_OWNER + holders

    def _hand_over(
        self,
        values: list[tuple[int, Value]],
        outputs: list[Any],
        checks: list[CheckedRow],
        undone: dict[int, undo.Place],
    ) -> None:
        failed, flags = (outputs.pop(), outputs.pop()) if checks else (None, None)
        node = self.node
        for (number, value), buffer in zip(values, outputs, strict=True):
            value.buffer, value.origin, value.made = buffer, None, (node, number)
        if outputs:
            _remember(outputs)
        numbers = [number for number, _ in values]
        earlier = {
            n: (place.num_checks, None if place.key is None else self.replaced[place.key])
            for n, place in undone.items()
        }
        poison.remember(self.node, self.values, numbers, outputs, self.leaf_buffers, earlier, failed, flags, checks)


def _base(view: Value) -> Value | None:
    return None if view.base is None else view.base()


def _can_wait(value: Value) -> bool:
    """Whether a live Value needs no buffer. See Note [Views at a cut]."""
    return num_bytes(value.spec) >= _LARGE and _base(value) is not None


def _remember(outputs: list[Any]) -> None:
    global _last
    _last = weakref.ref(outputs[-1])


_last: weakref.ref[Any] | None = None  # an output of the last launch: programs of a device finish in order


def wait() -> None:
    """Blocks until the last launch has finished. Raises if a check failed: Note [Failed checks]."""
    buffer = None if _last is None else _last()
    if buffer is not None and not buffer.is_deleted():
        buffer.block_until_ready()
    executions.settle(wait=True)
    poison.settle(wait=True)


def compile_flags() -> Any:
    """Every setting that affects compilation, beside the recording itself. Part of a program's key."""
    return precision.get()
