"""Recordings that differ in nothing but lengths: what in them depends on the lengths, and how.

A structure is what two recordings have in common whose sizes differ: ops and their lines, which outputs they take,
constants that are no numbers, shapes of leaves that are not padded. A `Template` is made from several recordings
(samples) of a structure, and says of each number in it that it is constant, or which function of the lengths it is.
Whether that is a law or a coincidence of the samples does not matter: a recording is served by a program of the template
only if all its numbers and sizes agree (`Template.plan`, `PaddedProgram.serves`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch_xla._src.graph.lengths import Affine, Dim, Layout, Length, dim_of, size_of, static
from torch_xla._src.graph.opinfo import op_info
from torch_xla._src.graph.value import Ref, Row, Slot

_MAX_SAMPLES = 4  # recordings that a template is made from
_MAX_TEMPLATES = 8  # of a structure
_MAX_UNSOLVED = 3  # recordings that run exactly before it is an error that nothing can be told from them


class Slotted(NamedTuple):
    """A number of a recording that is not part of it: which of the slots of its type holds it. See Note [Scalar slots]."""

    kind: type
    position: int


Number = int | float | Slotted
Visit = Callable[[Any, bool], Any]


class Refused(Exception):
    """A recording cannot be computed on padded buffers; `row` says where, `reason` why. final: whatever its sizes are."""

    def __init__(self, row: Row, reason: str, final: bool = False) -> None:
        super().__init__(f"{row.op._schema.name} at {row.line or 'an unknown line'}: {reason}")
        self.row, self.reason, self.final = row, reason, final


class Varying(NamedTuple):
    """An integer of a call that depends on the lengths: what it was in each sample, and as a function, if that is known."""

    values: tuple[int, ...]
    affine: Affine | None


class Supplied(NamedTuple):
    """A number of a call that varies and may be an input of the program: the position among those of its type."""

    kind: type
    position: int


class Sample(NamedTuple):
    """What a recording does not share with others of its structure.

    rows: the recording. lengths: the Lengths of its leaves, in order of appearance. layouts: of its leaves, with
    positions in `lengths` as keys; None for one that is not padded. numbers: of its calls, in order. shapes: of its
    outputs by number, None for what is no tensor. leaf_shapes: of its leaves. What nobody needs is left out: None for
    the shapes of such outputs and leaves.
    """

    rows: list[Row]
    lengths: tuple[Length, ...]
    layouts: tuple[Layout | None, ...]
    numbers: tuple[Number, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    leaf_shapes: tuple[tuple[int, ...] | None, ...]


def by_position(layouts: Sequence[Layout | None]) -> tuple[tuple[Length, ...], tuple[Layout | None, ...]]:
    """The Lengths in layouts of leaves, in order of appearance, and the layouts with their positions as keys."""
    positions: dict[Length, int] = {}
    for layout in layouts:
        for dim in layout or ():
            for factor in dim:
                for length, _ in factor.terms:
                    positions.setdefault(length, len(positions))
    renamed = tuple(layout and tuple(tuple(f.renamed(positions) for f in dim) for dim in layout) for layout in layouts)
    return tuple(positions), renamed


def mapped(t: Any, slottable: bool, visit: Visit) -> Any:
    """A (nested) argument template with each number and Slot replaced by what `visit(it, slottable)` returns."""
    kind = type(t)
    if kind is int or kind is Slot or (kind is float and slottable):
        return visit(t, slottable)
    if kind is tuple or kind is list:
        return kind(mapped(x, slottable, visit) for x in t)
    return t


def mapped_row(row: Row, visit: Visit) -> tuple[list[Any], list[Any]]:
    """The same for all arguments of a row, positional ones and others."""
    info = op_info(row.op)
    args = [mapped(t, s, visit) for t, s in zip(row.args, info.slottable)]
    kwargs = [mapped(t, info.slottable_kwargs.get(name, False), visit) for name, t in zip(row.names, row.kwargs)]
    return args, kwargs


def _skeleton(t: Any) -> Any:
    if isinstance(t, (tuple, list)):
        return type(t).__name__, tuple(map(_skeleton, t))
    if isinstance(t, (float, complex)):
        return type(t), repr(t)
    return type(t), t


# Arguments that name dims and the like: recordings that differ in them are not of one structure.
_STRUCTURAL = {"dim", "dim0", "dim1", "dimension", "dims", "k", "normalized_shape", "reduction", "self"}


@cache
def _names(op: Any) -> tuple[str, ...]:
    return tuple(a.name for a in op._schema.arguments if not a.kwarg_only)


def describe(
    rows: list[Row],
    skipped: Sequence[bool] = (),
    lengths: tuple[Length, ...] = (),
    layouts: tuple[Layout | None, ...] = (),
    needed: Iterable[int] = (),
    any_leaves: bool = False,
) -> tuple[Any, Sample]:
    """The structure of a recording, something hashable, and the Sample that it is.

    skipped: for each row, whether it is not run (none of them by default). lengths, layouts: as in Sample.
    needed: leaves, as in Ref, that are used by more than rows.
    any_leaves: recordings whose leaves differ in size have one structure even where these are not padded.
    """
    numbers: list[Number] = []
    parts: list[Any] = [layouts]
    used = set(needed)
    slots = {float: 0, int: 0}
    skipped = skipped or [False] * len(rows)
    for row, skip in zip(rows, skipped, strict=True):
        parts.append(_passed_over(row, slots) if skip else _described(row, numbers, used, slots))
    leaves = [s for row in rows for s in row.leaves]
    for leaf, spec in enumerate(leaves):
        if -1 - leaf in used:
            loose = any_leaves or layouts[leaf] is not None
            parts.append((leaf, len(spec.shape) if loose else spec.shape, spec.dtype))
    shapes = tuple(
        None if skip or s is None else s.shape for row, skip in zip(rows, skipped, strict=True) for s in row.outs
    )
    leaf_shapes = tuple(s.shape if -1 - leaf in used else None for leaf, s in enumerate(leaves))
    return tuple(parts), Sample(rows, lengths, layouts, tuple(numbers), shapes, leaf_shapes)


def _described(row: Row, numbers: list[Number], used: set[int], slots: dict[type, int]) -> Any:
    """What a row shares with those of its structure. Adds its numbers, the leaves that it takes, and its slots."""

    def visit(number: Any, slottable: bool) -> Any:
        if type(number) is not Slot:
            numbers.append(number)
            return type(number)
        numbers.append(Slotted(number.kind, slots[number.kind]))
        slots[number.kind] += 1
        return number.kind

    args, kwargs = mapped_row(row, visit)
    args = [_skeleton(t if name in _STRUCTURAL else a) for t, a, name in zip(row.args, args, _names(row.op))]
    outs = tuple(None if s is None else (len(s.shape), s.dtype) for s in row.outs)
    used.update(ref for ref in _refs((row.args, row.kwargs)) if ref < 0)
    return row.op, row.line, tuple(args), row.names, _skeleton(kwargs), outs


def _passed_over(row: Row, slots: dict[type, int]) -> Any:
    """What matters of a row that is not run: how many outputs and keys come before those of the next. Adds its slots."""
    for slot in _slots((row.args, row.kwargs)):
        slots[slot.kind] += 1
    return len(row.outs), row.random


def _refs(t: Any) -> list[int]:
    return [ref for x in t for ref in _refs(x)] if type(t) in (tuple, list) else [t] if type(t) is Ref else []


def _slots(t: Any) -> list[Slot]:
    return [slot for x in t for slot in _slots(x)] if type(t) in (tuple, list) else [t] if type(t) is Slot else []


class Plan(NamedTuple):
    """How a recording runs on padded buffers.

    lengths: one Length for each symbol of the template.
    """

    template: Template
    lengths: tuple[Length, ...]
    sample: Sample

    def supplied(self, slots: tuple[Sequence[float], Sequence[int]]) -> tuple[list[float], list[int]]:
        """What the Supplied numbers are in a run whose slots hold these floats and integers."""
        held = {float: slots[0], int: slots[1]}
        found: dict[type, list[Any]] = {float: [], int: []}
        for position in self.template.supplied:
            number = self.sample.numbers[position]
            if type(number) is Slotted:
                number = held[number.kind][number.position]
            found[type(number)].append(number)
        return found[float], found[int]

    def of(self, lengths: Sequence[Length]) -> Plan:
        """The plan of another run of the same recording, with the Lengths of its leaves."""
        return self._replace(lengths=self.template.symbols_of(lengths))

    @property
    def buckets(self) -> tuple[int, ...]:
        """The size in buffers, by symbol."""
        return tuple(length.bucket for length in self.lengths)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The true size, by symbol."""
        return tuple(length.size for length in self.lengths)


