"""Rows of a recording on PyTorch's CPU kernels, and on the device with the same inputs: what `debug.check()` compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
import torch.utils._pytree as pytree

from torch_xla._src.compile.plan import refs_in
from torch_xla._src.compile.program import Inputs, slots_in
from torch_xla._src.graph.value import FLOAT_SLOT, Ref, Row, Slot
from torch_xla._src.runtime import client, precision, transfer
from torch_xla._src.view import helpers

_EMPTY = ("empty", "new_empty", "empty_like", "empty_strided")
# Ops whose results are not determined: signs and phases of factors, which of equal elements is found.
_AMBIGUOUS = (
    "topk", "sort", "kthvalue", "mode", "median", "nanmedian", "_linalg_svd", "_linalg_eigh", "linalg_qr", "geqrf",
    "linalg_eig", "_linalg_eigvals",
)  # fmt: skip

_ON_CPU_TOO = ("slice", "select", "slice_scatter")  # ops of this package that have a kernel there


class Given(Inputs):
    """Inputs of single rows, whose numbers and keys have been handed out beforehand."""

    def __init__(self, outs: dict[int, Any], leaves: Any, numbers: Sequence[Any], key: Any) -> None:
        super().__init__(leaves, [], [], [])
        self.outs, self.numbers, self.given_key = outs, list(numbers), key

    def resolve(self, t: Any) -> Any:
        """As `Inputs.resolve`; a slot takes the next of the row's numbers."""
        return self.numbers.pop(0) if type(t) is Slot else super().resolve(t)

    def key(self) -> Any:
        """The PRNG key of the row."""
        return self.given_key


class Replay:
    """The rows of one run of a recording, to be computed in any order and on either device.

    host: what the CPU gave for each output that is still needed. uncompared: rows that the CPU cannot compute or whose
    results are not determined, with the reason; what the device gives for them is taken for right.
    """

    def __init__(
        self, rows: Sequence[Row], leaves: Sequence[Any], floats: Sequence[float], ints: Sequence[int], keys: Any
    ) -> None:
        self.rows, self.leaves = rows, leaves
        self.host_leaves: dict[int, torch.Tensor] = {}
        self.host: dict[int, Any] = {}
        self.uncompared: dict[int, str] = {}
        inputs = Inputs(leaves, list(floats), list(ints), keys)
        self.numbers, self.keys = [], []
        for row in rows:
            before = dict(inputs.position)
            inputs.skip(row)
            self.numbers.append(_numbers(row, inputs, before))
            self.keys.append(before["key"] if row.random else None)
        self._key_of = inputs
        self._positions = {id(row): position for position, row in enumerate(rows)}

    def position(self, row: Row) -> int:
        """Where in the recording a row is."""
        return self._positions[id(row)]

    def key(self, position: int) -> Any:
        """The PRNG key of a row, or None."""
        number = self.keys[position]
        if number is None:
            return None
        self._key_of.position["key"] = number
        return self._key_of.key()

    def host_leaf(self, leaf: int) -> torch.Tensor:
        """A leaf on the host."""
        if leaf not in self.host_leaves:
            self.host_leaves[leaf] = transfer.download(self.leaves[leaf])
        return self.host_leaves[leaf]

    def held(self, ref: int) -> Any:
        """What the CPU has for an output or leaf."""
        return self.host[ref] if ref >= 0 else self.host_leaf(-1 - ref)

    def on_cpu(self, position: int, known: bool = False) -> None:
        """Computes a row by its CPU kernel; where there is none, on the device.

        Raises what a kernel raises for an index out of range or a division by zero, unless that is `known`.
        """
        row = self.rows[position]
        if (reason := _no_reference(row)) is None:
            try:
                self._take(row, _call(row, self.held, self.numbers[position]))
                return
            except Exception as error:
                if not known and isinstance(error, (IndexError, ZeroDivisionError)):
                    raise
                reason = (
                    f"the CPU does not compute it: {(str(error) or repr(error)).splitlines()[0].partition('. ')[0]}"
                )
        self.uncompared[position] = reason
        for number, buffer in self.on_device([position]).items():
            self.host[number] = None if buffer is None else transfer.download(buffer)

    def _take(self, row: Row, results: Any) -> None:
        flat = [results] if isinstance(results, torch.Tensor) else pytree.tree_leaves(results, is_leaf=_is_none)
        for number, (result, spec) in enumerate(zip(flat, row.outs, strict=True), row.base):
            fits = isinstance(result, torch.Tensor) and spec is not None and tuple(result.shape) == tuple(spec.shape)
            self.host[number] = result if fits else None

    def on_device(self, positions: Sequence[int]) -> dict[int, Any]:
        """Outputs of these rows as one program, each of them given what the CPU has for all that it reads."""
        rows = [self.rows[p] for p in positions]
        reads = {int(r) for row in rows for r in refs_in((row.args, row.kwargs))}
        keys = [self.key(p) for p in positions]

        def function(given: dict[int, Any], keys: list[Any]) -> dict[int, Any]:
            held = {n: x for n, x in given.items() if n >= 0}
            leaves = _Leaves({-1 - n: x for n, x in given.items() if n < 0})
            made: dict[int, Any] = {}
            for position, row, key in zip(positions, rows, keys, strict=True):
                inputs = Given(dict(held), leaves, self.numbers[position], key)
                inputs.run(row)
                made |= {n: inputs.outs[n] for n in range(row.base, row.base + len(row.outs))}
            return made

        with (
            jax.enable_x64(True),
            jax.default_device(client.default_device()),
            jax.default_matmul_precision(precision.get()),
        ):
            given = {n: self._upload(n) for n in reads}
            return jax.jit(function)(given, keys)

    def _upload(self, number: int) -> Any:
        if number < 0:
            return self.leaves[-1 - number]
        held = self.host[number]
        return None if held is None else transfer.upload(held)


