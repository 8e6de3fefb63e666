"""A recording, pending or compiled, to look at: Python, StableHLO, optimised HLO, graphviz, HTML.

Looking runs nothing and changes nothing; what is pending stays pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import torch

from torch_xla._src.compile import program_cache
from torch_xla._src.compile.plan import Use, uses
from torch_xla._src.compile.program import Program
from torch_xla._src.graph import inspect
from torch_xla._src.graph.printing import Graph, shape_text
from torch_xla._src.graph.value import Row, Spec
from torch_xla._src.ops.dtypes import numpy_dtype
from torch_xla._src.runtime import client
from torch_xla._src.view import cost, page, python


class View:
    """One recording, as far as its outputs need it. Prints as a table: result, op, shapes, module path, user line.

    rows: the ops. recording: these, and those that are not needed. leaves: Specs of the inputs. roots: the outputs.
    program: what it was compiled to, None if it is pending.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        leaves: Sequence[Spec],
        roots: Sequence[int],
        counts: tuple[int, int, int],
        program: Program | None,
    ) -> None:
        self.recording, self.leaves, self.roots, self.counts, self.program = (
            list(rows),
            list(leaves),
            list(roots),
            counts,
            program,
        )
        plan = uses(rows, [root for root in roots if root >= 0])
        self.rows = [row for row, use in zip(rows, plan, strict=True) if use is Use.RUN]
        self._lowered: Any = None

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} ops, {len(self.leaves)} inputs, {len(self.roots)} outputs"]
        for row in self.rows:
            shapes = ", ".join(shape_text(spec) for spec in row.outs if spec is not None)
            lines.append(f"  %{row.base} = {row.op._schema.name}  {shapes}  {row.module or '-'}  {row.line}")
        return "\n".join(lines)

    def python(self) -> str:
        """Source of a function `program(leaves, floats=(), ints=(), device="cpu")` of aten ops that computes the outputs.

        leaves: tensors for the inputs, in the order of `leaves`; floats, ints: numbers that are inputs of the program.
        """
        return python.text(self._numbered(), self.leaves, self.roots)

    def _numbered(self) -> list[Row]:
        """The rows that are run. Those that are not may hold numbers that are inputs; these are counted by position."""
        skipped = [row for row in self.recording if row not in self.rows]
        return self.recording if any(_has_slot((row.args, row.kwargs)) for row in skipped) else self.rows

    def dot(self) -> str:
        """The graph in the language of graphviz."""
        return Graph(self.recording, self.leaves, self.roots).dot()

    def lowered(self) -> Any:
        """jax.stages.Lowered of the recording, without donation and checks."""
        if self._lowered is None:
            sharding = jax.sharding.SingleDeviceSharding(client.default_device())
            avals = [jax.ShapeDtypeStruct(s.shape, numpy_dtype(s.dtype), sharding=sharding) for s in self.leaves]
            self._lowered = inspect.lowered(self.recording, avals, self.roots, self.counts)
        return self._lowered

    def stablehlo(self) -> str:
        """The StableHLO module as text, with module paths and user lines as its locations."""
        return str(self.lowered().as_text(debug_info=True))

    def hlo(self) -> str:
        """The HLO that the compiler has made of it, with module paths and user lines as metadata.

        That of the program that runs; what is pending is compiled for this, without donation, and not kept.
        """
        return str(self.executable().as_text())

    def executable(self) -> Any:
        """jax.stages.Compiled of the recording: that which runs; of what is pending, one compiled for this, and not kept."""
        return self.program.executable if self.program is not None else self.lowered().compile()

    def cost(self) -> cost.Module:
        """Floating point operations and bytes by module, counted from shapes: a tree, `total` of the root is that of all."""
        return cost.by_module(self.rows, self.leaves)

    def compiler_cost(self) -> dict[str, float]:
        """What the compiler says of the whole: "flops" and "bytes accessed", if it says anything."""
        found = self.executable().cost_analysis()
        found = found[0] if isinstance(found, (list, tuple)) else found
        return {name: float(found[name]) for name in ("flops", "bytes accessed") if found and name in found}

    def html(self) -> str:
        """A page that needs nothing else: the ops by module, with shapes, lines and costs."""
        return page.html_of(self.cost(), self.compiler_cost(), self.leaves, self.roots)

    def save_html(self, path: str | PathLike[str]) -> None:
        """Writes `html()` to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")


def _has_slot(templates: Any) -> bool:
    from torch_xla._src.compile.program import slots_in

    return bool(slots_in(templates[0]) or slots_in(templates[1]))


def pending(tensors: Sequence[torch.Tensor] | torch.Tensor | None) -> View:
    """What is pending for some tensors, or for all that live."""
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    found = inspect.pending(tensors)
    return View(found.rows, found.specs, found.roots, found.counts, None)


def compiled() -> list[View]:
    """The programs that are kept, the one used last at the end."""
    views = []
    for (_, key), row in list(program_cache._used.items()):
        program = row.programs.get(key)
        if program is not None:
            rows = list(program.rows)
            leaves = [spec for r in rows for spec in r.leaves]
            views.append(View(rows, leaves, list(program.live), program.counts, program))
    return views
