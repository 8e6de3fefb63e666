"""Launches a recording that was cut: finds or builds its program, runs it, hands buffers to the live Values."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._src.compile.program import Program, donatable
from torch_xla._src.compile.recovery import explain, recover
from torch_xla._src.graph.value import Row, Value, ValueRef
from torch_xla._src.runtime import metrics

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
    ) -> None:
        self.node, self.leaf_buffers = node, leaf_buffers
        self.live = [(number, value) for number, ref in enumerate(values) if (value := ref()) is not None]
        self.leaf_values = leaf_values

    def inputs(self, floats: list[float], ints: list[int], keys: list[tuple[int, int]]) -> None:
        """The numbers and PRNG keys of this run."""
        self.floats, self.ints, self.keys = floats, ints, keys

    def run(self) -> None:
        """Compiles if this recording is new, and launches. On failure the live Values keep the error."""
        if not self.live:
            return
        try:
            outputs = self._outputs()
        except BaseException as error:
            for _, value in self.live:
                value.error = error
            raise
        metrics.count("ExecuteComputation")
        self._hand_over(outputs)

    def _outputs(self) -> list[Any]:
        try:
            program = self._program()
        except Exception as error:  # nothing has run yet, so no leaf is lost
            return recover(self, error)
        try:
            return program(self.leaf_buffers, self.floats, self.ints, self.keys)
        except Exception as error:
            raise explain(error, self.node.path()) from error

    def _program(self) -> Program:
        numbers = tuple(number for number, _ in self.live)
        # Note [Donation]: leaf_values are weak, so a leaf that is dead here is held by nobody but this launch.
        dead = tuple(i for i, ref in enumerate(self.leaf_values) if ref() is None and self._sole_owner(i))
        counts = (len(self.floats), len(self.ints), len(self.keys))
        key = (numbers, dead, counts, compile_flags())
        program = self.node.programs.get(key)
        if program is None:
            donated = donatable([value.spec for _, value in self.live], dead, self.leaf_buffers)
            program = Program(self.node.path(), self.leaf_buffers, numbers, donated, counts)
            self.node.programs[key] = program
        else:
            metrics.count("CachedCompile")
        return program

    def _sole_owner(self, leaf: int) -> bool:
        return sys.getrefcount(self.leaf_buffers[leaf]) == _SOLE_OWNER

    def _hand_over(self, outputs: list[Any]) -> None:
        global _last
        _last = weakref.ref(outputs[-1])
        for (_, value), buffer in zip(self.live, outputs, strict=True):
            value.buffer = buffer


_last: weakref.ref[Any] | None = None  # an output of the last launch: programs of a device finish in order


def wait() -> None:
    """Blocks until the last launch has finished."""
    buffer = None if _last is None else _last()
    if buffer is not None and not buffer.is_deleted():
        buffer.block_until_ready()


def compile_flags() -> Any:
    """Every setting that affects compilation, beside the recording itself. Part of a program's key."""
    return None
