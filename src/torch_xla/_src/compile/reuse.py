"""Which output takes the buffer of which donated leaf.

Note [Buffers of outputs]
JAX hands the buffers of donated inputs to outputs of their shape and dtype, first to first. That the new value of a
parameter comes to stand in the buffer of the old one matters: where XLA is told to put it into another's, what is still
to be read there has to be copied first, and a training step copies every parameter and every state of the optimizer. So
a program takes donated leaves and returns outputs in an order in which first to first is each to its own: the output
that a chain of in-place ops made of the leaf.

Note [Donation between memories]
Where JAX finds no output for a donated buffer, XLA does, if need be in another memory; the runtime ends the process then.
So a program that has to do with the host's memory is given only buffers whose own output, as above, is in their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from torch_xla._src.compile.plan import refs_in
from torch_xla._src.graph.value import Ref, Row
from torch_xla._src.ops.placement import HOST, is_host_buffer

_PLACE = "torch_xla::place"


@cache
def _writes_first(op: Any) -> bool:
    """Whether `op` is the functional form of one that writes its first tensors, or of a write to a view."""
    name = op._schema.name
    namespace, _, base = name.partition("::")
    return base.endswith("_scatter") or hasattr(getattr(torch.ops, namespace), f"{base}_")


def _nth_ref(templates: Sequence[Any], count: int) -> Ref | None:
    """The tensor argument number `count` of a row, lists flattened."""
    for t in templates:
        for ref in t if type(t) is tuple else (t,):
            if type(ref) is Ref:
                if count == 0:
                    return ref
                count -= 1
    return None


def _written_leaf(number: int, row_of: Sequence[Row]) -> int | None:
    """The leaf whose tensor came to hold output `number` by in-place ops and views, if there is one."""
    while number >= 0:
        row = row_of[number]
        if row.view is None and not _writes_first(row.op):
            return None
        ref = _nth_ref(row.args, number - row.base)
        if ref is None:
            return None
        number = int(ref)
    return -1 - number


def _pairs(rows: Sequence[Row], live: Sequence[int], donated: frozenset[int]) -> dict[int, int]:
    """Donated leaves, with the positions in `live` of what in-place ops made of them."""
    row_of = [row for row in rows for _ in row.outs]
    leaves = {i: spec for row in rows for i, spec in enumerate(row.leaves, row.leaf_base)}
    found: dict[int, int] = {}
    for position in range(len(live) - 1, -1, -1):  # of several made of one leaf, the last
        row = row_of[live[position]]
        leaf, made = _written_leaf(live[position], row_of), row.outs[live[position] - row.base]
        if leaf in donated and leaf not in found and made is not None and made[:2] == leaves[leaf][:2]:
            found[leaf] = position
    return found


def within_memories(
    rows: Sequence[Row], live: Sequence[int], donated: frozenset[int], buffers: Sequence[Any]
) -> frozenset[int]:
    """Those of `donated` whose buffers no output in another memory is given. See Note [Donation between memories]."""
    hosts = {i for i, buffer in enumerate(buffers) if is_host_buffer(buffer)}
    if not donated or not (hosts or any(row.op._schema.name == _PLACE for row in rows)):
        return donated
    on_host = {-1 - i for i in hosts}
    for row in rows:
        if row.op._schema.name == _PLACE:
            here = row.args[1] == HOST
        else:  # what is computed of tensors in the host's memory is there, if it can be computed at all
            read = row.args[1:2] if row.op._schema.name == "aten::copy" else (row.args, row.kwargs)
            here = any(int(ref) in on_host for ref in refs_in(read))
        if here:
            on_host.update(range(row.base, row.base + len(row.outs)))
    paired = _pairs(rows, live, donated)
    return frozenset(i for i, position in paired.items() if (i in hosts) == (live[position] in on_host))


def order(rows: Sequence[Row], live: Sequence[int], donated: frozenset[int]) -> tuple[list[int], list[int]]:
    """The order in which a program takes its donated leaves, and that in which it returns the outputs `live`.

    The latter is of positions in `live`. See Note [Buffers of outputs].
    """
    paired = _pairs(rows, live, donated)
    rest = set(range(len(live))) - set(paired.values())
    return [*paired, *sorted(donated - set(paired))], [*paired.values(), *sorted(rest)]
