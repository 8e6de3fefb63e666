"""Rules for ops on padded tensors: how to compute what counts, whatever the padding holds. See Note [Varying lengths].

    @pads("aten.sum")
    def sum_(call: Call) -> Padded: ...

A rule is found like a lowering: by overload, then packet; ops that PyTorch tags as pointwise share one. It is asked only
if an argument or result has a dim that varies, or if a number of the call does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._src.graph.families import Refused, Template, Varying
from torch_xla._src.graph.lengths import Affine, Dim, Layout, dim_of, is_static, size_of, static
from torch_xla._src.graph.value import Row
from torch_xla._src.ops.lower import lower
from torch_xla._src.ops.registry import OutSpec

_INDEX = np.int32  # dims of buffers have fewer than 2**31 elements


class Padded(NamedTuple):
    """A tensor while a program is traced: its array, as long as its buffer, and what it is made of."""

    array: Any
    dims: Layout

    @property
    def is_static(self) -> bool:
        """Whether no dim varies, so that the array has no padding."""
        return all(map(is_static, self.dims))


class Scope:
    """The lengths for which a program is traced.

    template: gives sizes in the samples. buckets: the size in buffers of each symbol. sizes: the true ones, traced.
    equal: pairs of dims that the program takes for equal; each recording that it serves is compared with them.
    """

    def __init__(self, template: Template, buckets: Sequence[int], sizes: Sequence[Any]) -> None:
        self.template, self.buckets = template, buckets
        self.sizes = [s.astype(_INDEX) for s in sizes]
        self.equal: list[tuple[Dim, Dim]] = []
        self._seen: dict[tuple[int, ...], Dim] = {}

    def see(self, dims: Layout) -> None:
        """Takes note of the dims of a tensor, for `dim`."""
        for dim in dims:
            self._seen.setdefault(self.vector(dim), dim)

    def dim(self, sizes: tuple[int, ...]) -> Dim | None:
        """A dim with these sizes in the samples: one that some tensor has, or else the simplest; None if there is none."""
        if all(n == sizes[0] for n in sizes):
            return static(sizes[0])
        return self._seen.get(sizes) or self.template.fit_dim(sizes)

    def shape(self, dims: Layout) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(size_of(dim, self.buckets) for dim in dims)

    def vector(self, dim: Dim) -> tuple[int, ...]:
        """The size in each sample."""
        return tuple(size_of(dim, sizes) for sizes in self.template.sizes)

    def true_size(self, dim: Dim) -> Any:
        """The true size: a number, or traced int32[]."""
        return size_of(dim, self.sizes)

    # ---- indices along one dim: of the array, and of the true elements

    def to_true(self, dim: Dim, index: Any) -> Any:
        """The index among true elements of the one at `index` of the array; anything for padding."""
        true: Any = index * 0
        for factor, place in zip(dim, self._places(dim, index, self.buckets)):
            true = true * factor.at(self.sizes) + place
        return true

    def to_array(self, dim: Dim, index: Any) -> Any:
        """The index in the array of true element `index`, in bounds whatever that is."""
        place: Any = index * 0
        for factor, part in zip(dim, self._places(dim, index, self.sizes)):
            place = place * factor.at(self.buckets) + part
        return jnp.clip(place, 0, max(size_of(dim, self.buckets) - 1, 0))

    @staticmethod
    def _places(dim: Dim, index: Any, sizes: Any) -> list[Any]:
        parts: list[Any] = []
        for factor in dim[:0:-1]:
            size = factor.at(sizes)
            size = jnp.maximum(size, 1) if isinstance(size, jax.Array) else max(size, 1)
            parts.append(index % size)
            index = index // size
        return [index, *parts[::-1]] if dim else []

    def iota(self, dim: Dim) -> jax.Array:
        """int32[array]: 0, 1, 2 ..."""
        return lax.iota(_INDEX, size_of(dim, self.buckets))

    def valid(self, dim: Dim) -> jax.Array:
        """bool[array]: where true elements are."""
        found = jnp.ones((size_of(dim, self.buckets),), bool)
        for factor, place in zip(dim, self._places(dim, self.iota(dim), self.buckets)):
            if factor.terms:
                found = found & (place < factor.at(self.sizes))
        return found

    # ---- tensors

    def mask(self, dims: Layout, axes: Sequence[int] | None = None) -> jax.Array | None:
        """bool, broadcasting to the array: where true elements are along these axes, or all; None if everywhere."""
        found = None
        for axis, dim in enumerate(dims):
            if is_static(dim) or (axes is not None and axis not in axes):
                continue
            along = self.valid(dim).reshape([-1 if a == axis else 1 for a in range(len(dims))])
            found = along if found is None else found & along
        return found

    def fill(self, x: Padded, value: Any, axes: Sequence[int] | None = None) -> Padded:
        """`x` with padding along these axes (all by default) replaced by a number."""
        mask = self.mask(x.dims, axes)
        if mask is None:
            return x
        return Padded(jnp.where(mask, x.array, jnp.asarray(value, x.array.dtype)), x.dims)

    def take(self, x: jax.Array, source: Dim, true: Any, axis: int) -> jax.Array:
        """The elements with these indices among the true ones, along an axis; some other element for one out of range."""
        return jnp.take(x, self.to_array(source, true), axis, mode="clip")

    def relaid(self, x: Padded, axis: int, dim: Dim) -> Padded:
        """`x` with its padding along an axis arranged as in `dim`, a dim of the same true size."""
        if x.dims[axis] == dim:
            return x
        self.equal.append((x.dims[axis], dim))
        array = self.take(x.array, x.dims[axis], self.to_true(dim, self.iota(dim)), axis)
        return Padded(array, (*x.dims[:axis], dim, *x.dims[axis + 1 :]))


class Call:
    """One call of an op on padded tensors.

    args: the positional arguments, those left out included: Padded for tensors, numbers, Varying for integers that
    depend on the lengths, 0-d arrays for numbers that are inputs. kwargs: those passed by name. specs: shape in the
    sample of the template and dtype of each output, None for what is no tensor. key: for a random op.
    """

    def __init__(
        self, scope: Scope, row: Row, args: list[Any], kwargs: dict[str, Any], specs: list[OutSpec | None], key: Any
    ) -> None:
        self.scope, self.row, self.op, self.kwargs, self.specs, self.key = scope, row, row.op, kwargs, specs, key
        positional = [a for a in row.op._schema.arguments if not a.kwarg_only]
        self.args = [*args, *(a.default_value for a in positional[len(args) :])]
        self.num_given = len(args)

    def refuse(self, reason: str = "it has no rule for dims of varying length", final: bool = True) -> Refused:
        """The exception to raise where the op cannot be computed. final: whatever is learnt from more recordings."""
        return Refused(self.row, reason, final)

    def out_sizes(self, output: int = 0) -> list[tuple[int, ...]]:
        """For each dim of an output, its size in each sample."""
        sizes = self.scope.template.out_sizes(self.row.base + output)
        assert sizes is not None
        return sizes

    def out_dim(self, axis: int, output: int = 0) -> Dim:
        """A dim of an output, told from its sizes. Raises Refused."""
        sizes = self.out_sizes(output)[axis]
        dim = self.scope.dim(sizes)
        if dim is None:
            raise self.refuse(
                f"its size, {sizes[-1]} in dim {axis}, depends on the lengths in a way that cannot be told", final=False
            )
        return dim

    def out_dims(self, output: int = 0) -> Layout:
        """All dims of an output, told from their sizes. Raises Refused."""
        return tuple(self.out_dim(axis, output) for axis in range(len(self.out_sizes(output))))

    def number(self, x: Any) -> Any:
        """A number of the call as something to compute with. Raises Refused for an integer of unknown origin."""
        if type(x) is not Varying:
            return x
        if x.affine is None:
            raise self.refuse(
                f"an argument, {x.values[-1]}, depends on the lengths in a way that cannot be told", final=False
            )
        return x.affine.at(self.scope.sizes)

    def constant(self, x: Any) -> int:
        """An integer that must not vary. Raises Refused."""
        if type(x) is not int:
            raise self.refuse("an argument that has to be constant varies", final=False)
        return x

    def axes(self, dim: Any, rank: int) -> tuple[int, ...]:
        """The axes that a `dim` argument names; None and [] name all."""
        if dim is None or dim == []:
            return tuple(range(rank))
        named = [self.constant(d) for d in ([dim] if isinstance(dim, int) else dim)]
        return tuple(d % rank for d in named) if rank else ()

    def need_static(self, x: Padded, axes: Sequence[int]) -> None:
        """Raises Refused if a size varies along one of these axes."""
        for axis in axes:
            if not is_static(x.dims[axis]):
                raise self.refuse(
                    f"it has no rule for a varying length in dim {axis} of a tensor of {len(x.dims)} dims"
                )

    def aligned(self, tensors: Sequence[Padded]) -> tuple[list[Padded], Layout]:
        """Tensors arranged alike, and the dims they broadcast to. Raises Refused."""
        rank = max(len(x.dims) for x in tensors)
        common: list[Dim] = []
        found = list(tensors)
        for axis in range(-rank, 0):
            places = [(i, axis + len(x.dims)) for i, x in enumerate(found) if len(x.dims) >= -axis]
            given = [found[i].dims[a] for i, a in places if found[i].dims[a]]
            dim = next((d for d in given if is_static(d)), given[0] if given else ())
            for i, a in places:
                if found[i].dims[a]:
                    found[i] = self.matched(found[i], a, dim)
            common.append(dim)
        return found, tuple(common)

    def matched(self, x: Padded, axis: int, dim: Dim) -> Padded:
        """`x` arranged as `dim` along an axis. Raises Refused if the sizes are not always equal."""
        if self.scope.vector(x.dims[axis]) != self.scope.vector(dim):
            raise self.refuse("sizes that broadcast for some lengths only", final=False)
        return self.scope.relaid(x, axis, dim)

    def matched_all(self, x: Padded, dims: Layout) -> Padded:
        """The same for all axes."""
        if len(x.dims) != len(dims):
            raise self.refuse()
        for axis, dim in enumerate(dims):
            x = self.matched(x, axis, dim)
        return x

    def run(self, args: Sequence[Any], *outs: Layout | None, op: Any = None, kwargs: Any = None) -> Any:
        """Lowers the op, or another, for arrays: Padded outputs with these dims; a list if there are several."""
        specs = [
            None if spec is None else OutSpec(self.scope.shape(dims or ()), spec.dtype)
            for spec, dims in zip(self.specs, outs, strict=True)
        ]
        kwargs = self.kwargs if kwargs is None else kwargs
        arrays = [self._array(a) for a in args]
        arrays = arrays[: max(self.num_given, _num_needed(self.op, arrays))] if op is None else arrays
        results = lower(op or self.op, arrays, {k: self._array(v) for k, v in kwargs.items()}, specs, self.key)
        padded = [r if d is None else Padded(r, d) for r, d in zip(results, outs)]
        return padded if len(padded) > 1 else padded[0]

    def _array(self, a: Any) -> Any:
        if type(a) is Padded:
            return a.array
        if isinstance(a, (list, tuple)) and type(a) is not Varying:
            return [self._array(x) for x in a]
        if type(a) is Varying:
            raise self.refuse(f"an argument, {a.values[-1]}, varies", final=False)
        return a


def _num_needed(op: Any, arrays: Sequence[Any]) -> int:
    """How many leading arguments are not at their defaults: those left out need not be passed on."""
    positional = [a for a in op._schema.arguments if not a.kwarg_only]
    for place in range(len(arrays) - 1, -1, -1):
        argument = positional[place]
        if not argument.has_default_value() or arrays[place] is not argument.default_value:
            return place + 1
    return 0


Rule = Callable[[Call], Any]
_RULES: dict[str, tuple[Rule, frozenset[Any]]] = {}


def pads(*names: str, sizes: Sequence[Any] = ()) -> Callable[[Rule], Rule]:
    """Registers the rule of the named ops. sizes: arguments (positions or names) that shapes of outputs determine."""

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = rule, frozenset(sizes)
        return rule

    return register


def _entry(op: Any) -> tuple[Rule, frozenset[Any]] | None:
    namespace, _, name = op._schema.name.partition("::")
    packet = f"{namespace}.{name}"
    found = _RULES.get(f"{packet}.{op._overloadname}") or _RULES.get(packet)
    return _RULES["pointwise"] if found is None and torch.Tag.pointwise in op.tags else found


def rule_of(op: Any) -> Rule | None:
    """The rule of an op, or None."""
    entry = _entry(op)
    return None if entry is None else entry[0]


def determined_by_outputs(op: Any) -> frozenset[Any]:
    """The arguments of an op, by position or name, that the shapes of its outputs determine."""
    entry = _entry(op)
    return frozenset() if entry is None else entry[1]


__all__ = ["Affine", "Call", "Padded", "Scope", "dim_of", "pads", "rule_of", "static"]
