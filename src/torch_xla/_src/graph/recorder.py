"""The recorder: functional aten ops go in, rows of the pending recording come out, programs run at cuts.

Note [Replay]
Known recordings form a prefix tree of Rows. While a program runs again, each op is compared with the row that followed
last time: same overload, same argument positions, same constants, same leaf shapes. If so the row is reused: its
output tensors are made from stored metadata, with no meta kernel, no hashing and no new objects beside the tensors.
A fully replayed recording ends at a row that holds its compiled programs. An op that no child of the current row
matches makes a new child, so train/eval alternation and bucketed shapes all replay.

Note [Scalar slots]
A number in a `Scalar` or `float` argument starts as a constant of the program. The first time it differs at that row,
the position becomes an input of the program, a slot of its own, for good: a changing learning rate recompiles at most
once, and equal values never share a slot. Numbers that an optimizer passes in `step()` are slots from the start, since
bias correction and schedules change them. Integers that determine shapes are `int` arguments and stay constants.
Slots of a row are only ever added, so the number of slots on a path of the tree identifies which positions are slots.

Note [Cut points]
A recording is cut and launched at `torch_xla.sync()`, at a host read, after every optimizer step, at a size limit, and
when a line of the user's code uploads to the device for the second time with work recorded in between: that is a loop
over batches that reads nothing (inference), which would otherwise be unrolled. A loop written for eager PyTorch is cut
well by these; with explicit calls the automatic cuts have nothing left to do. For loops that accumulate gradients see
Note [The cut after a backward pass] in `device/accumulation.py`.

Note [Views at a cut]
A view that is alive at a cut has no memory of its own on other devices: the gradient of a linear layer's weight is a
transposed view of a product. Beside the buffer of what it shows, an output for a large view would double its memory. So
it gets none if its base has one, and is recorded again, from that, when it is used; unless it is what the cut was for.

Note [Donation]
A leaf whose Value has died when the recording is launched is reachable by nobody, so its buffer may be reused for an
output (a parameter just updated in place), unless its reference count says that someone else holds the jax.Array.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from torch_xla._src import eager
from torch_xla._src.compile import poison
from torch_xla._src.graph import contents, lengths, origins, usage
from torch_xla._src.graph.opinfo import OnlyOnCpu, OpInfo, op_info
from torch_xla._src.graph.tensor import XlaTensor, inner_like, inner_of_value
from torch_xla._src.graph.value import FLOAT_SLOT, INT_SLOT, UNSET, Ref, Row, Slot, Spec, Value, ValueRef
from torch_xla._src.runtime import client, frames, rng

MAX_ROWS = 10_000  # a recording is cut here whatever happens, so that a loop without a cut point cannot grow for ever
_EARLIER = 3  # recordings, beside the last, in which the forward rows of a backward pass are looked for
_EMPTY = torch.ops.aten.empty.memory_format
_SCATTERS = {  # by which functionalization writes what was written to a view to what it is a view of
    torch.ops.torch_xla.slice_scatter.default, torch.ops.aten.slice_scatter.default,
    torch.ops.aten.select_scatter.default, torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.as_strided_scatter.default,
}  # fmt: skip
_INT64 = range(-(2**63), 2**63)


class _ForeignTensor(Exception):
    """An argument is a host tensor: it has to become a leaf first."""


class _NotRecorded(Exception):
    """An argument holds a Value that nothing has been written to, or that is to be made again from what it shows."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


def _dead() -> None:
    """Stands for the weak reference of an output that is no tensor."""


