"""One name of the public surface, and how it is written in the tables."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MARKS = ("must", "should", "rare", "new")


class Opaque(str):
    """The source of a default value that is no literal."""


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    mark: "must", "should", "rare" or "new". state: as in Note [Public surface]. arguments: the source of its signature, with
    parentheses, or None for what is not called. reason: why it is absent, or an empty string.
    """

    module: str
    name: str
    mark: str
    state: str
    is_class: bool
    arguments: str | None
    reason: str = ""

    @property
    def waits_for(self) -> str | None:
        """What it waits for, or None."""
        return self.state.removeprefix("waits:") if self.state.startswith("waits:") else None

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """Parsed from `arguments`; None for what is not called."""
        return None if self.arguments is None else parse_signature(self.arguments)


def parse_signature(source: str) -> inspect.Signature:
    """ "(a, b=1, *, c=None)" as a signature; defaults that are no literals are Opaque."""
    function = ast.parse(f"def f{source}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    kinds = inspect.Parameter
    parameters = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        parameters.append(kinds(argument.arg, kinds.POSITIONAL_OR_KEYWORD, default=_value(default)))
    if arguments.vararg is not None:
        parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(kinds(argument.arg, kinds.KEYWORD_ONLY, default=_value(default)))
    if arguments.kwarg is not None:
        parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(default)
    except ValueError:
        return Opaque(ast.unparse(default))


def parse(text: str) -> list[Entry]:
    """The entries of a table.

    A line `# MODULE` starts a module. Each other line is `MARK STATE NAME`, `MARK STATE NAME(SIGNATURE)` or the latter
    with `class ` before the name; `: REASON` may follow an absent one.
    """
    entries, module = [], ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("# "):
            module = line[2:]
            continue
        mark, state, rest = line.split(" ", 2)
        assert mark in MARKS, line
        state = state.replace("_", " ")
        rest, _, reason = rest.partition(" : ") if state == "absent" else (rest, "", "")
        is_class = rest.startswith("class ")
        name, paren, arguments = rest.removeprefix("class ").partition("(")
        called = paren + arguments if paren else None
        entries.append(Entry(module, name, mark, state, is_class, called, reason and f": {reason}"))
    return entries
