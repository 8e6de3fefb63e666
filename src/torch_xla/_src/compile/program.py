"""Builds the compiled program of a recording: rows -> a JAX function -> an XLA executable."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._src.compile import disk_cache, fingerprint, metadata, options, reuse, undo
from torch_xla._src.compile.plan import Region, Use, regions, uses
from torch_xla._src.compile.poison import CheckedRow
from torch_xla._src.graph import contents
from torch_xla._src.graph.value import FLOAT_SLOT, INT_SLOT, Ref, Row, Slot, Spec
from torch_xla._src.ops import placement
from torch_xla._src.ops.dtypes import numpy_dtype
from torch_xla._src.ops.lower import lower
from torch_xla._src.ops.recompute import barrier
from torch_xla._src.ops.registry import OutSpec
from torch_xla._src.ops.update import to_a_view
from torch_xla._src.runtime import client, precision

KEY_IMPLEMENTATION = "threefry2x32"  # reproducible on every device, and independent of sharding
_CONSTANT = re.compile("empty|zeros|ones|full|_like")  # results that depend on no number


class RowError(Exception):
    """A row could not be lowered; `row` says which, the cause is chained."""

    def __init__(self, row: Row) -> None:
        super().__init__(f"{row.op} at {row.line or 'an unknown line'}")
        self.row = row


class Inputs:
    """Values of what a row refers to: hands out slots and keys in the order in which they were recorded."""

    def __init__(self, leaves: Sequence[Any], floats: Any, ints: Any, keys: Any, prior: Any = None) -> None:
        self.leaves, self.floats, self.ints, self.keys = leaves, floats, ints, keys
        self.prior = prior  # whether a check of an earlier launch failed; None if that does not matter
        self.outs: dict[int, Any] = {}
        self.again: list[
            dict[int, Any]
        ] = []  # by recomputation that is being run: what it finds for outputs and leaves
        self.views: set[int] = set()  # those of `outs` that show another in another way
        self.checks: list[CheckedRow] = []  # see Note [Failed checks]
        self.flags: list[Any] = []  # for each of them, whether it failed
        self.checks_before: dict[int, int] = {}  # by output: how many checks there were by then, if any
        self.keys_again: list[Any] = []  # by recomputation that is being run: what it finds for `keys`
        self.paced = False  # whether random numbers are drawn no sooner than their turn
        self.latest: Any = None  # what was computed last, if they are
        self.position = {FLOAT_SLOT: 0, INT_SLOT: 0, "key": 0}

    def _next(self, kind: Any) -> int:
        self.position[kind] += 1
        return self.position[kind] - 1

    def resolve(self, t: Any) -> Any:
        """The value of one argument template. Must be called for every argument of every row, in order."""
        kind = type(t)
        if kind is Ref:
            return self._held(t)
        if kind is tuple:
            return [self.resolve(x) for x in t]
        if kind is Slot:
            return self.floats[self._next(FLOAT_SLOT)] if t.kind is float else self.ints[self._next(INT_SLOT)]
        return t

    def _held(self, number: int) -> Any:
        if self.again and number in self.again[-1]:
            return self.again[-1][number]
        return self.outs[number] if number >= 0 else self.leaves[-1 - number]

    def enter(self, region: Region, begin: Row) -> None:
        """From here on, what a recomputation reads from outside comes through a barrier. See Note [Recomputation]."""
        after = Inputs.resolve(self, begin.args[0])
        keys = [self._keys()] if region.draws else []
        held = barrier([*map(self._held, region.reads), *keys], after)
        self.keys_again.append(held.pop() if keys else self._keys())
        numbers = dict(zip(region.reads, held, strict=True))
        self.again.append({**(self.again[-1] if self.again else {}), **numbers})

    def leave(self) -> None:
        """Ends what `enter` began."""
        self.again.pop()
        self.keys_again.pop()

    def skip(self, row: Row) -> None:
        """Passes over the slots and the key of a row that nobody needs."""
        for slot in slots_in((row.args, row.kwargs)):
            self._next(slot)
        if row.random:
            self._next("key")

    def _keys(self) -> Any:
        return self.keys_again[-1] if self.keys_again else self.keys

    def key(self) -> Any:
        """The PRNG key of the next random row."""
        data = self._keys()[self._next("key")]
        if self.paced and not self.again and self.latest is not None:
            (data,) = barrier([data], [self.latest])
        return jax.random.wrap_key_data(data, impl=KEY_IMPLEMENTATION)

    def run(self, row: Row, only_check: bool = False) -> None:
        """Lowers one row; its outputs join `outs`. only_check: takes no more than the flags of its checks."""
        args = [self.resolve(t) for t in row.args]
        kwargs = {name: self.resolve(t) for name, t in zip(row.names, row.kwargs)}
        key = self.key() if row.random else None
        specs = [None if s is None else OutSpec(s.shape, numpy_dtype(s.dtype)) for s in row.outs]
        try:
            self._check(row, args, kwargs)
            if only_check:
                return
            with to_a_view(self._writes_to_view(row)):
                results = metadata.call(row, lower, row.op, args, kwargs, specs, key)
        except Exception as error:
            raise RowError(row) from error
        for number, result in enumerate(results, row.base):
            self.outs[number] = result
            if self.paced and result is not None and not _CONSTANT.search(row.op._schema.name):
                self.latest = result
            if row.view is not None:
                self.views.add(number)
            if self.checks:
                self.checks_before[number] = len(self.checks)

    def _writes_to_view(self, row: Row) -> bool:
        return bool(row.args) and type(row.args[0]) is Ref and row.args[0] in self.views

    def _check(self, row: Row, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        for check, failed in contents.failures(row.op, args, kwargs):
            self.checks.append((row, check.error, check.text))
            self.flags.append(failed)


def flags_of(inputs: Inputs) -> list[Any]:
    """The outputs about checks: which of them failed, and whether one has, here or before; none if there are none."""
    if not inputs.flags:
        return []
    return [jnp.stack(inputs.flags), undo.any_failed(inputs, len(inputs.flags))]


def slots_in(templates: Any) -> list[Slot]:
    """The slots in (nested) argument templates, in order."""
    found: list[Slot] = []
    for t in templates:
        if type(t) is Slot:
            found.append(FLOAT_SLOT if t.kind is float else INT_SLOT)
        elif type(t) is tuple:
            found += slots_in(t)
    return found


class Program:
    """An executable for one recording: leaves, slots and keys in, live outputs out.

    live: numbers of the outputs it returns, in order. donated: positions of the leaves whose buffers it consumes.
    counts: how many floats, integers and PRNG keys it takes.
    checks: if there are any, two more outputs say which of them failed, and whether one has, here or in an earlier
        launch. watched: whether it takes that of earlier launches. undone: for live outputs, where they find what
        they are if a check failed, as `undo.settle` says. bytes_needed: memory that a run takes. unused: leaves that it
        does not take.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        leaf_buffers: Sequence[Any],
        live: Sequence[int],
        donated: frozenset[int],
        counts: tuple[int, int, int],
        replaced: undo.Replaced,
        watched: bool,
        unused: frozenset[int] = frozenset(),
    ) -> None:
        donated = reuse.within_memories(rows, live, donated, leaf_buffers)
        self.rows, self.live, self.donated, self.watched, self.counts = rows, live, donated, watched, counts
        self.checks: list[CheckedRow] = []
        self.undone: dict[int, undo.Place] = {}
        self._replaced = undo.key(replaced)
        self.kept = [i for i in range(len(leaf_buffers)) if i not in donated and i not in unused]
        self.given, self.order = reuse.order(rows, live, donated)
        self.places = sorted(range(len(live)), key=self.order.__getitem__)  # of live outputs, in what comes back
        self.executable = self._executable(leaf_buffers, counts, unused)
        self.bytes_needed = bytes_needed(self.executable)

    def _function(self, given: Any, kept: Any, floats: Any, ints: Any, keys: Any, prior: Any) -> list[Any]:
        inputs = self._inputs(dict(zip(self.given, given)) | dict(zip(self.kept, kept)), floats, ints, keys, prior)
        replaced = dict(self._replaced)
        plan = uses(self.rows, [*self.live, *undo.earlier(self.live, replaced)])
        again = regions(self.rows, plan)
        begins, ends = {r.begin: r for r in again}, {r.end for r in again}
        inputs.paced = bool(again)
        for position, (row, use) in enumerate(zip(self.rows, plan, strict=True)):
            if position in begins:
                inputs.enter(begins[position], row)
            elif position in ends:
                inputs.leave()
            elif use is Use.SKIP:
                inputs.skip(row)
            else:
                self._run(inputs, position, only_check=use is Use.CHECK)
        self.checks = inputs.checks
        self._ran(inputs, replaced)
        flags = flags_of(inputs)
        outputs, self.undone = undo.settle(self.live, inputs, replaced)
        return [outputs[i] for i in self.order] + flags

    # What a program over padded buffers does in a way of its own:

    def _inputs(self, leaves: dict[int, Any], floats: Any, ints: Any, keys: Any, prior: Any) -> Inputs:
        return Inputs([leaves[i] for i in range(len(leaves))], floats, ints, keys, *prior)

    def _run(self, inputs: Any, position: int, only_check: bool) -> None:
        inputs.run(self.rows[position], only_check)

    def _ran(self, inputs: Any, replaced: undo.Replaced) -> None:
        """All rows have been lowered."""

    def _executable(self, leaf_buffers: Sequence[Any], counts: tuple[int, int, int], unused: frozenset[int]) -> Any:
        """The executable found on disk, or else compiled and kept there."""
        told = self.live, self.donated, counts, self._replaced, self.watched, unused
        digest = self._fingerprint(leaf_buffers, told) if disk_cache.is_used() else None
        if digest is None:
            return self._compile(leaf_buffers, counts)
        inputs = len(self.given), len(self.kept), int(self.watched)
        device = next(iter(leaf_buffers[0].devices())) if leaf_buffers else client.default_device()
        if (kept := disk_cache.load(digest, inputs, len(self.live), device)) is not None:
            self.checks = [(self.rows[position], error, text) for position, error, text in kept.checks]
            self.undone = {number: undo.Place(*place) for number, place in kept.undone.items()}
            return kept.executable
        with disk_cache.compiling_to_keep():
            executable = self._compile(leaf_buffers, counts)
        positions = {id(row): position for position, row in enumerate(self.rows)}
        checks = [(positions[id(row)], error, text) for row, error, text in self.checks]
        undone = {number: tuple(place) for number, place in self.undone.items()}
        disk_cache.keep(digest, disk_cache.Kept(executable, checks, undone))
        return executable

    def _fingerprint(self, leaf_buffers: Sequence[Any], told: Any) -> str | None:
        """What the program is kept by on disk, if it can be: Note [Fingerprints]. Other kinds of programs are not."""
        return fingerprint.of(self.rows, leaf_buffers, told) if type(self) is Program else None

    def _compile(self, leaf_buffers: Sequence[Any], counts: tuple[int, int, int]) -> Any:
        def aval(buffer: Any) -> Any:
            # A ShapeDtypeStruct is traced as in the device's memory, and donated to it.
            if placement.is_host_buffer(buffer):
                return buffer
            return jax.ShapeDtypeStruct(buffer.shape, buffer.dtype, sharding=buffer.sharding)

        disk_cache.enable()
        num_floats, num_ints, num_keys = counts
        with (
            jax.enable_x64(True),
            jax.default_device(client.default_device()),
            jax.default_matmul_precision(precision.get()),  # Note [Precision of products]
            metadata.one_line_each(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            # Weakly typed, so that slots take part in promotion as Python numbers do: Note [Scalars in lowerings].
            lowered = jax.jit(self._function, donate_argnums=0).lower(
                [aval(leaf_buffers[i]) for i in self.given],
                [aval(leaf_buffers[i]) for i in self.kept],
                jax.ShapeDtypeStruct((num_floats,), np.float64, weak_type=True),
                jax.ShapeDtypeStruct((num_ints,), np.int64, weak_type=True),
                jax.ShapeDtypeStruct((num_keys, 2), np.uint32),
                [jax.ShapeDtypeStruct((), np.bool_)] * self.watched,
            )
            return options.compiled(lowered, self.rows)

    def __call__(
        self, leaf_buffers: Sequence[Any], floats: list[float], ints: list[int], keys: list[Any], prior: list[Any]
    ) -> list[Any]:
        """Launches the program, asynchronously. prior: whether an earlier check failed, if the program is watched."""
        with jax.enable_x64(True):
            outputs: list[Any] = self.executable(
                [leaf_buffers[i] for i in self.given],
                [leaf_buffers[i] for i in self.kept],
                np.array(floats, np.float64),
                np.array(ints, np.int64),
                np.array(keys, np.uint32).reshape(-1, 2),
                prior,
            )
        return [outputs[i] for i in self.places] + outputs[len(self.places) :]


def bytes_needed(executable: Any) -> int:
    """Bytes of a program's arguments, results and temporaries, by the compiler's own account; 0 if it gives none."""
    plan = executable.memory_analysis()
    if plan is None:
        return 0
    total = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return int(total - plan.alias_size_in_bytes)


def donatable(specs: Sequence[Spec], candidates: Sequence[int], leaf_buffers: Sequence[Any]) -> frozenset[int]:
    """Which candidate leaves XLA can use for an output: each output takes one buffer of its shape and dtype."""
    room: dict[Any, int] = {}
    for spec in specs:
        shape_dtype = (spec.shape, numpy_dtype(spec.dtype))
        room[shape_dtype] = room.get(shape_dtype, 0) + 1
    chosen = []
    for i in candidates:
        shape_dtype = (leaf_buffers[i].shape, leaf_buffers[i].dtype)
        if room.get(shape_dtype, 0):
            room[shape_dtype] -= 1
            chosen.append(i)
    return frozenset(chosen)