class Recorder:
    """The pending recording of the process. Backward runs on threads of the autograd engine, so state is not per thread."""

    def __init__(self) -> None:
        self.root = Row(None, None)
        self.lock = threading.RLock()
        self.generation = 0
        self.in_optimizer = False  # while an optimizer's step() runs: see Note [Scalar slots]
        self.makes_state = False  # while that is its first: see Note [State is there before the first step]
        self.replayed = self.rebuilt = 0  # rows, since the process started
        self.num_cuts = 0
        # Rows in which a number has become a slot of late; what it was, and what it became.
        self.relaxed: deque[tuple[Row, Any, Any]] = deque(maxlen=16)
        self.failed: set[Any] = set()  # calls whose lowering failed: see `recovery.recover`
        # The pending recording: the last row; weak references to its outputs and leaves; what its slots and keys hold.
        self.node: Row
        self.values: list[ValueRef | Callable[[], None]]
        self.leaf_values: list[ValueRef]
        self.leaf_buffers: list[Any]
        self.leaf_specs: list[Spec]
        self.floats: list[float]
        self.ints: list[int]
        self.keys: list[tuple[int, int]]
        self.replaced: dict[int, Any]  # see Note [Writes undone]
        self.rebuilt_before: int  # rows rebuilt before this recording began
        self.uploads: dict[int, int]  # hash of the user's stack -> rows there were at its last upload
        self.mark: origins.Mark = (0, 0, 0, [])  # where it began, and where those before it did: `origins`
        self.node = self.root
        self.earlier: tuple[tuple[origins.Mark, Row], ...] = ()
        self._restart()

    def _restart(self) -> None:
        earlier = (*self.earlier[-_EARLIER:], (self.mark, self.node))
        mark: origins.Mark
        mark = self.generation + 1, threading.get_ident(), torch._C._autograd._get_sequence_nr(), []
        # One C call, so that an interrupt finds either the old recording or the new one.
        self.__dict__.update(
            generation=self.generation + 1,
            mark=mark,
            earlier=earlier,
            node=self.root,
            values=[],
            leaf_values=[],
            leaf_buffers=[],
            leaf_specs=[],
            floats=[],
            ints=[],
            keys=[],
            replaced={},
            uploads={},
            rebuilt_before=self.rebuilt,
        )

    # ---- recording -------------------------------------------------------------------------------------------------

    def record(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Adds one functional op to the recording and returns its output tensors (inner ones).

        Raises what PyTorch's meta kernel raises for wrong arguments; then the recording is as it was.
        """
        with self.lock:
            mark = (self.node, len(self.values), len(self.leaf_specs), len(self.floats), len(self.ints), len(self.keys))
            try:
                row = self._row_of(op, args, kwargs)
                outs = self._tensors(row, self._emit(row, args), args)
            except BaseException as error:
                self._rewind(*mark)
                return self._retry(error, op, args, kwargs)
            if row.depth >= MAX_ROWS:
                self.cut()
            return outs

    def record_values(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The same for an op that returns tensors only, as a list of Values: a write needs no tensor for its result."""
        with self.lock:
            mark = (self.node, len(self.values), len(self.leaf_specs), len(self.floats), len(self.ints), len(self.keys))
            try:
                row = self._row_of(op, args, kwargs)
                values = self._emit(row, args)
            except BaseException as error:
                self._rewind(*mark)
                outs = self._retry(error, op, args, kwargs)
                return [t.value for t in pytree.tree_leaves(outs)]
            if row.depth >= MAX_ROWS:
                self.cut()
            return values

    def _row_of(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Row:
        return self._replay(op, args, kwargs) or self._relax(op, args, kwargs) or self._add(op, args, kwargs)

    def _retry(self, error: BaseException, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Records an op again after what stood in its way has been dealt with; raises `error` if that is not known."""
        if isinstance(error, _ForeignTensor):
            info = op_info(op)
            return self.record(op, info.adopt_host_tensors(args), {k: info.adopt(v) for k, v in kwargs.items()})
        if isinstance(error, _NotRecorded):
            self._place(error.value)
            return self.record(op, args, kwargs)
        if isinstance(error, OnlyOnCpu):
            from torch_xla._src.graph import fallback

            return fallback.run(op, args, kwargs)
        raise error

    def _rewind(self, node: Row, values: int, leaves: int, floats: int, ints: int, keys: int) -> None:
        """Takes back all that a failed or interrupted `record` has added."""
        self.node = node
        for ref in self.leaf_values[leaves:]:
            if (value := ref()) is not None:
                value.generation = -1
        del self.leaf_values[leaves:], self.leaf_buffers[leaves:], self.leaf_specs[leaves:]
        del self.values[values:], self.floats[floats:], self.ints[ints:], self.keys[keys:]

    def _place(self, value: Value) -> None:
        """Gives a Value that is unset, or to be made again, a row of the recording."""
        if value.origin is None:
            made = self.record(_EMPTY, [list(value.spec.shape)], {"dtype": value.spec.dtype})
        else:
            made = inner_of_value(value.origin)
            for op, args, number in value.steps:
                outs = self.record(op, [made, *args], {})
                made = outs if isinstance(outs, torch.Tensor) else outs[number]
        index = made.value.index
        self.values[index] = weakref.ref(value)
        value.index = index
        value.generation = self.generation

    def _replay(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Row | None:
        """The known row that this call is, or None."""
        children = self.node.children
        for position, row in enumerate(children):
            if row.op is op and self._matches(row, args, kwargs):
                if position:
                    children.insert(0, children.pop(position))
                self.replayed += 1
                return row
        return None

    def _matches(self, row: Row, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        num_floats, num_ints = len(self.floats), len(self.ints)
        if (
            len(args) == len(row.args)
            and self._same(args, row.args)
            and len(kwargs) == len(row.names)
            and (not kwargs or (tuple(kwargs) == row.names and self._same(kwargs.values(), row.kwargs)))
            and (len(self.leaf_specs) == row.leaf_base or tuple(self.leaf_specs[row.leaf_base :]) == row.leaves)
            and len(self.leaf_specs) == row.leaf_base + len(row.leaves)
        ):
            return True
        del self.floats[num_floats:]
        del self.ints[num_ints:]
        return False

    def _same(self, args: Any, templates: Any) -> bool:
        """Whether arguments equal those of a row. Constants compare by type and bit pattern."""
        generation = self.generation
        for a, t in zip(args, templates):
            kind = type(a)
            if kind is XlaTensor:
                value = a.value
                index = value.index if value.generation == generation else self._new_leaf(value)
                if index != t or type(t) is not Ref:
                    return False
            elif a is t:
                continue
            elif type(t) is tuple:
                if kind is not list or len(a) != len(t) or not self._same(a, t):
                    return False
            elif type(t) is Slot:
                if kind is not t.kind:
                    return False
                (self.floats if kind is float else self.ints).append(a)
            elif isinstance(a, torch.Tensor):
                raise _ForeignTensor
            elif kind is not type(t) or not same_constant(a, t):
                return False
        return True

    def _new_leaf(self, value: Value) -> int:
        if value.buffer is None:
            if value.generation == UNSET or value.origin is not None:
                raise _NotRecorded(value)
            raise _why_lost(value)
        # The Value says last that it is a leaf: `_rewind` finds it if an interrupt comes in between.
        self.leaf_values.append(weakref.ref(value))
        self.leaf_buffers.append(value.buffer)
        self.leaf_specs.append(value.spec)
        value.index = -len(self.leaf_specs)
        value.generation = self.generation
        return value.index

    # ---- new rows --------------------------------------------------------------------------------------------------

    def _add(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Row:
        client.devices()  # a client that cannot start is an error of the first op
        info = op_info(op)
        if self.failed and info.key(args, kwargs) in self.failed:
            raise OnlyOnCpu
        row = Row(op, self.node)
        row.outs, row.rebuild, row.view = info.outputs(args, kwargs)
        row.args = tuple(self._template(a, info, s) for a, s in zip(args, info.slottable, strict=False))
        row.names = tuple(kwargs)
        row.kwargs = tuple(self._template(v, info, info.slottable_kwargs.get(k, False)) for k, v in kwargs.items())
        row.leaves = tuple(self.leaf_specs[row.leaf_base :])
        row.random = info.random
        row.line, row.module, row.sequence, row.backward = origins.of_new_row(self, op)
        row.checked = self.node.checked or (contents.checks_of(op) is not None and contents.in_programs())
        self.node.children.insert(0, row)
        self.rebuilt += 1
        return row

    def _template(self, a: Any, info: OpInfo, slottable: bool) -> Any:
        if type(a) is XlaTensor:
            return Ref(a.value.index if a.value.generation == self.generation else self._new_leaf(a.value))
        if isinstance(a, torch.Tensor):
            raise _ForeignTensor
        if type(a) is list and not all(type(x) is int or type(x) is bool for x in a):
            return tuple(self._template(x, info, slottable) for x in a)
        if slottable and self.in_optimizer and (slot := slot_for(a)):
            (self.floats if slot is FLOAT_SLOT else self.ints).append(a)
            return slot
        return a

    def _relax(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Row | None:
        """The known row that differs from this call in numbers only, after making those slots. See Note [Scalar slots]."""
        info = None
        for row in self.node.children:
            if row.op is not op or len(args) != len(row.args) or tuple(kwargs) != row.names:
                continue
            info = info or op_info(op)
            old = row.args, row.kwargs
            relaxed = tuple(relax(a, t, s) for a, t, s in zip(args, row.args, info.slottable))
            named = tuple(
                relax(a, t, info.slottable_kwargs.get(k, False)) for (k, a), t in zip(kwargs.items(), row.kwargs)
            )
            row.args, row.kwargs = relaxed, named
            if self._matches(row, args, kwargs):
                self.relaxed.append((row, *_became_slot(old, (row.args, row.kwargs), (args, [*kwargs.values()]))))
                return row
            row.args, row.kwargs = old
        return None

    def _emit(self, row: Row, args: Sequence[Any]) -> list[Any]:
        """The Values of the row's outputs; None for one that is no tensor."""
        self.node = row
        if row.random:
            self.keys.append(rng.next_key())
        if row.view is not None:
            return self._emit_views(row, args)
        outs: list[Any] = []
        values, generation = self.values, self.generation
        for spec in row.outs:
            if spec is None:
                values.append(_dead)
                outs.append(None)
                continue
            value = Value(spec, None, generation, len(values))
            values.append(weakref.ref(value))
            outs.append(value)
        return outs

    def _emit_views(self, row: Row, args: Sequence[Any]) -> list[Any]:
        viewed = args[0].value
        base = viewed.base or weakref.ref(viewed)
        outs: list[Any] = []
        offsets = row.view(args) if callable(row.view) else row.view or ()
        for number, (spec, offset) in enumerate(zip(row.outs, offsets)):
            assert spec is not None
            value = Value(spec, None, self.generation, len(self.values))
            value.base, value.offset = base, viewed.offset + offset
            value.steps = (*viewed.steps, (row.op, tuple(args[1:]), number))
            self.values.append(weakref.ref(value))
            outs.append(value)
        return outs

    @staticmethod
    def _tensors(row: Row, values: list[Any], args: Sequence[Any]) -> Any:
        # Note [Inference tensors]
        if torch.is_inference_mode_enabled() and (row.view is not None or row.op in _SCATTERS):
            views = [inner_like(args[0], value) for value in values]
            return views[0] if row.rebuild is None else row.rebuild(views)
        if row.rebuild is None:
            return inner_of_value(values[0])
        return row.rebuild([None if value is None else inner_of_value(value) for value in values])

    def notes_writes(self) -> bool:
        """Whether `note_write` has anything to do. A recording that is new may yet get checks, the first of the process."""
        is_new = self.rebuilt != self.rebuilt_before
        return self.node.checked or poison.watching or (is_new and contents.in_programs())

    def note_write(self, old: Value, new: Value) -> None:
        """Remembers that a tensor which held `old` holds `new`, if a check may undo that. See Note [Writes undone]."""
        if self.notes_writes() and new.generation == self.generation and new is not old:
            held = old.index if old.generation == self.generation else old.buffer if self.node.checked else None
            if old.spec.shape != new.spec.shape or old.spec.dtype is not new.spec.dtype:  # it was resized
                held = None
            # A Value that two tensors were given cannot go back to what one of them held.
            self.replaced[new.index] = held if new.index not in self.replaced else None

    def forbid(self, row: Row) -> None:
        """Takes a row that does not compile out of the tree, and sends calls like it to the CPU from now on."""
        specs = {-1 - i: spec for r in row.path() for i, spec in enumerate(r.leaves, r.leaf_base)}
        specs |= {i: spec for r in row.path()[:-1] for i, spec in enumerate(r.outs, r.base) if spec is not None}

        def key(t: Any) -> Any:
            return specs[int(t)] if type(t) is Ref else [key(x) for x in t] if isinstance(t, (tuple, list)) else t

        kwargs = {name: key(t) for name, t in zip(row.names, row.kwargs)}
        self.failed.add(op_info(row.op).key([key(t) for t in row.args], kwargs))
        if row.parent is not None and row in row.parent.children:
            row.parent.children.remove(row)

    # ---- cutting ---------------------------------------------------------------------------------------------------

    def about_to_upload(self) -> None:
        """Cuts if this is the next round of a loop over batches. See Note [Cut points]."""
        with self.lock:
            depth, stack = self.node.depth, frames.user_stack()
            last = max(self.uploads.values(), default=0)
            if stack in self.uploads and depth > last:
                self.cut()
                depth = 0
            self.uploads[stack] = depth

    def latest(self) -> list[Value]:
        """The Values in use of the last row that has some; none if the recording is empty."""
        row = self.node
        while row.parent is not None:
            found = [value for ref in self.values[row.base : row.base + len(row.outs)] if (value := ref()) is not None]
            if found:
                return found
            row = row.parent
        return []

    @property
    def pending(self) -> int:
        """Rows recorded since the last cut."""
        return self.node.depth

    def cut(self, wanted: Value | None = None) -> None:
        """Ends the pending recording and launches it, asynchronously: afterwards every live Value has a buffer.

        Views may do without one (Note [Views at a cut]), but not `wanted`.
        If it fails, the Values that could not be computed raise at their next use, and the error is raised here.
        """
        with self.lock:
            if self.node is not self.root:
                self.num_cuts += 1
                from torch_xla._src.compile.launch import Launch  # imports JAX

                launch = Launch(self.node, self.values, self.leaf_values, self.leaf_buffers, self.replaced, wanted)
                launch.inputs(self.floats, self.ints, self.keys)
                try:
                    launch.run()
                finally:
                    if launch.done:  # an interrupt before that leaves the recording pending
                        self._restart()
                del launch  # it holds live Values, and what `settle` raises may hold this frame
                poison.settle()

    def flush(self) -> None:
        """Launches what is pending when a failed check is about to be raised; what fails here is kept by its Values."""
        with self.lock, contextlib.suppress(Exception):
            self.cut()

    def after_fork(self) -> None:
        """In a forked child, in which XLA would wait for threads that were not forked: every use is an error."""
        if client.is_initialized():
            for name in ("record", "record_values", "cut", "buffer", "about_to_upload"):
                setattr(self, name, _refuse_in_child)

    def last_recording(self) -> int:
        """Identifies the pending recording among all known ones."""
        return id(self.node)

    def buffer(self, value: Value) -> Any:
        """The device buffer of a Value, cutting the recording if it is pending. A padded one comes as a numpy array."""
        with self.lock:
            pending = value.generation == self.generation
            if value.buffer is None and not pending and (value.generation == UNSET or value.origin is not None):
                self._place(value)
            if value.buffer is None and value.generation == self.generation:
                self.cut(value)
            if poison.pending and value.buffer is not None:
                poison.settle(value.buffer)
            if value.buffer is None:
                raise _why_lost(value)
            return lengths.exact(value.buffer)


def _why_lost(value: Value) -> BaseException:
    """The exception to raise for a Value that holds neither a buffer nor a place in the recording."""
    return AssertionError("an xla tensor was not computed") if value.error is None else poison.fresh(value.error)


def same_constant(a: Any, t: Any) -> bool:
    """Equality of two constants of one type: bit pattern for floats (-0.0 is not 0.0, NaN is NaN)."""
    if type(a) is float:
        return (a == t and math.copysign(1.0, a) == math.copysign(1.0, t)) or (a != a and t != t)
    if type(a) is complex:
        return same_constant(a.real, t.real) and same_constant(a.imag, t.imag)
    return bool(a == t)


def slot_for(a: Any) -> Slot | None:
    """The slot that can hold a number, or None: booleans, complex and huge integers stay constants."""
    return FLOAT_SLOT if type(a) is float else INT_SLOT if type(a) is int and a in _INT64 else None


def relax(a: Any, t: Any, slottable: bool) -> Any:
    """Template `t` with slots where it differs from argument `a` in a number of the same type."""
    if type(t) is tuple and type(a) is list and len(a) == len(t):
        return tuple(relax(x, y, slottable) for x, y in zip(a, t))
    if slottable and type(a) is list and type(t) is list and len(a) == len(t) and a != t:  # Scalar[] of integers
        return tuple(relax(x, y, slottable) for x, y in zip(a, t))
    if slottable and type(a) is type(t) and (slot := slot_for(a)) and not same_constant(a, t):
        return slot
    return t


def _became_slot(old: Any, new: Any, given: Any) -> Any:
    """The first number among argument templates that was a constant and is a slot, and the number given for it now."""
    if isinstance(old, (tuple, list)):
        return next((found for found in map(_became_slot, old, new, given) if found), ())
    return (old, given) if type(new) is Slot and type(old) is not Slot else ()


def _refuse_in_child(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "device xla cannot be used in a forked subprocess once its parent has used it. In workers of a DataLoader keep "
        "tensors on the CPU; else start processes with the 'spawn' start method"
    )


RECORDER = Recorder()
poison.flush = RECORDER.flush
usage.attach(RECORDER)
eager.attach(RECORDER)
os.register_at_fork(after_in_child=RECORDER.after_fork)
if "TORCH_XLA_TIME_REPORT" in os.environ:
    from torch_xla._src import time_report  # needs the recorder

    time_report.start_if_asked()