class Template:
    """What the samples of a structure have in common, as functions of symbols: lengths that may differ from each other.

    sizes: for each sample the value of each symbol. calls: for each row its arguments, positional ones and others, with
    Varying and Supplied in place of numbers that vary; nothing for a row that is not run. leaf_dims: the Layout of each
    leaf, None for one that is not used.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        skipped: Sequence[bool],
        determined_by_outputs: Callable[[Any], frozenset[Any]],
    ) -> None:
        self.samples, self.rows, self.skipped = list(samples), samples[-1].rows, skipped
        self.group = self._symbols()
        self.sizes = [tuple(s.lengths[p].size for p in self._first) for s in samples]
        self.supplied: list[int] = []  # positions of Supplied numbers
        self._known: list[tuple[int, Affine]] = []  # numbers to verify that vary; all others are as in the first sample
        self._free: set[int] = set()  # numbers that output shapes determine, or that are not used
        self.calls = self._calls(determined_by_outputs)
        self.leaf_dims = self._leaf_dims()
        self.programs: dict[Any, Any] = {}

    def _symbols(self) -> tuple[int, ...]:
        """The symbol of each position in `Sample.lengths`: one for lengths that are equal in all samples."""
        known: dict[Any, int] = {}
        self._first: list[int] = []
        group = []
        for position in range(len(self.samples[0].lengths)):
            key = tuple((s.lengths[position].size, s.lengths[position].bucket) for s in self.samples)
            if key not in known:
                known[key] = len(known)
                self._first.append(position)
            group.append(known[key])
        return tuple(group)

    def _calls(self, determined_by_outputs: Callable[[Any], frozenset[Any]]) -> list[tuple[list[Any], list[Any]]]:
        vectors = list(zip(*(s.numbers for s in self.samples), strict=True))
        counts = {float: 0, int: 0}
        position = 0
        free: bool

        def visit(number: Any, slottable: bool) -> Any:
            nonlocal position
            values, position = vectors[position], position + 1
            if free:
                self._free.add(position - 1)
            slotted = any(type(v) is Slotted for v in values)
            if not slotted and all(map(_same, values, values[1:])):
                return number
            if (slottable or slotted) and not free:
                kind = values[0].kind if type(values[0]) is Slotted else type(values[0])
                self.supplied.append(position - 1)
                counts[kind] += 1
                return Supplied(kind, counts[kind] - 1)
            affine = None if slotted else self.fit(values)
            if affine is None:  # no rule computes with it: `Call.number` refuses
                self._free.add(position - 1)
            elif not free:
                self._known.append((position - 1, affine))
            return Varying(values, affine)

        calls: list[tuple[list[Any], list[Any]]] = []
        for row, skip in zip(self.rows, self.skipped, strict=True):
            if skip:
                calls.append(([], []))
                continue
            info, taken = op_info(row.op), determined_by_outputs(row.op)
            args: list[Any] = []
            kwargs: list[Any] = []
            for place, (t, slottable) in enumerate(zip(row.args, info.slottable)):
                free = place in taken
                args.append(mapped(t, slottable, visit))
            for name, t in zip(row.names, row.kwargs):
                free = name in taken
                kwargs.append(mapped(t, info.slottable_kwargs.get(name, False), visit))
            calls.append((args, kwargs))
        return calls

    def _leaf_dims(self) -> list[Layout | None]:
        found: list[Layout | None] = []
        for leaf, shape in enumerate(self.samples[0].leaf_shapes):
            layout = self.samples[0].layouts[leaf]
            if layout is not None:
                found.append(tuple(tuple(f.renamed(self.group) for f in dim) for dim in layout))
            else:
                found.append(None if shape is None else tuple(map(static, shape)))
        return found

    def fit(self, values: Sequence[int]) -> Affine | None:
        """A function of the symbols that gives these values for the samples, the simplest there is; None if none does."""
        if all(v == values[0] for v in values):
            return Affine(values[0])
        symbols = range(len(self._first))
        for symbol in symbols:
            if (found := self._fit_to(symbol, values)) is not None:
                return found
        for symbol in symbols:
            rest = [v - sizes[symbol] for v, sizes in zip(values, self.sizes)]
            for other in range(symbol + 1, len(symbols)):
                if (found := self._fit_to(other, rest)) is not None:
                    return Affine(found.const, ((symbol, 1), *found.terms))
        return None

    def _fit_to(self, symbol: int, values: Sequence[int]) -> Affine | None:
        sizes = [s[symbol] for s in self.sizes]
        other = next((i for i, n in enumerate(sizes) if n != sizes[0]), None)
        if other is None:
            return None
        factor, rest = divmod(values[other] - values[0], sizes[other] - sizes[0])
        const = values[0] - factor * sizes[0]
        if rest or factor <= 0 or any(factor * n + const != v for n, v in zip(sizes, values)):
            return None
        return Affine(const, ((symbol, factor),))

    def fit_dim(self, values: Sequence[int]) -> Dim | None:
        """The same as a Dim, which may be a multiple of the product of two symbols."""
        affine = self.fit(values)
        if affine is not None:
            return dim_of([affine])
        symbols = range(len(self._first))
        for a, b in ((a, b) for a in symbols for b in symbols if a <= b):
            products = [sizes[a] * sizes[b] for sizes in self.sizes]
            factor = values[0] // max(products[0], 1)
            if factor and all(factor * p == v for p, v in zip(products, values)):
                return dim_of([Affine(factor), Affine(0, ((a, 1),)), Affine(0, ((b, 1),))])
        return None

    def out_sizes(self, number: int) -> list[tuple[int, ...]] | None:
        """For each dim of an output its size in each sample; None if it is no tensor."""
        if self.samples[0].shapes[number] is None:
            return None
        return list(zip(*(s.shapes[number] for s in self.samples), strict=True))

    def symbols_of(self, lengths: Sequence[Length]) -> tuple[Length, ...]:
        """One Length for each symbol, from those of a recording."""
        return tuple(lengths[p] for p in self._first)

    def plan(self, sample: Sample) -> Plan | None:
        """How a recording of the structure runs; None if its numbers are not those of the template."""
        lengths = self.symbols_of(sample.lengths)
        for length, symbol in zip(sample.lengths, self.group):
            if (length.size, length.bucket) != (lengths[symbol].size, lengths[symbol].bucket):
                return None
        sizes = [length.size for length in lengths]
        varying = {*self.supplied, *self._free, *(p for p, _ in self._known)}
        for position, (a, b) in enumerate(zip(sample.numbers, self.samples[0].numbers)):
            if position not in varying and not _same(a, b):
                return None
        if any(sample.numbers[p] != affine.at(sizes) for p, affine in self._known):
            return None
        for dims, shape in zip(self.leaf_dims, sample.leaf_shapes):
            if dims is not None and (shape is None or not agrees(dims, shape, sizes)):
                return None
        return Plan(self, lengths, sample)


def agrees(dims: Layout, shape: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether a shape is what its dims say for these values of the symbols."""
    return len(dims) == len(shape) and all(size_of(d, sizes) == n for d, n in zip(dims, shape))


