"""Why a program is compiled: in what its recording differs from the nearest one that is known, and what to do about it.

Note [Why did it compile]
A program is known by its recording and by what its key holds beside that (`Launch._key`). If the recording itself is
known, something in the key is new: another output is alive, a buffer can or cannot be reused, a setting. Else the recording
is compared with the one among the last programs that has most in common with it. The first difference is told, since
what follows tends to follow from it.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_xla._src import environment
from torch_xla._src.compile.difference import Difference, Kind, between
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import frames, names

if TYPE_CHECKING:
    from torch_xla._src.compile.launch import Launch

_KEPT = 32  # programs that a new recording is compared with
_ALIKE = 0.5  # share of ops that two recordings have in common if one is a relative of the other
_LIMIT = "TORCH_XLA_MAX_COMPILES"

_REMEDIES = {
    Kind.FIRST: "nothing to do: the first program of a process is always compiled, or loaded from the cache on disk",
    Kind.UNLIKE: "nothing to do if this code runs for the first time",
    Kind.SHAPE: "each shape compiles once. Pad to a few sizes, drop a last short batch (drop_last=True), or declare the dim: "
    "torch_xla.mark_dynamic(tensor, dim, min=..., max=...)",
    Kind.DTYPE: "convert it before the loop, so that every step gets the same dtype",
    Kind.NUMBER: "a number that is part of a program compiles again when it changes. Keep it the same, or pass a tensor: "
    "torch.tensor(number, device='xla')",
    Kind.OPS: "the same path through the code compiles once. Look for an `if` on a number or a flag, a mode such as train() and "
    "eval(), or a torch_xla.sync() or a read (.item(), print) that comes at another place than last time",
    Kind.INPUT: "end steps at the same place, with torch_xla.sync(), so that each begins with the same tensors computed",
    Kind.OUTPUT: "what is alive when a step ends is an output of its program. Keep the same tensors in every step: del what is "
    "not needed, store .item() or .detach().cpu() rather than a loss",
    Kind.DONATION: "hold a parameter or buffer in one place only while steps run: see torch_xla.debug.donation_report()",
    Kind.SETTING: "choose settings before the loop",
}


@dataclass(frozen=True)
class Explanation:
    """Why one program was compiled.

    number: how many programs this process had compiled, with this one. kind: of the difference. line: "file:line
    (function)" of the user's code that it is at. op: the op there. difference: what was and what is. remedy: what to do.
    launched_at: the line that made it run. relative: number of the program that it is compared with, 0 if none.
    """

    number: int
    kind: Kind
    line: str
    op: str
    difference: str
    remedy: str
    launched_at: str
    relative: int = 0

    def __str__(self) -> str:
        with_ = f", nearest to program {self.relative}" if self.relative else ""
        lines = [f"program {self.number}{with_}: {self.difference}"]
        if self.line:
            lines.append(f"  at {self.line}" + (f", {self.op}" if self.op else ""))
        if self.launched_at and self.launched_at != self.line:
            lines.append(f"  launched at {self.launched_at}")
        return "\n".join([*lines, f"  {self.remedy}"])


class Explanations(list[Explanation]):
    """Explanations, oldest first; prints one after the other."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing has been compiled"


class CompileLimitError(RuntimeError):
    """A program would have been compiled beyond the limit. explanation: why it is needed.

    What is pending stays pending: it runs once the limit is lifted.
    """

    def __init__(self, explanation: Explanation, limit: str) -> None:
        super().__init__(f"{limit} does not allow another program to be compiled. {explanation}")
        self.explanation = explanation


