"""The first thing in which two recordings differ, in words."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch

from torch_xla._src.graph.value import Ref, Row, Slot, Spec

_MAX_ALIGNED = 3000  # rows: beyond that, which ops are new is told by counting, not by aligning the recordings
_MAX_NAMED = 3  # ops that a text names


class Kind(enum.Enum):
    """What kind of thing made a program necessary."""

    FIRST = "first program"
    UNLIKE = "unlike any recording before"
    SHAPE = "shape"
    DTYPE = "dtype"
    NUMBER = "number"
    OPS = "ops"
    INPUT = "input"
    OUTPUT = "output"
    DONATION = "buffer that may be reused"
    SETTING = "setting"


@dataclass(frozen=True)
class Difference:
    """One difference. line: where in the user's code; op: by name; both may be empty. leaf: whose shape or dtype differs.

    text: what was, and what is. Names of leaves stand in it as "{leaf}".
    """

    kind: Kind
    line: str
    op: str
    text: str
    leaf: int | None = None


def between(old: Sequence[Row], new: Sequence[Row]) -> Difference | None:
    """The first difference of two recordings; None if they are the same."""
    for number, (a, b) in enumerate(zip(old, new)):
        if a is b:
            continue
        if a.op is not b.op or (a.line != b.line and _looks_moved(old, new, number)):
            return _ops(old[number:], new[number:])
        if found := _leaves(a, b) or _arguments(old, new, a, b) or _outputs(a, b):
            return found
    return _ops(old[len(new) :], new[len(old) :]) if len(old) != len(new) else None


def _looks_moved(old: Sequence[Row], new: Sequence[Row], number: int) -> bool:
    """Whether rows of one op but of different lines are others, not the same ones called from elsewhere."""
    return [r.op for r in old[number:]] != [r.op for r in new[number:]]


def _name(row: Row) -> str:
    return str(row.op._schema.name)


# ---- the same op ----------------------------------------------------------------------------------------------------


def _leaves(a: Row, b: Row) -> Difference | None:
    for position, (was, now) in enumerate(zip(a.leaves, b.leaves)):
        if was != now:
            kind, text = _specs(was, now)
            return Difference(kind, b.line, _name(b), text, b.leaf_base + position)
    return None


def _specs(was: Spec, now: Spec) -> tuple[Kind, str]:
    if was.dtype != now.dtype:
        return Kind.DTYPE, f"{{leaf}} was {_dtype(was.dtype)}, now {_dtype(now.dtype)}"
    if len(was.shape) != len(now.shape):
        return (
            Kind.SHAPE,
            f"{{leaf}} had {len(was.shape)} dims {list(was.shape)}, now {len(now.shape)} {list(now.shape)}",
        )
    dims = [dim for dim, (x, y) in enumerate(zip(was.shape, now.shape)) if x != y]
    if not dims:
        return Kind.SHAPE, f"{{leaf}} had strides {was.strides or 'contiguous'}, now {now.strides or 'contiguous'}"
    changes = [f"dim {dim} of {{leaf}} was {was.shape[dim]}, now {now.shape[dim]}" for dim in dims]
    return Kind.SHAPE, "; ".join(changes)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _arguments(old: Sequence[Row], new: Sequence[Row], a: Row, b: Row) -> Difference | None:
    names = [argument.name for argument in b.op._schema.arguments]
    if len(a.args) != len(b.args) or a.names != b.names:
        return Difference(Kind.NUMBER, b.line, _name(b), "it is called with other arguments")
    before = [*zip(names, a.args), *zip(a.names, a.kwargs)]
    now = [*zip(names, b.args), *zip(b.names, b.kwargs)]
    for (name, was), (_, is_) in zip(before, now):
        if found := _argument(old, new, b, name, was, is_):
            return found
    return None


def _argument(old: Sequence[Row], new: Sequence[Row], row: Row, name: str, was: Any, now: Any) -> Difference | None:
    if type(was) is Ref and type(now) is Ref:
        return _sources(old, new, row, name, int(was), int(now))
    if type(was) is tuple and type(now) is tuple and len(was) == len(now):
        pairs = (_argument(old, new, row, name, x, y) for x, y in zip(was, now))
        return next((found for found in pairs if found), None)
    if type(was) is type(now) and (was is now or repr(was) == repr(now)):
        return None
    if Slot in (type(was), type(now)):
        return None if type(was) is type(now) else Difference(
            Kind.NUMBER, row.line, _name(row), f"argument `{name}` is a number in one recording and an input in the other"
        )  # fmt: skip
    if type(was) is Ref or type(now) is Ref:
        return Difference(Kind.INPUT, row.line, _name(row), f"argument `{name}` was {_thing(was)}, now {_thing(now)}")
    what = "scalar" if type(now) in (int, float, complex, bool) else "argument"
    return Difference(Kind.NUMBER, row.line, _name(row), f"{what} `{name}` was {was!r}, now {now!r}")


def _thing(x: Any) -> str:
    return "a tensor" if type(x) is Ref else repr(x)


def _sources(old: Sequence[Row], new: Sequence[Row], row: Row, name: str, was: int, now: int) -> Difference | None:
    if was == now:
        return None
    leaf = -1 - now if now < 0 else None
    if was >= 0 and now >= 0:
        text = f"argument `{name}` was what {_maker(old, was)} gave, now what {_maker(new, now)} gives"
    elif was < 0 and now < 0:
        text = f"argument `{name}` is another tensor than before: {{leaf}}"
    elif was >= 0:
        text = (
            f"argument `{name}` was computed in the same program, by {_maker(old, was)}; now {{leaf}} is there before"
        )
    else:
        text = f"argument `{name}` was there before the program ran; now {_maker(new, now)} in it computes it"
    return Difference(Kind.INPUT, row.line, _name(row), text, leaf)


def _maker(rows: Sequence[Row], number: int) -> str:
    for row in rows:
        if row.base <= number < row.base + len(row.outs):
            return f"{_name(row)} at {row.line or 'an unknown line'}"
    return "an op"


def _outputs(a: Row, b: Row) -> Difference | None:
    for was, now in zip(a.outs, b.outs):
        if was is not None and now is not None and was != now:
            kind, text = _specs(was, now)
            return Difference(kind, b.line, _name(b), text.replace("{leaf}", "its result"))
    return None


# ---- other ops ------------------------------------------------------------------------------------------------------


def _ops(old: Sequence[Row], new: Sequence[Row]) -> Difference:
    added, removed = _blocks(old, new)
    if added and removed and [r.op for r in added] != [r.op for r in removed]:
        text = f"{_listed(added)} recorded in place of {_listed(removed)}"
        if removed[0].line != added[0].line:
            text += f" of {_place(removed[0])}"
        return Difference(Kind.OPS, added[0].line, _name(added[0]), text)
    if added:
        return Difference(Kind.OPS, added[0].line, _name(added[0]), f"new: {_listed(added)}")
    return Difference(Kind.OPS, removed[0].line, _name(removed[0]), f"not recorded this time: {_listed(removed)}")


def _blocks(old: Sequence[Row], new: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The first rows that one recording has and the other has not: of `new`, of `old`."""
    a, b = [(r.op, r.line) for r in old], [(r.op, r.line) for r in new]
    if max(len(a), len(b)) <= _MAX_ALIGNED:
        for tag, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if tag != "equal":
                return list(new[k:m]), list(old[i:j])
    more, fewer = Counter(b) - Counter(a), Counter(a) - Counter(b)
    return [r for r, t in zip(new, b) if t in more], [r for r, t in zip(old, a) if t in fewer]


def _listed(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(map(_name, rows)))
    more = ", ..." if len(names) > _MAX_NAMED else ""
    return f"{len(rows)} op{'s' * (len(rows) != 1)} ({', '.join(names[:_MAX_NAMED])}{more})"


def _place(row: Row) -> str:
    return row.line or "an unknown line"