class _Leaves:
    """Leaves by position, for `Inputs`."""

    def __init__(self, leaves: dict[int, Any]) -> None:
        self._leaves = leaves

    def __getitem__(self, position: int) -> Any:
        return self._leaves[position]


def _is_none(x: Any) -> bool:
    return x is None


def _numbers(row: Row, inputs: Inputs, before: dict[Any, int]) -> list[Any]:
    """What the slots of a row hold, in order."""
    position, found = dict(before), []
    for slot in slots_in((row.args, row.kwargs)):
        held = inputs.floats if slot is FLOAT_SLOT else inputs.ints
        found.append(held[position[slot]])
        position[slot] += 1
    return found


def key_data(keys: Sequence[tuple[int, int]]) -> Any:
    """The PRNG keys of a recording as a program takes them: uint32[keys, 2]."""
    return np.array(keys, np.uint32).reshape(-1, 2)


def has_no_contents(row: Row) -> bool:
    """Whether what a row returns has not been written yet."""
    return name_of(row).partition("::")[2] in _EMPTY


def name_of(row: Row) -> str:
    """The name of a row's op as PyTorch has it, such as "aten::add"."""
    name: str = row.op._schema.name
    return name


def _no_reference(row: Row) -> str | None:
    """Why a row cannot be compared with the CPU, or None."""
    namespace, _, name = name_of(row).partition("::")
    if row.random:
        return "it draws random numbers, and the CPU draws others"
    if namespace != "aten" and name not in _ON_CPU_TOO:
        return "the CPU has no kernel for it"
    if has_no_contents(row):
        return "it has no contents yet"
    return "its results are not determined: signs, or which of equal elements" if name in _AMBIGUOUS else None


def _call(row: Row, held: Callable[[int], Any], numbers: Sequence[Any]) -> Any:
    left = list(numbers)

    def resolve(t: Any) -> Any:
        if type(t) is Ref:
            return held(t)
        if type(t) is tuple:
            return [resolve(x) for x in t]
        if type(t) is Slot:
            return left.pop(0)
        return torch.device("cpu") if isinstance(t, torch.device) else t

    args = [resolve(t) for t in row.args]
    kwargs = {name: resolve(t) for name, t in zip(row.names, row.kwargs)}
    with torch.no_grad():
        return _WITHOUT_KERNEL.get(row.op, row.op)(*args, **kwargs)


# On the CPU, autograd has others for it.
_WITHOUT_KERNEL = {torch.ops.aten.linear_backward.default: helpers.linear_backward}
