"""Data of the recorder: what an xla tensor holds, and the rows that recordings are made of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Spec(NamedTuple):
    """Shape, dtype and strides of a tensor as PyTorch sees it; strides is None if it is contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None


UNSET = -2


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides[::-1])


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor of this geometry occupies a block of its storage with no gap and no repetition."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


ViewStep = tuple[Any, tuple[Any, ...], int]


class Value:
    """What one xla tensor holds: a device buffer, or a place in the pending recording.

    spec: its shape, dtype and strides. buffer: the jax.Array once computed, else None.
    generation: UNSET while nothing has been written to it (`torch.empty`), so that filling it costs nothing.
    generation, index: valid while `generation` is that of the pending recording; index >= 0 is the number of an
        output of the recording, index < 0 is leaf `-1 - index`.
    error: why it could not be computed; raised at each use.
    base, offset: for what a view shows, the Value that its storage holds and where in it the view starts, in elements.
        Not part of the spec: a program does not depend on them.
    steps: for what a view shows, the views by which it was made from `base`: (op, its other arguments, number of the
        output). origin: the Value it is to be made from again. See Note [Views at a cut].
    made: for what a launch has computed, the last row of its recording and the number of the output, for `runtime/live.py`.
    """

    __slots__ = (
        "__weakref__", "base", "buffer", "error", "generation", "index", "made", "offset", "origin", "spec", "steps",
    )  # fmt: skip

    def __init__(self, spec: Spec, buffer: Any = None, generation: int = -1, index: int = 0) -> None:
        self.spec, self.buffer, self.generation, self.index = spec, buffer, generation, index
        self.error: BaseException | None = None
        self.base: weakref.ref[Value] | None = None
        self.offset = 0
        self.steps: tuple[ViewStep, ...] = ()
        self.origin: Value | None = None
        self.made: tuple[Row, int] | None = None


class Ref(int):
    """Argument of a row that is a tensor: output number of the recording (>= 0), or leaf `-1 - ref` (< 0)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"%{int(self)}" if self >= 0 else f"leaf{-1 - self}"


class Slot:
    """Argument of a row that is a number and an input of the program. See Note [Scalar slots]."""

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"slot:{self.kind.__name__}"


FLOAT_SLOT, INT_SLOT = Slot(float), Slot(int)


class Row:
    """One op of a recording, and a node of the tree of known recordings. See Note [Replay].

    op: the aten overload. args, kwargs: as called, with Ref for tensors, Slot for variable numbers, and tuples for
        lists that hold either (or floats); lists of integers stay lists. kwargs holds the values, `names` their names.
    outs: Specs of what it returns, flattened, None for what is no tensor; `rebuild` puts tensors into the op's return
        structure (None: a single tensor).
    base: number of its first output. leaf_base: leaves of the recording before it. leaves: Specs of those it adds.
    view: None if the outputs are no views of the first argument; else where in it each starts, or a function of the
        arguments that tells.
    random: draws random numbers, so takes a PRNG key per run.
    checked: whether this row or one before it has checks in the program: Note [Checks of contents].
    line: "file:line (function)" of the user's code that called the op when the row was made; of that of the forward row,
        with "backward of", in a backward pass. module: path of the module that it is in, as "model.layers.3.attn", or
        "optimizer: SGD", or empty: Note [Module paths]. backward: whether it is of a backward pass. sequence: by which the
        rows of its derivative find it: Note [Rows of a backward pass].
    children: rows that have followed, the one last taken first. programs: compiled programs of the recording that ends
        with this row, by what else they depend on. padding: how it runs on padded leaves, by how they are padded.
    """

    __slots__ = (
        "args", "backward", "base", "checked", "children", "depth", "kwargs", "leaf_base", "leaves", "line", "module", "names",
        "op", "outs", "padding", "parent", "programs", "random", "rebuild", "sequence", "view",
    )  # fmt: skip

    def __init__(self, op: Any, parent: Row | None) -> None:
        self.op, self.parent = op, parent
        self.args: tuple[Any, ...] = ()
        self.kwargs: tuple[Any, ...] = ()
        self.names: tuple[str, ...] = ()
        self.outs: tuple[Spec | None, ...] = ()
        self.leaves: tuple[Spec, ...] = ()
        self.rebuild: Any = None
        self.view: tuple[int, ...] | Callable[[Any], tuple[int, ...]] | None = None
        self.random = self.checked = False
        self.line = self.module = ""
        self.backward, self.sequence = False, 0
        self.children: list[Row] = []
        self.programs: dict[Any, Any] = {}
        self.padding: dict[Any, Any] | None = None
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.base: int = 0 if parent is None else parent.base + len(parent.outs)
        self.leaf_base: int = 0 if parent is None else parent.leaf_base + len(parent.leaves)

    def path(self) -> list[Row]:
        """The recording that ends with this row."""
        rows: list[Row] = []
        row = self
        while row.parent is not None:
            rows.append(row)
            row = row.parent
        return rows[::-1]

    def __repr__(self) -> str:
        named = [f"{n}={v}" for n, v in zip(self.names, self.kwargs)]
        return f"%{self.base} = {self.op}({', '.join([*map(str, self.args), *named])})  # {self.line}"


ValueRef = weakref.ref[Value]
