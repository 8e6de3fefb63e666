"""Steps that cost the host next to nothing: the program of a recording that has proven stable, run without its Python.

Note [Frozen steps]
`torch_xla.compile(f, full_graph=True)` watches calls of `f` (`observe.py`). When two calls in a row have recorded the
same rows, read the same tensors, written the same tensors and returned results of the same rows, and have changed
nothing else that can be seen, `f` is frozen: the next call passes the contents of those tensors to the compiled program,
and gives its results to those that were written and to the caller. Then

* parameters, buffers, optimizer state, gradients and their version counters are what they would be, and so is the random
  state; buffers that are overwritten are donated as after a recorded call (Note [Donation]), and only if nobody else
  holds them;
* learning rates are read anew (Note [Learning rates of frozen steps]);
* what the Python of `f` could have read is compared (Note [What a frozen step guards]), and so are shapes, dtypes, which
  tensors are the same, which require grad, and the settings of `modes.py`. If something differs, the call runs in
  Python, as the first did. Several frozen forms of a function are kept, for training and evaluation, or a last short batch.

What `f` does besides (printing, logging to a file) happens only while it runs in Python, as under jax.jit.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from torch_xla._src.compile import donation, poison
from torch_xla._src.compile.launch import Launch
from torch_xla._src.compile.program import Program, donatable
from torch_xla._src.device import writes
from torch_xla._src.device.aliasing import use_count_alone
from torch_xla._src.graph import lengths
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import XlaTensor, inner_of, inner_of_value, value_of
from torch_xla._src.graph.value import Value
from torch_xla._src.runtime import metrics, rng, transfer
from torch_xla._src.step import learning_rate, modes
from torch_xla._src.step.arguments import Flat
from torch_xla._src.step.observe import Observation, Result

_spec_of, _buffer_of = attrgetter("spec"), attrgetter("buffer")
_requires_grad_of, _grad_of, _cdata_of = attrgetter("requires_grad"), attrgetter("grad"), attrgetter("_cdata")
_hooks_of = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
_sync = torch._functionalize_sync
_from_functional = torch._from_functional_tensor
_storage_use_count = torch._C._storage_Use_Count
MISS = object()  # what a frozen step answers if it is not its case


def _nothing() -> Any:
    """Stands for the weak reference of a leaf: who holds it is not noted."""


class _Relaunch(Launch):
    """A launch of a recording that has not been recorded again."""

    def __init__(self, frozen: Frozen, leaf_buffers: list[Any], replaced: Any) -> None:
        self.node, self.leaf_buffers, self.live, self.views = frozen.seen.node, leaf_buffers, [], []
        self.buffers, self.prepared = leaf_buffers, None
        self.prior = poison.prior()
        self.replaced = replaced
        self.values: Any = {}
        self.leaf_values: Any = [_nothing] * len(leaf_buffers)
        self.frozen = frozen
        self.done = False

    def note_outputs(self) -> None:
        """What `poison` finds the Values by, if it is to be told of this launch."""
        if poison.concerns(self.frozen.program.checks):
            self.values = {number: weakref.ref(value) for number, value in self.live}

    def _choose(self) -> Program:
        metrics.count("CachedCompile")
        program = self.frozen.program
        donation.remember(self, [*program.donated], tuple(program.donated), program)
        return program


@cache
def _sole_counts() -> tuple[int, int, set[Any]]:
    """Reference counts, as `Frozen` takes them, of a Value that one tensor holds, of its buffer, and of a gradient."""
    owner = torch.nn.Parameter(torch.zeros(1).to("xla"))
    owner.grad = torch.zeros(1).to("xla")
    values = [inner_of(owner).value]
    buffers = [v.buffer for v in values]
    grads = list(map(_grad_of, [owner]))
    return next(map(sys.getrefcount, values)), next(map(sys.getrefcount, buffers)), _counts(grads)


def _counts(grads: list[Any]) -> set[Any]:
    """How many hold a gradient, in Python and in C++, and its storage: all that there are among these."""
    storages = map(_cdata_of, map(torch.Tensor.untyped_storage, grads))
    return {*zip(map(sys.getrefcount, grads), map(torch.Tensor._use_count, grads), map(_storage_use_count, storages))}


def _inners(places: list[Any]) -> list[XlaTensor] | None:
    """The inner tensors, up to date; None if one of them has left the device."""
    try:
        for _ in map(_sync, places):
            pass
        inners = list(map(_from_functional, places))
    except RuntimeError:
        return None
    return inners if set(map(type, inners)) <= {XlaTensor} else None


def _kinds(replaced: dict[int, Any]) -> dict[int, Any]:
    return {n: "buffer" if type(held) is tuple else held for n, held in replaced.items()}


class Frozen:
    """A step whose Python need not run. Made of two observed calls that agree; called with the arguments of a third."""

    def __init__(self, first: Observation, second: Observation, places: Sequence[torch.Tensor], flat: Flat) -> None:
        self.seen = seen = second
        self.numbers = learning_rate.narrowed(first.numbers, second.numbers) or []
        self.rates: list[float] | None = None
        # For each group, whether another rate of it has been seen.
        self.followed = list(map(operator.ne, first.rates, second.rates))
        self.floats: list[float] | None = None
        self.escaped = first.escaped or second.escaped
        self.failures = poison.num_failed
        self.objects = [id(x) for x in flat.objects]
        self.groups = learning_rate.groups_of(seen.reach.optimizers)
        self.xla_args = [i for i, t in enumerate(flat.tensors) if t.device.type == "xla"]
        self.owners = [g.place for g in seen.gradients]
        num_reached = len(seen.reach.tensors)
        self.leaf_args = [self.xla_args[owner - num_reached] for owner in self.owners if owner >= num_reached]
        self.hooks = [_hooks_of(places[owner]) for owner in self.owners]
        self.had_gradients = [g.before for g in seen.gradients]
        self.made: list[Any] = []  # weak references to gradients that were made here, and are no views
        # Gradients that are read, among the inputs of the step, follow the other tensors.
        self.read_gradients = sorted({i for kind, i in seen.sources if kind == "gradient"})
        at = {owner: len(places) + n for n, owner in enumerate(self.read_gradients)}
        self.leaves = [(kind, i) if kind != "gradient" else ("place", at[i]) for kind, i in seen.sources]
        self.leaves_are_places = all(kind == "place" for kind, _ in self.leaves)
        self.specs = [*seen.specs, *(seen.leaf_specs[seen.sources.index(("gradient", i))] for i in self.read_gradients)]
        self.literals = [transfer.upload(t) for t in seen.literals]
        # Outputs, by their positions among those that the program returns.
        new = [g for g in seen.gradients if g.number is not None]
        numbers = {n for _, n in seen.written} | {g.number for g in new} | {r.number for r in seen.results}
        self.live = sorted(n for n in numbers if n is not None)
        order = self.order = {number: i for i, number in enumerate(self.live)}
        specs = [spec for row in seen.node.path() for spec in row.outs]
        self.out_specs: list[Any] = [specs[number] for number in self.live]
        self.written = [(place, order[number]) for place, number in seen.written]
        self.fresh = [(g.place, order[g.number]) for g in new if g.number is not None and not g.in_place]
        self.in_place = [(g.place, order[g.number]) for g in new if g.number is not None and g.in_place]
        self.dropped = [g.place for g in seen.gradients if g.before and not g.kept and g.number is None]
        everything = self._places(flat)
        self.program = self._choose_program(self._buffers([value_of(t) for t in everything], flat))
        results = {r.number for r in seen.results}
        numbers_written = [number for _, number in seen.written]
        self.reused = [
            (place, order[n]) for place, n in seen.written if numbers_written.count(n) == 1 and n not in results
        ]
        self.rebound = [pair for pair in self.written if pair not in self.reused]
        self.new = sorted(set(range(len(self.live))) - {output for _, output in self.reused})
        self.given = sorted(self.leaves[leaf][1] for leaf in self.program.donated if self.leaves[leaf][0] == "place")
        self.sole_values = sorted({*self.given, *(place for place, _ in self.reused)})

    def _choose_program(self, buffers: list[Any]) -> Program:
        """The program of the recorded calls, if it has the outputs and the donation that are needed; else a new one."""
        seen, num_places = self.seen, len(self.seen.specs)
        results = {r.number for r in seen.results}
        overwritten = {place for place, number in seen.written if number not in results}
        lost = {g.place for g in seen.gradients if not g.kept and not g.in_place}
        overwritten |= {num_places + n for n, owner in enumerate(self.read_gradients) if owner in lost}
        allowed = [
            n for n, (kind, i) in enumerate(self.leaves) if kind == "upload" or (kind == "place" and i in overwritten)
        ]
        watched = bool(poison.prior())
        counts = len(self.numbers), len(seen.ints), len(seen.keys)
        for program in seen.node.programs.values():
            if type(program) is not Program:  # one over padded buffers
                continue
            same = list(program.live) == self.live and program.counts == counts and program.watched == watched
            if same and program.donated <= set(allowed):
                return program
        launch = _Relaunch(self, buffers, _kinds(seen.replaced))
        launch.inputs([0.0] * counts[0], seen.ints, [(0, 0)] * counts[2])  # as many as there will be
        return launch.build(tuple(self.live), donatable(self.out_specs, allowed, buffers))

    def refine(self, another: Observation) -> bool:
        """Takes in a recorded call that agrees: its numbers tell more about what they are. False if they are not known."""
        self.numbers = learning_rate.narrowed(self.numbers, another.numbers) or []
        self.followed = list(map(operator.or_, self.followed, map(operator.ne, another.rates, self.seen.rates)))
        self.escaped |= another.escaped
        self.rates = self.floats = None
        self.failures = poison.num_failed
        return len(self.numbers) == len(another.numbers)

    # ---- running ---------------------------------------------------------------------------------------------------

    def __call__(self, flat: Flat) -> Any:
        """Runs the program in place of the step. MISS if this is not the case that was frozen; then nothing has happened.

        flat: the arguments, whose structure has been compared.
        """
        seen = self.seen
        if modes.current() != seen.modes or poison.num_failed != self.failures or not seen.reach.unchanged():
            return MISS
        if self.leaf_args and not all(flat.tensors[i].is_leaf for i in self.leaf_args):
            return MISS
        with RECORDER.lock:
            floats, places = self._floats(), self._places(flat)
            if (
                floats is None
                or donation.are_declared()
                or not self._fits(places)
                or bool(poison.prior()) != self.program.watched
            ):
                return MISS
            inners = _inners(places)
            if inners is None:
                return MISS
            values = [inner.value for inner in inners]
            specs = list(map(_spec_of, values))
            if not all(map(is_, specs, self.specs)) and specs != self.specs:
                return MISS
            if any(values[i] is not values[j] for i, j in seen.alike):
                return MISS
            buffers = list(map(_buffer_of, values))
            if any(map(is_, buffers, repeat(None))):
                if any(value.error is not None for value in values):
                    return MISS
                buffers = list(map(RECORDER.buffer, values))
            if lengths.in_use and any(map(lengths.layout_of, buffers)):  # Note [Varying lengths]
                return MISS
            if self.sole_values:
                sole_value, sole_buffer, _ = _sole_counts()
                held, of_buffers = list(map(sys.getrefcount, values)), list(map(sys.getrefcount, buffers))
                if max(map(held.__getitem__, self.sole_values)) > sole_value:
                    return MISS
                if max(map(of_buffers.__getitem__, self.given), default=0) > sole_buffer:
                    return MISS
            leaves = self._leaves(buffers, flat)
            return self._run(places, inners, values, buffers, leaves, floats)

    def _places(self, flat: Flat) -> list[Any]:
        """The tensors that the step reads or writes: those it reaches, arguments, gradients that it reads."""
        places: list[Any] = [*self.seen.reach.tensors, *(flat.tensors[i] for i in self.xla_args)]
        return places + [places[owner].grad for owner in self.read_gradients]

    def _fits(self, places: list[Any]) -> bool:
        """Whether tensors require grad, have gradients and hooks, and are alone in their storage, as when it was observed."""
        known = places[: len(self.seen.specs)]
        owners = list(map(known.__getitem__, self.owners))
        if (
            list(map(_requires_grad_of, known)) != self.seen.requires_grad
            or list(map(_hooks_of, owners)) != self.hooks
            or [grad is not None for grad in map(_grad_of, owners)] != self.had_gradients
        ):
            return False
        written = [known[place] for place, _ in self.written]
        storages = map(_cdata_of, map(torch.Tensor.untyped_storage, written))
        return max(map(_storage_use_count, storages), default=0) <= use_count_alone()

    def _floats(self) -> list[float] | None:
        rates = [group["lr"] for group in self.groups]
        if rates != self.rates:
            if any(type(rate) is not float for rate in rates):
                return None
            changed = map(operator.ne, rates, self.seen.rates)
            if any(new and (self.escaped or not known) for new, known in zip(changed, self.followed)):
                return None
            self.floats, self.rates = learning_rate.numbers(self.numbers, rates), rates
        return self.floats

    def _buffers(self, values: list[Value], flat: Flat) -> list[Any]:
        """The leaves of the program, for a first look at them."""
        return self._leaves([v.buffer if v.buffer is not None else RECORDER.buffer(v) for v in values], flat)

    def _leaves(self, buffers: list[Any], flat: Flat) -> list[Any]:
        if self.leaves_are_places:
            return [buffers[i] for _, i in self.leaves]
        return [
            buffers[i]
            if kind == "place"
            else self.literals[i]
            if kind == "literal"
            else transfer.upload(flat.tensors[i])
            for kind, i in self.leaves
        ]

    def _replaced(self, buffers: list[Any]) -> dict[int, Any]:
        """As `Recorder.replaced`. See Note [Writes undone]."""
        if not (self.program.checks or self.program.watched):
            return {}
        return {n: buffers[held[1]] if type(held) is tuple else held for n, held in self.seen.replaced.items()}

    def _run(
        self,
        places: list[Any],
        inners: list[XlaTensor],
        values: list[Value],
        buffers: list[Any],
        leaves: list[Any],
        floats: list[float],
    ) -> Any:
        seen = self.seen
        launch = _Relaunch(self, leaves, self._replaced(buffers))
        fresh: list[Any] = [None] * len(self.live)
        for output in self.new:
            fresh[output] = Value(self.out_specs[output])
        kept = [buffers[place] for place, _ in self.reused]
        for place, output in self.reused:  # nobody else holds these Values, so they can hold what is new
            fresh[output] = value = values[place]
            value.buffer = None
        del buffers
        self._new_gradients(places, fresh)
        launch.live = list(zip(self.live, fresh))
        launch.note_outputs()
        start = rng.get_state() if seen.keys_used else 0
        launch.inputs(floats, seen.ints, [rng.key_of(rng.advanced(start, n)) for n in seen.keys])
        RECORDER.num_cuts += 1
        try:
            launch.run()
        finally:
            if not launch.done:
                # Interrupted before it began: gradients are gone, as after an interrupted backward pass.
                for place, _ in self.fresh:
                    places[place].grad = None
                for (place, _), buffer in zip(self.reused, kept):
                    values[place].buffer = buffer
            else:
                if seen.keys_used:
                    rng.set_state(rng.advanced(start, seen.keys_used))
                for place, output in self.rebound:
                    inners[place].value = fresh[output]
                for place, output in self.in_place:
                    writes.write_value(places[place].grad, fresh[output])
        del launch, leaves, kept
        increment_version(
            [places[place] for place, _ in self.written] + [places[place].grad for place, _ in self.in_place]
        )
        metrics.count("FrozenStep")
        result = self._result(places, fresh)
        poison.settle()
        return result

    def _new_gradients(self, places: list[Any], fresh: list[Value]) -> None:
        """Gives tensors their new gradients, and lets go of the old ones before the program runs: their memory is needed."""
        for place in self.dropped:
            places[place].grad = None
        tensors = [places[place] for place, _ in self.fresh]
        grads = list(map(_grad_of, tensors))
        if self._are_reusable(grads):
            for _ in map(_sync, grads):
                pass
            for inner, (_, output) in zip(map(_from_functional, grads), self.fresh):
                inner.value = fresh[output]
            return
        del grads
        for tensor, (_, output) in zip(tensors, self.fresh):
            tensor.grad = torch._to_functional_tensor(inner_of_value(fresh[output]))
        self.made = [weakref.ref(tensor.grad) for tensor in tensors]

    def _are_reusable(self, grads: list[Any]) -> bool:
        """Whether gradients are those that this made at the last call, and nobody else holds one or shows its storage."""
        return (
            len(grads) == len(self.made)
            and all(map(is_, [ref() for ref in self.made], grads))
            and _counts(grads) <= _sole_counts()[2]
            and [_from_functional(grad).value.spec for grad in grads]
            == [self.out_specs[output] for _, output in self.fresh]
        )

    def _result(self, places: list[torch.Tensor], fresh: list[Value]) -> Any:
        tensors: list[torch.Tensor] = []
        for result in self.seen.results:
            tensors.append(tensors[result.same] if result.same is not None else self._tensor(result, places, fresh))
        if self.seen.result_tree.is_leaf() and tensors:
            return tensors[0]
        remaining = iter(tensors)
        leaves = [next(remaining) if constant is None else constant[1] for constant in self.seen.constants]
        return pytree.tree_unflatten(leaves, self.seen.result_tree)

    def _tensor(self, result: Result, places: list[torch.Tensor], fresh: list[Value]) -> torch.Tensor:
        if result.place is not None:
            return places[result.place]
        if result.gradient is not None:
            return places[result.gradient].grad
        assert result.number is not None
        with torch.inference_mode() if result.inference else contextlib.nullcontext():
            tensor = torch._to_functional_tensor(inner_of_value(fresh[self.order[result.number]]))
        return _UsedUp.apply(tensor, _anchor()) if result.freed else tensor


@cache
def _anchor() -> torch.Tensor:
    return torch.zeros((), requires_grad=True)


class _UsedUp(torch.autograd.Function):
    """Stands for a graph whose backward pass has been run within the step."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time: the step that returned this tensor, a function given to "
            "torch_xla.compile, has run its backward pass. Specify retain_graph=True there, or run the backward pass only here"
        )
