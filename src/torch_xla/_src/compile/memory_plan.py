"""What memory a program takes, before it runs: XLA's own figures, and an estimate of what takes it.

Note [Memory plans]
XLA's figures (`memory_analysis`) are exact and have no parts: arguments, outputs, what both share by donation,
temporaries, code. Which ops they belong to is estimated from the recording: the result of each row lives from that row to
the last that reads it (to the end, if it is an output), a view lives in what it shows, and an input until the end unless
it is donated. XLA keeps less, since it fuses ops and orders them anew, so an estimate says where to look, not how much fits.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_xla._src.compile.plan import Use, refs_in, uses
from torch_xla._src.compile.recovery import num_bytes
from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import memory

if TYPE_CHECKING:
    from torch_xla._src.view.program import View

_INPUTS = "(inputs)"
_SHOWN = 20  # groups in a table or a picture; the rest is one
_COLOURS = [
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#e15759",
    "#76b7b2",
    "#edc948",
    "#b07aa1",
    "#ff9da7",
    "#9c755f",
    "#bab0ac",
]


@dataclass(frozen=True)
class Position:
    """One op of a program. op, line, group: which it is, the user's line, its module (its line where that is not known).

    held: estimated bytes while it runs, by group. largest: of its own results, in bytes.
    """

    op: str
    line: str
    group: str
    held: dict[str, int]
    largest: int


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one program, in bytes. See Note [Memory plans].

    By XLA: arguments; outputs; aliased (outputs written over donated arguments); temporaries; generated_code; peak, which is
    arguments + outputs + temporaries - aliased. limit: of the device. Estimated: `positions`, the ops in their order.
    known: whether XLA gave figures; if not, they are 0. host: what is in the memory of the host, and in no other figure.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    generated_code: int
    limit: int
    known: bool = True
    host: int = 0
    positions: list[Position] = field(default_factory=list, repr=False)

    @property
    def peak(self) -> int:
        """Bytes of the program while it runs, by XLA."""
        return self.arguments + self.outputs + self.temporaries - self.aliased

    @property
    def fits(self) -> bool:
        """Whether the peak is below the device's limit, if nothing else were there."""
        return self.peak <= self.limit

    @property
    def estimated_peak(self) -> int:
        """Bytes at the position that holds most, by the estimate."""
        return max((sum(p.held.values()) for p in self.positions), default=0)

    def at_peak(self) -> dict[str, int]:
        """Estimated bytes by group at the position that holds most, the largest group first."""
        held = max((p.held for p in self.positions), key=lambda h: sum(h.values()), default={})
        return dict(sorted(held.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        figures = (
            ("arguments", self.arguments), ("outputs", self.outputs), ("aliased", -self.aliased),
            ("temporaries", self.temporaries), ("peak", self.peak), ("limit of the device", self.limit),
            ("code", self.generated_code),
        )  # fmt: skip
        lines = ["Memory of the program" + (", by XLA" if self.known else " (XLA gives no figures here)")]
        lines += [f"  {name:<20}{number:>18,}" for name, number in figures]
        if self.host:
            lines.append(f"  {'in host memory':<20}{self.host:>18,}")
        if not self.fits:
            lines.append(f"  It does not fit: {self.peak - self.limit:,} bytes too much.")
        if not self.positions:
            return "\n".join(lines)
        place = max(range(len(self.positions)), key=lambda i: sum(self.positions[i].held.values()))
        most = self.positions[place]
        lines += [
            f"Estimate, by liveness of results (XLA fuses ops, and keeps less): at most {self.estimated_peak:,}",
            f"  at op {place + 1} of {len(self.positions)}, {most.op} at {most.line or 'an unknown line'}",
        ]
        lines += [f"  {number:>18,}  {name}" for name, number in _top(self.at_peak()).items()]
        largest = sorted(self.positions, key=lambda p: -p.largest)[:5]
        lines.append("Largest results")
        lines += [f"  {p.largest:>18,}  {p.op} at {p.line or 'an unknown line'}" for p in largest]
        return "\n".join(lines)

    def series(self) -> dict[str, list[int]]:
        """Estimated bytes by group over the positions; the smaller groups are one."""
        highest: dict[str, int] = {}
        for position in self.positions:
            for name, number in position.held.items():
                highest[name] = max(number, highest.get(name, 0))
        names = sorted(highest, key=lambda name: -highest[name])
        found = {name: [p.held.get(name, 0) for p in self.positions] for name in names[:_SHOWN]}
        if names[_SHOWN:]:
            rest = names[_SHOWN:]
            found["(others)"] = [sum(p.held.get(name, 0) for name in rest) for p in self.positions]
        return found

    def save_html(self, path: str | PathLike[str]) -> None:
        """Writes the table, and the estimate over the positions stacked by group, as a page that needs nothing else."""
        Path(path).write_text(_page(self), encoding="utf-8")

    def save_png(self, path: str | PathLike[str]) -> None:
        """The picture alone. ImportError without matplotlib."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError("a PNG is drawn by the package matplotlib: install it, or use save_html") from None
        figure = Figure(figsize=(12, 6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        series = self.series()
        if series:
            scaled = [[x / 2**20 for x in numbers] for numbers in series.values()]
            colours = [_colour(i) for i in range(len(series))]
            axes.stackplot(range(len(self.positions)), scaled, labels=list(series), colors=colours)
            axes.legend(fontsize="small", loc="upper left")
        axes.set(xlabel="position in the program", ylabel="MiB (estimated)")
        figure.savefig(path, format="png")


def of_program(program: Any) -> MemoryPlan:
    """The plan of a compiled program (`compile.program.Program`)."""
    return _plan(program.executable, program.rows, program.live, program.donated)


def of_view(view: View) -> MemoryPlan:
    """The plan of a recording to look at; what is pending is compiled for it as it is shown, without donation."""
    if view.program is not None:
        return of_program(view.program)
    roots = [root for root in view.roots if root >= 0]
    if not roots:
        raise ValueError("nothing was pending when this program was asked for: there is nothing to plan")
    with _explained(view.recording):
        return _plan(view.executable(), view.recording, roots, frozenset())


def _plan(executable: Any, rows: Sequence[Row], live: Sequence[int], donated: frozenset[int]) -> MemoryPlan:
    stats = executable.memory_analysis()

    def figure(name: str) -> int:
        return 0 if stats is None else int(getattr(stats, f"{name}_size_in_bytes"))

    return MemoryPlan(
        arguments=figure("argument"),
        outputs=figure("output"),
        aliased=figure("alias"),
        temporaries=figure("temp"),
        generated_code=figure("generated_code"),
        limit=memory.info()["bytes_limit"],
        known=stats is not None,
        host=figure("host_argument") + figure("host_output") + figure("host_temp") - figure("host_alias"),
        positions=estimate(rows, live, donated),
    )


def estimate(rows: Sequence[Row], live: Sequence[int], donated: frozenset[int]) -> list[Position]:
    """The ops that are run for the outputs `live`, with what is held at each of them. donated: leaves that are consumed."""
    used = [row for row, use in zip(rows, uses(rows, live), strict=True) if use is Use.RUN]
    owner = _owners(used)
    last = {owner[n]: len(used) for n in live if n in owner}
    for position, row in enumerate(used):
        for ref in refs_in((row.args, row.kwargs)):
            known = owner.get(ref, ref)
            last[known] = max(position, last.get(known, 0))
    held: dict[str, int] = {}
    ends: dict[int, list[tuple[str, int]]] = {}
    for number, spec in enumerate(spec for row in rows for spec in row.leaves):
        held[_INPUTS] = held.get(_INPUTS, 0) + num_bytes(spec)
        if number in donated:
            ends.setdefault(last.get(-1 - number, 0), []).append((_INPUTS, num_bytes(spec)))
    found = []
    for position, row in enumerate(used):
        sizes = [num_bytes(s) for n, s in enumerate(row.outs, row.base) if s is not None and owner[n] == n]
        group = _group(row)
        if sizes:
            held[group] = held.get(group, 0) + sum(sizes)
        found.append(Position(str(row.op), row.line, group, dict(held), max(sizes, default=0)))
        for number, out in enumerate(row.outs, row.base):
            if out is not None and owner[number] == number:
                ends.setdefault(max(position, last.get(number, position)), []).append((group, num_bytes(out)))
        for name, size in ends.pop(position, ()):
            held[name] = held.get(name, 0) - size  # a group that holds empty tensors alone is not listed
        held = {name: number for name, number in held.items() if number}
    return found


def _owners(rows: Sequence[Row]) -> dict[int, int]:
    """By output, the output or leaf whose memory it is in."""
    owner: dict[int, int] = {}
    for row in rows:
        shown = next(iter(refs_in(row.args[:1])), None) if row.view is not None else None
        for number in range(row.base, row.base + len(row.outs)):
            owner[number] = number if shown is None else owner.get(shown, shown)
    return owner


def _group(row: Row) -> str:
    return getattr(row, "module", "") or row.line or "(unknown)"


@contextmanager
def _explained(rows: Sequence[Row]) -> Iterator[None]:
    """A block that compiles `rows`, with errors that say what was compiled."""
    from torch_xla._src.compile.program import RowError
    from torch_xla._src.compile.recovery import explain

    try:
        yield
    except RowError as error:
        raise RuntimeError(f"the recording does not compile as a whole, so it has no plan: {error}") from error
    except Exception as error:
        raise (explain(error, rows) if "RESOURCE_EXHAUSTED" in str(error) else error) from None


def pending(wanted: torch.Tensor | None) -> MemoryPlan:
    """The plan of the program that the next launch will run; compiles it if it is new, and runs nothing."""
    from torch_xla._src.compile import donation
    from torch_xla._src.compile.launch import Launch
    from torch_xla._src.graph.recorder import RECORDER
    from torch_xla._src.graph.tensor import value_of

    with RECORDER.lock:
        value = None if wanted is None else value_of(wanted)
        if value is not None and (value.buffer is not None or value.generation != RECORDER.generation):
            raise ValueError("the tensor has been computed, or nothing was written to it: there is nothing to plan")
        r = RECORDER
        launch = Launch(r.node, r.values, r.leaf_values, r.leaf_buffers, r.replaced, value)
        launch.inputs(list(r.floats), list(r.ints), list(r.keys))
        if not launch.live and not launch.node.checked:
            raise ValueError(
                "nothing is pending: plan before the step is launched, or ask for the last program with last()"
            )
        before = donation._last
        try:
            with _explained(r.node.path()):
                return of_program(launch._choose())
        finally:
            donation._last = before


def last() -> MemoryPlan:
    """The plan of the program that was launched last. RuntimeError if there is none."""
    from torch_xla._src.compile import donation

    if donation._last is None:
        raise RuntimeError("nothing has been launched yet")
    return of_program(donation._last.program)


# ---- pictures -------------------------------------------------------------------------------------------------------


def _top(groups: dict[str, int]) -> dict[str, int]:
    shown = dict(list(groups.items())[:_SHOWN])
    rest = sum(list(groups.values())[_SHOWN:])
    return {**shown, "(others)": rest} if rest else shown


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _page(plan: MemoryPlan) -> str:
    series, count, highest = plan.series(), max(len(plan.positions), 1), max(plan.estimated_peak, 1)
    base, shapes, legend = [0] * len(plan.positions), [], []
    for number, (name, numbers) in enumerate(series.items()):
        top = [a + b for a, b in zip(base, numbers, strict=True)]
        points = [(i, y) for i, y in enumerate(top)] + [(i, base[i]) for i in reversed(range(len(base)))]
        text = " ".join(f"{1000 * i / count:.2f},{400 - 400 * y / highest:.2f}" for i, y in points)
        label = f"{html.escape(name)}: at most {max(numbers):,} bytes"
        shapes.append(f'<polygon points="{text}" fill="{_colour(number)}"><title>{label}</title></polygon>')
        legend.append(f'<li><span style="color:{_colour(number)}">&#9632;</span> {label}</li>')
        base = top
    return (
        '<!doctype html><meta charset="utf-8"><title>Memory of a program</title>'
        f"<pre>{html.escape(str(plan))}</pre>"
        '<svg viewBox="0 0 1000 400" style="width:100%;border:1px solid #888">' + "".join(shapes) + "</svg>"
        f"<p>Across: {len(plan.positions)} ops in their order. Up: estimated bytes, {plan.estimated_peak:,} at the top.</p>"
        "<ul style='list-style:none'>" + "".join(legend) + "</ul>\n"
    )
