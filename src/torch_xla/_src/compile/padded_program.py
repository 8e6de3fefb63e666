"""Programs over padded buffers, and which of them a recording can run. See Note [Varying lengths]."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from torch_xla._src.compile import analysis, donation, program_cache, undo, why
from torch_xla._src.compile.plan import Use, uses
from torch_xla._src.compile.program import Inputs, Program, RowError, donatable
from torch_xla._src.graph import contents, families, lengths
from torch_xla._src.graph.families import Plan, Refused, Sample, Structure, Supplied, Template, Varying, agrees
from torch_xla._src.graph.lengths import Dim, Layout, Length, VaryingLengthError, is_static, size_of, static
from torch_xla._src.graph.value import Ref, Row
from torch_xla._src.ops.dtypes import numpy_dtype
from torch_xla._src.ops.lower import load_families, lower
from torch_xla._src.ops.padded import Call, Padded, Scope, determined_by_outputs, rule_of
from torch_xla._src.ops.registry import OutSpec
from torch_xla._src.runtime import metrics

if TYPE_CHECKING:
    from torch_xla._src.compile.launch import Launch


class PaddedInputs(Inputs):
    """Values of what the rows of a template refer to, with their dims.

    floats, ints: what a Plan supplies; the integers begin with the true size of each symbol.
    """

    def __init__(
        self,
        template: Template,
        buckets: Sequence[int],
        leaves: Sequence[Any],
        numbers: tuple[Any, Any, Any],
        prior: Any,
    ) -> None:
        floats, ints, keys = numbers
        super().__init__(leaves, floats, ints, keys, *prior)
        self.scope = Scope(template, buckets, [ints[i] for i in range(len(buckets))])
        self.template = template
        self.supplied = {float: floats, int: ints[len(buckets) :]}
        self.dims = {-1 - i: dims for i, dims in enumerate(template.leaf_dims) if dims is not None}
        for dims in self.dims.values():
            self.scope.see(dims)

    def resolve(self, t: Any) -> Any:
        """As for Inputs; tensors as Padded."""
        kind = type(t)
        if kind is Ref:
            return Padded(super().resolve(t), self.dims[t]) if t in self.dims else super().resolve(t)
        if kind is Supplied:
            return self.supplied[t.kind][t.position]
        if kind is list:
            return [self.resolve(x) for x in t]
        return super().resolve(t)

    def run_call(self, row: Row, call: tuple[list[Any], list[Any]], only_check: bool) -> None:
        """Lowers one row, by its rule if a length has to do with it."""
        args = [self.resolve(t) for t in call[0]]
        kwargs = dict(zip(row.names, [self.resolve(t) for t in call[1]], strict=True))
        key = self.key() if row.random else None
        specs = [None if s is None else OutSpec(s.shape, numpy_dtype(s.dtype)) for s in row.outs]
        try:
            self._check_padded(row, args, kwargs)
            if only_check:
                return
            results = self._lowered(row, args, kwargs, specs, key)
        except Refused:
            raise
        except Exception as error:
            raise RowError(row) from error
        assert len(results) == len(specs)
        for number, result in enumerate(results, row.base):
            self.outs[number] = result.array if type(result) is Padded else result
            if type(result) is Padded:
                self.dims[number] = result.dims
                self._verify(row, number, result)
                self.scope.see(result.dims)
            if self.checks:
                self.checks_before[number] = len(self.checks)

    def _lowered(
        self, row: Row, args: list[Any], kwargs: dict[str, Any], specs: list[OutSpec | None], key: Any
    ) -> list[Any]:
        outs = [self.template.out_sizes(row.base + i) for i in range(len(specs))]
        varies = any(len(set(sizes)) > 1 for out in outs for sizes in out or ())
        if not varies and not _involved((args, list(kwargs.values()))):
            plain = _arrays(args), {k: _arrays(v) for k, v in kwargs.items()}
            with jax.named_scope(row.op._schema.name.replace("::", ".")):
                results = lower(row.op, *plain, specs, key)
            return [r if s is None else Padded(r, tuple(map(static, s.shape))) for r, s in zip(results, specs)]
        rule = rule_of(row.op)
        if rule is None:
            raise Refused(row, "it has no rule for dims of varying length", final=True)
        with jax.named_scope(row.op._schema.name.replace("::", ".")):
            results = rule(Call(self.scope, row, args, kwargs, specs, key))
        return list(results) if isinstance(results, list) else [results]

    def _verify(self, row: Row, number: int, result: Padded) -> None:
        """That a rule gives what PyTorch says of the samples."""
        sizes = self.template.out_sizes(number)
        if sizes is None or [self.scope.vector(dim) for dim in result.dims] != sizes:
            raise Refused(row, "its size depends on the lengths in a way that has no rule")
        assert result.array.shape == self.scope.shape(result.dims), f"{row}: {result.array.shape}, {result.dims}"

    def _check_padded(self, row: Row, args: list[Any], kwargs: dict[str, Any]) -> None:
        if contents.checks_of(row.op) is None:
            return
        plain = _arrays(args), {k: _arrays(v) for k, v in kwargs.items()}
        masks = {id(x.array): self.scope.mask(x.dims) for x in _padded_in((args, list(kwargs.values())))}
        for check, wrong in contents.failing(row.op, *plain):
            mask = masks.get(id(check.values))
            if mask is not None and mask.ndim != wrong.ndim:
                raise Refused(row, "what it is given cannot be checked")
            if id(check.values) not in masks and _involved((args, list(kwargs.values()))):
                raise Refused(row, "what it is given cannot be checked")
            size = self._indexed_size(row, args, check.values)
            if size is not None:
                wrong = (check.values < (-size if check.refused.low < 0 else 0)) | (check.values >= size)
            self.checks.append((row, check.error, check.text))
            self.flags.append((wrong if mask is None else wrong & mask).any())

    def _indexed_size(self, row: Row, args: list[Any], values: Any) -> Any:
        """The true size of the dim that indices are for, if that varies."""
        x = args[0]
        if type(x) is not Padded or x.is_static or row.op._schema.name not in _INDEXED:
            return None
        if type(args[1]) is list:
            axis = next(i for i, index in enumerate(args[1]) if index is not None and index.array is values)
        else:
            axis = args[1] % len(x.dims)
        return None if is_static(x.dims[axis]) else self.scope.true_size(x.dims[axis])


_INDEXED = {
    f"aten::{name}" for name in ("gather", "scatter", "scatter_add", "index_add", "index_select", "index", "index_put")
}


def _arrays(t: Any) -> Any:
    if type(t) is Padded:
        return t.array
    if type(t) is list:
        return [_arrays(x) for x in t]
    return t.values[-1] if type(t) is Varying else t


def _padded_in(t: Any) -> list[Padded]:
    if type(t) is Padded:
        return [t]
    return [x for part in t for x in _padded_in(part)] if type(t) in (list, tuple) else []


def _involved(t: Any) -> bool:
    """Whether nested arguments have to do with lengths."""
    if type(t) is Padded:
        return not t.is_static
    return type(t) is Varying or (type(t) in (list, tuple) and any(map(_involved, t)))


class PaddedProgram(Program):
    """A Program for all recordings of a template whose lengths have the same sizes in buffers.

    out_dims: of the outputs of each row that it runs, by number. equal: see Scope. Both are compared with each recording.
    """

    def __init__(self, template: Template, buckets: tuple[int, ...], *args: Any) -> None:
        self.template, self.buckets = template, buckets
        self.out_dims: dict[int, Layout] = {}
        self.equal: list[tuple[Dim, Dim]] = []
        super().__init__(template.rows, *args)

    def _inputs(self, leaves: dict[int, Any], floats: Any, ints: Any, keys: Any, prior: Any) -> PaddedInputs:
        ordered = [leaves.get(i) for i in range(len(self.template.leaf_dims))]
        return PaddedInputs(self.template, self.buckets, ordered, (floats, ints, keys), prior)

    def _run(self, inputs: PaddedInputs, position: int, only_check: bool) -> None:
        inputs.run_call(self.rows[position], self.template.calls[position], only_check)

    def _ran(self, inputs: PaddedInputs, replaced: undo.Replaced) -> None:
        self.out_dims, self.equal = {n: d for n, d in inputs.dims.items() if n >= 0}, inputs.scope.equal
        for number, held in replaced.items():
            if type(held) is int and {number, held} <= inputs.dims.keys() and inputs.dims[number] != inputs.dims[held]:
                raise Refused(self.rows[-1], "a tensor that is written to changes its padding")

    def serves(self, plan: Plan) -> bool:
        """Whether all that the program takes for granted is true of a recording."""
        sizes = plan.sizes
        shapes = plan.sample.shapes
        return all(agrees(dims, shapes[n] or (), sizes) for n, dims in self.out_dims.items()) and all(
            size_of(a, sizes) == size_of(b, sizes) for a, b in self.equal
        )

    def mark(self, outputs: Sequence[Any], plan: Plan) -> None:
        """Says of the outputs of a run how they are padded."""
        for number, buffer in zip(self.live, outputs):
            dims = self.out_dims.get(number, ())
            if not all(map(is_static, dims)):
                lengths.set_layout(buffer, tuple(tuple(f.renamed(plan.lengths) for f in dim) for dim in dims))


# ---- choosing --------------------------------------------------------------------------------------------------------


# Gives the leaves that may be reused, none of those it is given, and what a program depends on beside rows.
KeyOf = Callable[[Sequence[int]], tuple[tuple[int, ...], Any]]


class Prepared:
    """How a launch that takes padded buffers is to run.

    program, plan: if it runs on them. buffers: those of the leaves, padded for the program, or else not padded.
    lengths: if it runs exactly because nothing is known of its structure yet, the Lengths of its leaves.
    error: what to raise after it has run.
    """

    def __init__(
        self, program: PaddedProgram | None, plan: Plan | None, buffers: list[Any], found: Sequence[Length], error: Any
    ) -> None:
        self.program, self.plan, self.buffers, self.lengths, self.error = program, plan, buffers, found, error

    def mark(self, outputs: Sequence[Any]) -> None:
        """Says of the outputs how they are padded, or might have been."""
        if self.program is not None and self.plan is not None:
            self.program.mark(outputs, self.plan)
        elif self.lengths:
            known = {(b.shape, b.dtype) for b in self.buffers if lengths.supposed_layout_of(b) is None}
            for buffer in outputs:
                if (buffer.shape, buffer.dtype) not in known:  # else it may be a parameter that has been updated
                    lengths.suppose(buffer, self.lengths)


class _Case:
    """A launch with padded leaves: which rows it runs, and the layouts of the leaves that they take."""

    def __init__(self, launch: Launch, layouts: Sequence[Layout | None]) -> None:
        node, numbers = launch.node, tuple(number for number, _ in launch.live)
        self.launch = launch
        self.known = node.padding = node.padding or {}
        # The number of slots says which numbers are slots: Note [Scalar slots].
        run = numbers, undo.key(launch.replaced), len(launch.slots[0]), len(launch.slots[1])
        if run not in self.known:
            rows, wanted = node.path(), [*numbers, *undo.earlier(numbers, launch.replaced)]
            skipped = [u is Use.SKIP for u in uses(rows, wanted)]
            # What tensors that are written to held before: Note [Writes undone].
            needed = [h for n in wanted if type(h := launch.replaced.get(n)) is int and h < 0]
            _, sample = families.describe(rows, skipped, needed=needed, any_leaves=True)
            unused = frozenset(i for i, s in enumerate(sample.leaf_shapes) if s is None)
            self.known[run] = skipped, needed, unused
        self.skipped, self.needed, self.unused = self.known[run]
        self.layouts = [None if i in self.unused else layout for i, layout in enumerate(layouts)]
        self.lengths, self.placed = families.by_position(self.layouts)
        self.key = run, self.placed, tuple((x.size, x.bucket) for x in self.lengths)
        self.kept = [i for i, layout in enumerate(layouts) if layout is not None or i in self.unused]

    def structure(self) -> tuple[Structure, Sample, Plan | None]:
        """What is known of the recording, and the plan by which it ran before."""
        if self.key not in self.known:
            rows = self.launch.node.path()
            described, sample = families.describe(rows, self.skipped, self.lengths, self.placed, self.needed)
            self.known[self.key] = families.structures.setdefault(described, Structure()), sample, None
        structure, sample, plan = self.known[self.key]
        # With the Lengths of this run, so that what it gives is known to vary with what it took.
        return structure, sample._replace(lengths=self.lengths), plan and plan.of(self.lengths)


def prepare(launch: Launch, key_of: KeyOf) -> Prepared | None:
    """How to run a launch; None if none of its leaves is padded. key_of: as Launch.key."""
    layouts = [lengths.layout_of(b) or lengths.supposed_layout_of(b) for b in launch.leaf_buffers]
    if not any(layouts):
        return None
    load_families()
    case = _Case(launch, layouts)
    try:
        chosen = _choose(case, key_of)
    except Refused as refused:
        return Prepared(None, None, _exact(launch), (), _error(refused))
    if chosen is None:
        return Prepared(None, None, _exact(launch), case.lengths, None)
    return Prepared(*chosen, (), None)


def _exact(launch: Launch) -> list[Any]:
    buffers = []
    for buffer in launch.leaf_buffers:
        exact = lengths.exact(buffer)
        buffers.append(buffer if exact is buffer else lengths.to_device(exact))
    return buffers


def _padded(case: _Case) -> list[Any]:
    """The leaves' buffers, those padded that are not but might be."""
    return [
        buffer if layout is None or lengths.layout_of(buffer) is not None else lengths.padded(buffer, layout)
        for buffer, layout in zip(case.launch.leaf_buffers, case.layouts, strict=True)
    ]


