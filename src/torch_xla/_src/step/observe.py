"""Watches one call of a step while its Python runs: what the recording reads, what it leaves behind, and where.

See Note [Frozen steps] in `frozen.py`.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torch_xla._src import step_closures
from torch_xla._src.device.aliasing import is_alone, is_shared
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of
from torch_xla._src.graph.value import Row, Spec, Value, ValueRef
from torch_xla._src.runtime import rng, transfer
from torch_xla._src.step import learning_rate, modes
from torch_xla._src.step.arguments import Flat
from torch_xla._src.step.learning_rate import Candidates
from torch_xla._src.step.reach import Reach, is_plain

_MARK = "_torch_xla_gradient_before"  # attribute of a gradient that was there when an observed call began
_MAX_LITERAL = 1 << 20  # elements of a tensor made from numbers of the code
_PROPERTIES = ("shape", "dtype", "device", "ndim", "requires_grad", "is_xla", "is_cpu", "is_cuda")
# What may be done to a CPU tensor among the arguments, beside moving it to the device.
_HARMLESS = {
    torch.Tensor.to, torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_contiguous, torch.Tensor.__len__,
    torch.Tensor.copy_, torch.Tensor.is_floating_point,
    *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES),
}  # fmt: skip


class NotFrozen(Exception):
    """A step cannot be frozen; the text says why, as the end of "it runs in Python, since ..."."""


@dataclass(frozen=True)
class Gradient:
    """What becomes of the gradient of a tensor. place: that tensor's.

    before: whether there is one when the step begins. kept: it is left as it was. number: the output that it is then, if
    not; None if there is none then. in_place: the tensor that was there holds it, not a new one.
    """

    place: int
    before: bool
    kept: bool
    number: int | None
    in_place: bool


@dataclass(frozen=True)
class Result:
    """A tensor that the step returns: one that it was given or reaches (place), the gradient of one (gradient: its place),
    another result once more (same: its position), or an output of the recording (number).
    """

    place: int | None = None
    number: int | None = None
    freed: bool = False  # requires grad, but its graph has been used up
    inference: bool = False
    gradient: int | None = None
    same: int | None = None


Source = tuple[str, int]  # of a leaf: ("place" | "gradient" | "upload" | "literal", position)


@dataclass
class Observation:
    """A call, as far as another one can be the same. `agrees` compares two; see there for what each must have in common."""

    structure: Any
    modes: Any
    reach: Reach
    node: Row
    host_args: list[int]
    requires_grad: list[bool]
    specs: list[Spec]
    alike: list[tuple[int, int]]
    sources: list[Source] = field(default_factory=list)
    leaf_specs: list[Spec] = field(default_factory=list)
    literals: list[torch.Tensor] = field(default_factory=list)
    written: list[tuple[int, int]] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    result_tree: Any = None
    constants: list[Any] = field(default_factory=list)
    ints: list[int] = field(default_factory=list)
    numbers: list[Candidates] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    escaped: bool = False
    keys: list[int] = field(default_factory=list)
    keys_used: int = 0
    replaced: dict[int, Any] = field(default_factory=dict)

    def agrees(self, other: Observation) -> str | None:
        """None if both calls were the same but for contents of tensors and learning rates; else what differed."""
        for name, what in _IN_COMMON.items():
            if getattr(self, name) != getattr(other, name):
                return f"two calls differed in {what}"
        if len(self.literals) != len(other.literals) or not all(map(_equal, self.literals, other.literals)):
            return "it makes tensors from numbers that differ from call to call"
        if learning_rate.narrowed(self.numbers, other.numbers) is None:
            return "a number in it changes from call to call: make it a tensor"
        return None


_IN_COMMON = {
    "structure": "their arguments", "modes": "settings of torch", "node": "what they record", "host_args": "their arguments",
    "requires_grad": "what requires grad", "specs": "shapes", "alike": "which tensors are the same", "sources": "what they read",
    "written": "what they write", "gradients": "what becomes of gradients", "results": "what they return",
    "result_tree": "what they return", "constants": "what they return", "ints": "a whole number", "keys": "random draws",
    "keys_used": "random draws", "replaced": "what they write",
}  # fmt: skip


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(_bits(a)) == bytes(_bits(b))


def _bits(a: torch.Tensor) -> Any:
    return a.contiguous().reshape(-1).view(torch.uint8).numpy()


class _HostArguments(TorchFunctionMode):
    """Notices what is done to CPU tensors among the arguments, whose contents no guard compares."""

    def __init__(self, tensors: Sequence[torch.Tensor], uploads: _Uploads) -> None:
        super().__init__()
        self.ids = {id(t) for t in tensors}
        self.uploads = uploads
        self.used: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        involved = any(id(a) in self.ids for a in pytree.tree_leaves((args, kwargs)))
        literals = len(self.uploads.literals)
        result = func(*args, **(kwargs or {}))
        if involved and (
            func not in _HARMLESS
            or len(self.uploads.literals) != literals  # what is uploaded is another tensor: one of another dtype, say
            or (func is torch.Tensor.copy_ and id(args[0]) in self.ids)
            or (isinstance(result, torch.Tensor) and result.device.type != "xla" and id(result) not in self.ids)
        ):
            self.used = getattr(func, "__name__", str(func))
        return result


class _Before:
    """The state that an observed call finds. Holds no buffer, or none could be donated."""

    def __init__(self, places: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        self.values: list[ValueRef] = []
        self.sources: dict[int, tuple[weakref.ref[Any], Source]] = {}
        self.gradients: dict[int, ValueRef] = {}
        for place, tensor in enumerate(places):
            self.values.append(self._note(value_of(tensor), ("place", place)))
        for owner in owners:
            if (grad := places[owner].grad) is not None:
                self.gradients[owner] = self._note(value_of(grad), ("gradient", owner))
                vars(grad)[_MARK] = self  # an address could be used again, a reference would keep it alive

    def _note(self, value: Value, source: Source) -> ValueRef:
        if value.error is not None:
            raise NotFrozen("a tensor that it reaches was lost to an earlier error")
        buffer = RECORDER.buffer(value)
        self.sources.setdefault(id(buffer), (weakref.ref(buffer), source))
        return weakref.ref(value)

    def source_of(self, buffer: Any) -> Source | None:
        ref, source = self.sources.get(id(buffer), (None, None))
        return source if ref is not None and ref() is buffer else None


class _Uploads:
    """What is uploaded in an observed call: arguments on the CPU, and tensors made from numbers."""

    def __init__(self, host: Sequence[tuple[int, torch.Tensor]]) -> None:
        self.host = host
        self.found: dict[int, tuple[weakref.ref[Any], Source]] = {}
        self.literals: list[Any] = []

    def __call__(self, tensor: torch.Tensor, buffer: Any) -> None:
        source: Source | None = None
        for position, arg in self.host:
            if (arg.data_ptr(), arg.shape, arg.dtype, arg.stride()) == (
                tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.stride(),
            ):  # fmt: skip
                source = ("upload", position)
        if source is None:
            source = ("literal", len(self.literals))
            self.literals.append(tensor.detach().clone() if tensor.numel() <= _MAX_LITERAL else None)
        self.found[id(buffer)] = weakref.ref(buffer), source

    def source_of(self, buffer: Any) -> Source | None:
        ref, source = self.found.get(id(buffer), (None, None))
        return source if ref is not None and ref() is buffer else None


@contextlib.contextmanager
def _watching(uploads: _Uploads, roots: list[Any]) -> Iterator[None]:
    """In the block, uploads are noted, and the roots of graphs that a backward pass uses up."""
    backward = torch.autograd.backward

    def noting(
        tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False, **rest: Any
    ) -> Any:
        if not (create_graph if retain_graph is None else retain_graph) and rest.get("inputs") is None:
            roots.extend(t.grad_fn for t in ([tensors] if isinstance(tensors, torch.Tensor) else tensors) if t.grad_fn)
        return backward(tensors, grad_tensors, retain_graph, create_graph, **rest)

    transfer.watcher, torch.autograd.backward = uploads, noting
    try:
        yield
    finally:
        transfer.watcher, torch.autograd.backward = None, backward


class Observer:
    """One call of `function` with its Python, observed. After `run`, `observation` or `reason` is set."""

    def __init__(self, function: Callable[..., Any], flat: Flat) -> None:
        self.flat = flat
        self.observation: Observation | None = None
        self.reason: str | None = None
        reach = Reach(function, flat.objects)
        self.places = [*reach.tensors, *(t for t in flat.tensors if t.device.type == "xla")]
        self.host = [(i, t) for i, t in enumerate(flat.tensors) if t.device.type != "xla"]
        if any(t.requires_grad and not t.is_leaf for t in flat.tensors):
            raise NotFrozen("an argument needs a gradient of what it was computed from")
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in flat.tensors):
            raise NotFrozen("an argument is a tensor of a class of its own")
        if any(t._backward_hooks or t._post_accumulate_grad_hooks for t in flat.tensors):
            raise NotFrozen("an argument has hooks")
        held = {t.data_ptr() for t, _, _ in reach.host}
        if held and any(t.data_ptr() in held for _, t in self.host if t.device.type == "cpu"):
            raise NotFrozen("an argument shares its memory with a CPU tensor that the step reaches")
        owners = [i for i, t in enumerate(self.places) if t.requires_grad and t.is_leaf]
        self.before = _Before(self.places, owners)
        RECORDER.cut()
        values = [value_of(t) for t in self.places]
        first: dict[int, int] = {}
        alike = [(i, first.setdefault(id(v), i)) for i, v in enumerate(values)]
        self.owners = owners
        self.observation = Observation(
            structure=flat.structure,
            modes=modes.current(),
            reach=reach,
            node=RECORDER.root,
            host_args=[i for i, _ in self.host],
            requires_grad=[t.requires_grad for t in self.places],
            specs=[v.spec for v in values],
            alike=[(i, j) for i, j in alike if i != j],
        )

    def run(self, call: Callable[[], Any]) -> Any:
        """Calls the step, which leaves its recording pending, and takes it in. Its exceptions go through."""
        seen, self.observation = self.observation, None
        assert seen is not None
        uploads = _Uploads(self.host)
        roots: list[Any] = []
        touched = _HostArguments([t for _, t in self.host], uploads)
        groups = learning_rate.groups_of(seen.reach.optimizers)
        seen.rates = [g["lr"] for g in groups]
        random, state, closures = modes.random_states(), rng.get_state(), len(step_closures._pending)
        borrowed, cuts = (rng.num_borrowed, rng.num_seeded), RECORDER.num_cuts
        mode = touched if self.host else contextlib.nullcontext()
        with _watching(uploads, roots), learning_rate.followed(groups) as formulas, mode:
            result = call()
        try:
            with RECORDER.lock:
                if touched.used:
                    raise NotFrozen(
                        f"{touched.used}() of a CPU argument is computed on the host: move the argument to xla first"
                    )
                if RECORDER.num_cuts != cuts:
                    raise NotFrozen("more than one program ran in it")
                if random != modes.random_states() or (rng.num_borrowed, rng.num_seeded) != borrowed:
                    raise NotFrozen("it draws random numbers on the host, or seeds them")
                if len(step_closures._pending) != closures:
                    raise NotFrozen("it adds step closures")
                if (changed := seen.reach.written()) is not None:
                    raise NotFrozen(f"it changes Python state: {changed}")
                if [g.get("lr") for g in groups] != seen.rates:
                    raise NotFrozen("it changes a learning rate")
                seen.escaped = formulas.escaped
                self._take(seen, result, roots, uploads, state)
                seen.numbers = learning_rate.candidates(RECORDER.floats, formulas)
            self.observation = seen
        except NotFrozen as why:
            self.reason = str(why)
        return result

    def _take(self, seen: Observation, result: Any, roots: list[Any], uploads: _Uploads, state: int) -> None:
        after = [value_of(t) for t in self.places]  # may record: before the recording is looked at
        for grad in (self.places[owner].grad for owner in self.owners):
            if grad is not None:
                value_of(grad)
        known = self._written(seen, after) | self._gradients(seen) | self._results(seen, result, roots)
        _no_more(known)
        seen.node, seen.ints, seen.leaf_specs = RECORDER.node, list(RECORDER.ints), list(RECORDER.leaf_specs)
        for buffer, spec in zip(RECORDER.leaf_buffers, RECORDER.leaf_specs, strict=True):
            source = self.before.source_of(buffer) or uploads.source_of(buffer)
            if source is None:
                raise NotFrozen(f"it reads a tensor{list(spec.shape)} that cannot be reached from it or its arguments")
            seen.sources.append(source)
        if any(literal is None for literal in uploads.literals):
            raise NotFrozen("it uploads a large tensor that is not an argument")
        seen.literals = uploads.literals
        seen.keys, seen.keys_used = _offsets(state, RECORDER.keys)
        seen.replaced = {n: self._held(held) for n, held in RECORDER.replaced.items()}

    def _held(self, held: Any) -> Any:
        """An entry of `Recorder.replaced`, with the place of a buffer instead of the buffer."""
        if held is None or type(held) is int:
            return held
        source = self.before.source_of(held)
        if source is None:
            raise NotFrozen("it overwrites a tensor that cannot be reached from it")
        return source

    def _written(self, seen: Observation, after: Sequence[Value]) -> set[int]:
        for place, (before, value) in enumerate(zip(self.before.values, after, strict=True)):
            if before() is not value:
                number = _number(value)
                if number is None or value.spec != seen.specs[place] or value.base is not None:
                    raise NotFrozen("it gives a tensor other contents than a result of this step, or another shape")
                if not is_alone(self.places[place]):
                    raise NotFrozen("it writes to a tensor that shares its storage with others")
                seen.written.append((place, number))
        return {number for _, number in seen.written}

    def _gradients(self, seen: Observation) -> set[int]:
        known = set()
        for owner in self.owners:
            grad, before = self.places[owner].grad, self.before.gradients.get(owner)
            number, kept, same = None, False, grad is not None and vars(grad).pop(_MARK, None) is self.before
            if grad is not None:
                value = value_of(grad)
                kept = same and before is not None and before() is value
                number = None if kept else _number(value)
                if grad.requires_grad or (not kept and (number is None or is_shared(grad))) or value.base is not None:
                    raise NotFrozen("it leaves a gradient that is no result of this step alone")
                known.add(number)
            seen.gradients.append(Gradient(owner, before is not None, kept, number, same and not kept))
        return {number for number in known if number is not None}

    def _results(self, seen: Observation, result: Any, roots: list[Any]) -> set[int]:
        leaves, seen.result_tree = pytree.tree_flatten(result)
        known = {id(self.places[owner].grad): Result(gradient=owner) for owner in self.owners}
        known |= {id(t): Result(place) for place, t in reversed(list(enumerate(self.places)))}
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                if not is_plain(leaf):
                    raise NotFrozen(f"it returns a {type(leaf).__name__}")
                seen.constants.append((type(leaf), leaf))
                continue
            seen.constants.append(None)
            if id(leaf) in known:
                seen.results.append(known[id(leaf)])
                continue
            known[id(leaf)] = Result(same=len(seen.results))
            if leaf.device.type != "xla" or type(leaf) is not torch.Tensor:
                raise NotFrozen(f"it returns a tensor on {leaf.device}, or of a class of its own")
            value = value_of(leaf)
            if (number := _number(value)) is None or value.base is not None or is_shared(leaf):
                raise NotFrozen("it returns a view of a tensor, or one that it has not computed: return a clone()")
            freed = leaf.requires_grad and any(leaf.grad_fn is root for root in roots)
            if leaf.requires_grad and not freed:
                raise NotFrozen(
                    "it returns a tensor whose graph is still needed: call it under torch.no_grad(), or return x.detach()"
                )
            seen.results.append(Result(None, number, freed, leaf.is_inference()))
        return {r.number for r in seen.results if r.number is not None}


def _number(value: Value) -> int | None:
    """The number of the pending recording's output that a Value is."""
    return value.index if value.generation == RECORDER.generation and value.index >= 0 else None


def _no_more(known: set[int]) -> None:
    """Raises if outputs are alive of which it is not known who holds them."""
    unknown = _living() - known
    if unknown:
        gc.collect()
        unknown = _living() - known
    if unknown:
        number = min(unknown)
        row = next(r for r in RECORDER.node.path() if r.base <= number < r.base + len(r.outs))
        raise NotFrozen(
            f"a result of {row.op} at {row.line} outlives it, but is neither returned nor written to what it reaches"
        )


def _living() -> set[int]:
    return {number for number, ref in enumerate(RECORDER.values) if ref() is not None}


def _offsets(state: int, keys: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """How far each key, and the state at the end, is from `state`, in draws."""
    at = state
    places: dict[tuple[int, int], int] = {}
    for offset in range(len(keys) + 1):
        places.setdefault(rng.key_of(at), offset)
        at = rng.advanced(at, 1)
    used = next((n for n in range(len(keys) + 1) if rng.advanced(state, n) == rng.get_state()), None)
    if used is None or any(key not in places for key in keys):
        raise NotFrozen("it sets the random state")
    return [places[key] for key in keys], used