def _same(a: Number, b: Number) -> bool:
    return type(a) is type(b) and ((a == b and repr(a) == repr(b)) or (a != a and b != b))


class Structure:
    """All that is known of the recordings of one structure.

    templates: those that have served, the last one first. refused: why no recording can run on padded buffers, if that
    is so whatever its sizes are.
    """

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self.refused: Refused | None = None
        self._samples: list[Sample] = []  # to make templates from
        self._exact: list[Sample] = []  # what has run without padding

    def runs_exactly(self, sample: Sample) -> bool:
        """Whether a recording runs for its exact shapes: it is the first, or has run so before."""
        if not self._exact:
            self._exact.append(sample)
            self._samples.append(sample)
        return any(_equal(sample, other) for other in self._exact)

    def plans(
        self, sample: Sample, skipped: Sequence[bool], determined_by_outputs: Callable[[Any], frozenset[Any]]
    ) -> Iterator[Plan]:
        """Ways to run a recording, to be tried in turn: by what is known, then by what may be learnt from it."""
        for template in self.templates:
            if (plan := template.plan(sample)) is not None:
                yield plan
        others = self._samples[-_MAX_SAMPLES:]
        # All that has been seen is most telling, unless it comes from different models.
        choices = [[*others, sample], [others[-1], sample]]
        for samples in choices[: 0 if len(self.templates) == _MAX_TEMPLATES else min(len(others), 2)]:
            template = Template(samples, skipped, determined_by_outputs)
            if (plan := template.plan(sample)) is not None:
                yield plan

    def served(self, plan: Plan) -> None:
        """Remembers a plan that has been found right."""
        if plan.template not in self.templates:
            self.templates.insert(0, plan.template)
            self._samples.append(plan.sample)

    def unsolved(self, sample: Sample, why: Refused | None) -> None:
        """No plan has been right: the recording runs exactly. Raises what is to be told the user, if it is time."""
        self._samples.append(sample)
        if len(self._exact) < _MAX_UNSOLVED:
            self._exact.append(sample)
            return
        raise why or Refused(sample.rows[-1], "its sizes do not depend on the marked lengths in a way that can be told")


def _equal(a: Sample, b: Sample) -> bool:
    return (
        a.numbers == b.numbers
        and a.shapes == b.shapes
        and a.leaf_shapes == b.leaf_shapes
        and [x.size for x in a.lengths] == [x.size for x in b.lengths]
    )


structures: dict[Any, Structure] = {}
