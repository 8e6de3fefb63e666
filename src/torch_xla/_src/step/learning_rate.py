"""Follows the learning rate of an optimizer into the numbers of a recording.

Note [Learning rates of frozen steps]
A schedule changes `lr` between steps; everything else about a step may stay what it was. A frozen step (Note [Frozen
steps]) takes the rate from the optimizer's `param_groups` at each call, so it has to know which of its numbers were computed
from it, and how. While a step is observed, each `lr` is a `Rate`, a float that keeps what was computed from it; a
number of the recording that equals one of those results may be that one, or a constant that happens to be the same.
Which, the calls that follow tell: after a change of the rate, the possibilities differ, and the step runs in Python once
more to see. A rate that Python decides on (compares, prints, rounds) can be followed no further: then a change of it
always has the step run in Python. Code in C may read a rate and leave no trace (`math.sqrt`, `torch.tensor`), so the
first change of each group's rate has the step run in Python too, and only if that records the same but for numbers that
have been followed does a frozen step go on with other rates of that group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

import torch

Formula = Callable[[list[float]], float]  # from the rates of all groups to a number


class Formulas:
    """What has been computed from the learning rates in one observed call."""

    def __init__(self) -> None:
        self.found: dict[float, dict[str, Formula]] = {}
        self.escaped = False  # whether Python has decided something by a rate


class Rate(float):
    """A learning rate, or a number computed from one. `text` identifies the computation."""

    formulas: Formulas
    text: str
    formula: Formula

    @classmethod
    def of(cls, formulas: Formulas, value: float, text: str, formula: Formula) -> Rate:
        rate = cls(value)
        rate.formulas, rate.text, rate.formula = formulas, text, formula
        formulas.found.setdefault(float.__float__(rate), {})[text] = formula
        return rate

    def _with(self, name: str, compute: Callable[..., Any], other: Any, swapped: bool) -> Any:
        if type(other) not in (int, float, Rate):
            return NotImplemented
        a, known = self.formula, type(other) is Rate
        b: Formula = other.formula if known else lambda rates: other
        first, second = (b, a) if swapped else (a, b)
        texts = (other.text if known else repr(other), self.text)
        text = f"{name}({', '.join(texts if swapped else texts[::-1])})"
        plain = float.__float__(other) if known else other
        value = compute(plain, float.__float__(self)) if swapped else compute(float.__float__(self), plain)
        return Rate.of(self.formulas, value, text, lambda rates: compute(first(rates), second(rates)))

    def __reduce_ex__(self, protocol: Any) -> Any:  # what is saved or copied is a number
        self.formulas.escaped = True
        return float, (float.__float__(self),)

    def __neg__(self) -> Rate:
        a = self.formula
        return Rate.of(self.formulas, -float.__float__(self), f"neg({self.text})", lambda rates: -a(rates))

    def __add__(self, other: Any) -> Any:
        return self._with("add", lambda a, b: a + b, other, False)

    def __radd__(self, other: Any) -> Any:
        return self._with("add", lambda a, b: a + b, other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with("sub", lambda a, b: a - b, other, False)

    def __rsub__(self, other: Any) -> Any:
        return self._with("sub", lambda a, b: a - b, other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with("mul", lambda a, b: a * b, other, False)

    def __rmul__(self, other: Any) -> Any:
        return self._with("mul", lambda a, b: a * b, other, True)

    def __truediv__(self, other: Any) -> Any:
        return self._with("div", lambda a, b: a / b, other, False)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("div", lambda a, b: a / b, other, True)


def _escaping(name: str) -> Any:
    original = getattr(float, name)

    def method(self: Rate, *args: Any) -> Any:
        self.formulas.escaped = True
        return original(self, *args)

    method.__name__ = name
    return method


for _name in (
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__", "__int__", "__round__",
    "__repr__", "__str__", "__format__", "__float__", "__trunc__", "__floor__", "__ceil__", "__abs__", "__pow__",
    "__rpow__", "__mod__", "__rmod__", "__divmod__", "__rdivmod__", "__floordiv__", "__rfloordiv__", "is_integer",
    "as_integer_ratio", "hex",
):  # fmt: skip
    setattr(Rate, _name, _escaping(_name))


def groups_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The parameter groups whose learning rate is a number of Python."""
    return [g for o in optimizers for g in o.param_groups if type(g.get("lr")) is float]


@contextmanager
def followed(groups: Sequence[dict[str, Any]]) -> Iterator[Formulas]:
    """In the block, the learning rates of the groups are Rates."""
    formulas = Formulas()
    put = [Rate.of(formulas, group["lr"], f"lr{i}", itemgetter(i)) for i, group in enumerate(groups)]
    plain = [group["lr"] for group in groups]
    for group, rate in zip(groups, put, strict=True):
        group["lr"] = rate
    try:
        yield formulas
    finally:
        for group, rate, value in zip(groups, put, plain, strict=True):
            if group.get("lr") is rate:
                group["lr"] = value
            elif type(group.get("lr")) is Rate:  # computed from one
                group["lr"] = float.__float__(group["lr"])


Candidates = dict[str, Formula]  # what a number of a recording may be, by text


def candidates(numbers: Sequence[float], formulas: Formulas) -> list[Candidates]:
    """For each number of a recording, what it may be: a constant always."""
    result = []
    for number in numbers:
        constant: Candidates = {f"constant {number!r}": partial(_constant, number)}
        result.append(constant | formulas.found.get(number, {}))
    return result


def _constant(number: float, rates: list[float]) -> float:
    return number


def narrowed(old: Sequence[Candidates], new: Sequence[Candidates]) -> list[Candidates] | None:
    """What each number may still be after another call; None if one of them can be nothing that is known."""
    if len(old) != len(new):  # a number that was a constant of the program has become an input
        return None
    both = [{text: f for text, f in a.items() if text in b} for a, b in zip(old, new, strict=True)]
    return both if all(both) else None


def numbers(known: Sequence[Candidates], rates: list[float]) -> list[float] | None:
    """The numbers of a recording at these rates; None if one of them may be two different things."""
    result = []
    for formulas in known:
        values = {formula(rates) for formula in formulas.values()}
        if len(values) > 1:
            return None
        result.append(values.pop())
    return result