@dataclass
class _Known:
    """A program that was compiled: the recording, what is in its key, its number; ops, without and with lines, counted."""

    rows: list[Row]
    key: tuple[Any, ...]
    number: int
    ops: Counter[Any] = field(init=False)
    places: Counter[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.ops, self.places = Counter(row.op for row in self.rows), Counter((row.op, row.line) for row in self.rows)


@dataclass
class Limit:
    """How many programs may be compiled from now on. left: may be None, for any number."""

    left: int | None
    name: str


history: deque[Explanation] = deque(maxlen=100)
limits: list[Limit] = []  # the innermost last
_known: deque[_Known] = deque(maxlen=_KEPT)
_num_compiled = 0


def explain(launch: Launch, live: Sequence[int], donated: Iterable[int]) -> Explanation:
    """Explains the program that a launch is about to compile, and takes note of it. CompileLimitError if it is too many."""
    global _num_compiled
    rows = launch.node.path()
    known = _Known(rows, _key(launch, live, donated), _num_compiled + 1)
    difference, relative = _difference(launch, known)
    explanation = Explanation(
        known.number,
        difference.kind,
        difference.line,
        difference.op,
        _with_name(difference, launch),
        _REMEDIES[difference.kind]
        if difference.kind is not Kind.NUMBER or not _is_input_now(difference)
        else _INPUT_NOW,
        frames.user_line(),
        relative,
    )
    _check_limits(explanation)
    _num_compiled = known.number
    RECORDER.relaxed.clear()
    _known.append(known)
    history.append(explanation)
    return explanation


def _key(launch: Launch, live: Sequence[int], donated: Iterable[int]) -> tuple[Any, ...]:
    from torch_xla._src.compile.launch import compile_flags

    prior, checks = bool(launch.prior), bool(launch.replaced)
    return tuple(live), frozenset(donated), launch.counts(), compile_flags(), launch.memories(), prior, checks


def _difference(launch: Launch, new: _Known) -> tuple[Difference, int]:
    if not _num_compiled:
        return Difference(Kind.FIRST, "", "", f"the first one, of {len(new.rows)} ops"), 0
    nearest = max(_known, key=lambda old: (_likeness(old, new), sum(map(operator.eq, old.key, new.key)), old.number))
    score = _likeness(nearest, new)
    if score < _ALIKE:
        first = new.rows[0]
        text = f"{len(new.rows)} ops that have little in common with any program before"
        return Difference(Kind.UNLIKE, first.line, str(first.op._schema.name), text), 0
    found = between(nearest.rows, new.rows) or _in_key(launch, nearest, new)
    return found, nearest.number


def _likeness(old: _Known, new: _Known) -> float:
    """The share of ops that two recordings have in common, half of it for the line; more if they share their first rows."""
    longest = max(len(old.rows), len(new.rows))
    common = sum((old.ops & new.ops).values()) + sum((old.places & new.places).values())
    shared = next((n for n, (a, b) in enumerate(zip(old.rows, new.rows)) if a is not b), longest)
    return common / longest / 2 + shared / longest / 8


# ---- the same recording, another program -----------------------------------------------------------------------------


def _in_key(launch: Launch, old: _Known, new: _Known) -> Difference:
    (was_live, was_donated, was_counts, was_flags, was_memories, *was_checks) = old.key
    (live, donated, counts, flags, memories, *checks) = new.key
    if counts != was_counts and (found := _relaxed(new.rows)):
        return found
    if live != was_live:
        return _outputs(launch, new.rows, was_live, live)
    if flags != was_flags:
        return Difference(Kind.SETTING, "", "", f"the precision of products was {was_flags}, now {flags}")
    if memories != was_memories:
        text = "an input has moved between the memory of the host and that of the device"
        return Difference(Kind.SETTING, "", "", text)
    if checks != was_checks:
        text = "whether an index is in range is now known only on the device, so writes have to be undone if one is not"
        return Difference(Kind.SETTING, "", "", text)
    if donated != was_donated:
        return _donation(new.rows, was_donated, donated)
    return Difference(Kind.SETTING, "", "", "what is known about it has been dropped from memory, or failed to run")


def _relaxed(rows: Sequence[Row]) -> Difference | None:
    mine = {id(row) for row in rows}
    found = [one for one in RECORDER.relaxed if id(one[0]) in mine]
    if not found:
        return None
    row, was, now = min(found, key=lambda one: one[0].depth)
    return Difference(Kind.NUMBER, row.line, str(row.op._schema.name), f"scalar {was!r} became {now!r}: {_INPUT}")


_INPUT = "it is an input of the program from now on"
_INPUT_NOW = "nothing to do: further values of this number compile nothing"


def _is_input_now(difference: Difference) -> bool:
    return difference.text.endswith(_INPUT)


def _outputs(launch: Launch, rows: Sequence[Row], was: Sequence[int], now: Sequence[int]) -> Difference:
    new, gone = sorted(set(now) - set(was)), sorted(set(was) - set(now))
    row = _row_of(rows, (new or gone)[0])
    names_ = names.of_values({n: v for n, v in launch.live if n in new})
    parts = []
    if new:
        held = [f"`{names_[n]}`" for n in new if n in names_]
        parts.append(
            f"{_results(new, row)} dead before when the step ended: now held" + (f" by {held[0]}" if held else "")
        )
    if gone:
        parts.append(f"{_results(gone, _row_of(rows, gone[0]))} held before when the step ended: now dead")
    return Difference(Kind.OUTPUT, row.line, str(row.op._schema.name), "; ".join(parts))


def _results(numbers: Sequence[int], row: Row) -> str:
    name = row.op._schema.name
    return f"the result of {name} was" if len(numbers) == 1 else f"{len(numbers)} results, the first of {name}, were"


def _row_of(rows: Sequence[Row], number: int) -> Row:
    return next(row for row in rows if row.base <= number < row.base + len(row.outs))


def _donation(rows: Sequence[Row], was: frozenset[int], now: frozenset[int]) -> Difference:
    kept, given = sorted(was - now), sorted(now - was)
    leaf = (kept or given)[0]
    row = next(r for r in rows if r.leaf_base <= leaf < r.leaf_base + len(r.leaves))
    spec = row.leaves[leaf - row.leaf_base]
    what = f"the buffer of an input {list(spec.shape)} first read here"
    text = (
        f"{what} could be reused before: now somebody holds it"
        if kept
        else f"{what} was held before: now it can be reused"
    )
    return Difference(Kind.DONATION, row.line, str(row.op._schema.name), text)


# ---- texts and limits --------------------------------------------------------------------------------------------------


def _with_name(difference: Difference, launch: Launch) -> str:
    if difference.leaf is None:
        return difference.text
    found = names.of_values({0: launch.leaf_values[difference.leaf]()})
    return difference.text.replace("{leaf}", f"`{found[0]}`" if found else "an input")


def _check_limits(explanation: Explanation) -> None:
    limit = environment.integer(_LIMIT, -1) if _LIMIT in os.environ else -1
    if 0 <= limit < explanation.number:
        raise CompileLimitError(explanation, f"{_LIMIT}={limit}")
    for one in limits:
        if one.left is not None and one.left <= 0:
            raise CompileLimitError(explanation, one.name)
    for one in limits:
        if one.left is not None:
            one.left -= 1


class limit(contextlib.ContextDecorator):
    """A context, or a decorator, in which at most `count` programs are compiled; CompileLimitError instead of one more."""

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"the number of programs that may be compiled is an integer >= 0, not {count!r}")
        self.count = count

    def _recreate_cm(self) -> limit:
        return limit(self.count)  # for each call of a decorated function, so that they may nest

    def __enter__(self) -> None:
        self._limit = Limit(self.count, f"limit_compiles({self.count})")
        limits.append(self._limit)

    def __exit__(self, *_: object) -> None:
        limits.remove(self._limit)
