"""What the ops of a recording cost: floating point operations and bytes, by row and by module.

Counted from shapes: products and convolutions as PyTorch's flop counter does (a multiplication and an addition are two),
other ops one for each element of what they return, or take if that is more; views nothing. Bytes are those of all inputs
and outputs. XLA fuses ops, so a program moves fewer bytes: its own account is for the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.flop_counter import flop_registry

from torch_xla._src.compile.plan import refs_in
from torch_xla._src.graph.value import Ref, Row, Spec


@dataclass
class Cost:
    """flops: floating point operations. num_bytes: read and written. rows: ops."""

    flops: int = 0
    num_bytes: int = 0
    rows: int = 0

    def add(self, other: Cost) -> None:
        """Adds another cost to this one."""
        self.flops, self.num_bytes, self.rows = (
            self.flops + other.flops, self.num_bytes + other.num_bytes, self.rows + other.rows,
        )  # fmt: skip


@dataclass
class Module:
    """A node of the tree of modules: its own rows, with costs, and modules in it by name. total: with those in it."""

    name: str
    total: Cost = field(default_factory=Cost)
    modules: dict[str, Module] = field(default_factory=dict)
    rows: list[tuple[Row, Cost]] = field(default_factory=list)

    def add(self, path: Sequence[str], row: Row, cost: Cost) -> None:
        """Adds a row of the module at `path` below this one."""
        self.total.add(cost)
        if path:
            self.modules.setdefault(path[0], Module(path[0])).add(path[1:], row, cost)
        else:
            self.rows.append((row, cost))


def by_module(rows: Sequence[Row], leaves: Sequence[Spec | None]) -> Module:
    """The tree of modules of a recording; rows outside of any module are the root's."""
    specs: dict[int, Spec | None] = {-1 - n: spec for n, spec in enumerate(leaves)}
    root = Module("")
    for row in rows:
        specs |= dict(enumerate(row.outs, row.base))
        path = [row.module] if row.module.startswith("optimizer: ") else [p for p in row.module.split(".") if p]
        root.add(path, row, of_row(row, specs))
    return root


def of_row(row: Row, specs: dict[int, Spec | None]) -> Cost:
    """The cost of one row; specs: of outputs and leaves, by number."""
    inputs = [spec for ref in dict.fromkeys(refs_in((row.args, row.kwargs))) if (spec := specs.get(ref)) is not None]
    outs = [spec for spec in row.outs if spec is not None]
    if row.view is not None:
        return Cost(rows=1)
    num_bytes = sum(math.prod(s.shape) * s.dtype.itemsize for s in [*inputs, *outs])
    return Cost(_flops(row, inputs, outs, specs), num_bytes, 1)


def _flops(row: Row, inputs: Sequence[Spec], outs: Sequence[Spec], specs: dict[int, Spec | None]) -> int:
    name = str(row.op._schema.name)
    shapes = [spec.shape for spec in inputs]
    if name == "aten::linear" and len(shapes) >= 2:
        return 2 * math.prod(shapes[0]) * shapes[1][0] if len(shapes[1]) == 2 else 2 * math.prod(shapes[0])
    if name == "aten::linear_backward" and len(shapes) >= 3:
        weight = next((s for s in shapes if len(s) == 2 and s[0] == shapes[1][-1]), shapes[-1])
        return 4 * math.prod(shapes[1][:-1]) * math.prod(weight)
    rule = flop_registry.get(row.op._overloadpacket)
    if rule is not None:
        out = tuple(s.shape for s in outs) if len(row.outs) > 1 else outs[0].shape if outs else ()
        try:
            kwargs = {n: _shape(t, specs) for n, t in zip(row.names, row.kwargs)}
            return int(rule(*(_shape(t, specs) for t in row.args), **kwargs, out_val=out))
        except Exception:  # rules are written for the calls that PyTorch makes itself
            pass
    return max((math.prod(s.shape) for s in [*outs, *inputs]), default=0)


def _shape(t: Any, specs: dict[int, Spec | None]) -> Any:
    """An argument as PyTorch's rules take it: a shape for a tensor."""
    if type(t) is Ref:
        spec = specs.get(int(t))
        return None if spec is None else spec.shape
    return [_shape(x, specs) for x in t] if type(t) is tuple else t