def _error(refused: Refused) -> Exception:
    return VaryingLengthError(
        f"{refused} (torch_xla.mark_dynamic). All results have been computed, for exactly this length. Leave out "
        "mark_dynamic, or pad the batch to a few lengths and mask what was added"
    )


def _choose(case: _Case, key_of: KeyOf) -> tuple[PaddedProgram, Plan, list[Any]] | None:
    """The program that a recording runs, how, and on which buffers; None if it has to run exactly. Raises Refused."""
    structure, sample, plan = case.structure()
    buffers = _padded(case)
    if plan is not None and (program := _program(case, plan, buffers, key_of)) is not None:
        return program, plan, buffers
    if not case.lengths or structure.runs_exactly(sample):
        return None
    if structure.refused is not None:
        raise structure.refused
    why = None
    for plan in structure.plans(sample, case.skipped, determined_by_outputs):
        try:
            program = _program(case, plan, buffers, key_of)
        except Refused as refused:
            why = why or refused
            if refused.final:
                structure.refused = refused
                raise
            continue
        if program is not None:
            structure.served(plan)
            case.known[case.key] = structure, sample, plan
            return program, plan, buffers
    structure.unsolved(sample, why)
    return None


def _program(case: _Case, plan: Plan, buffers: list[Any], key_of: KeyOf) -> PaddedProgram | None:
    """The program for a plan, built if there is none; None if it turns out to be wrong for it. Raises Refused."""
    launch = case.launch
    floats, ints = plan.supplied(launch.slots)
    launch.supply(floats, [*plan.sizes, *ints])
    dead, rest = key_of(case.kept)
    key = plan.buckets, rest
    kept = program_cache.find(launch.node, (plan.template, key))
    if isinstance(kept, PaddedProgram):
        metrics.count("CachedCompile")
        donation.remember(launch, launch.unheld, dead, kept)
        return kept
    program = plan.template.programs.get(key)
    if program is None:
        program = plan.template.programs[key] = _build(case, plan, buffers, dead)
    if not program.serves(plan):
        return None
    program_cache.add(launch.node, (plan.template, key), program)
    donation.remember(launch, launch.unheld, dead, program)
    return program


def _build(case: _Case, plan: Plan, buffers: list[Any], dead: tuple[int, ...]) -> PaddedProgram:
    launch = case.launch
    numbers = tuple(number for number, _ in launch.live)
    donated = donatable([value.spec for _, value in launch.live], dead, buffers)
    reason = why.explain(launch, numbers, donated)
    start = time.perf_counter_ns()
    try:
        program = PaddedProgram(
            plan.template, plan.buckets, buffers, numbers, donated, launch.counts(), launch.replaced,
            bool(launch.prior), case.unused,
        )  # fmt: skip
    except Refused:
        raise
    except Exception as error:
        row = error.row if isinstance(error, RowError) else launch.node
        cause = error.__cause__ or error
        raise Refused(row, f"it does not compile for dims of varying length ({cause!r})") from error
    analysis.compiled(launch, program, time.perf_counter_ns() - start, reason)
    return program
