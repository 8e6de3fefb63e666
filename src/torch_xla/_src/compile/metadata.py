"""What XLA's instructions say about where they come from: module path, op, and the user's line.

Note [Metadata of instructions]
JAX takes an instruction's name from the named scopes around it, and its line from the innermost frame that is not of a
library. So each row is lowered in the scope of its module and op, and called from a function whose code says it is in the
user's file, at the user's line. XLA's executable does not depend on it, nor do the keys of programs on disk: what comes
from there says what the process that compiled it saw.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, TypeVar, cast

import jax

import torch_xla
from torch_xla._src.graph.printing import scope_name
from torch_xla._src.graph.value import Row

T = TypeVar("T")
BACKWARD = "backward"  # the scope between module and op of what a backward pass computes


def scope(row: Row) -> str:
    """ "model.layers.3.attn/aten.addmm", what profiles and HLO call the instructions of a row."""
    parts = [row.module.replace("/", "."), BACKWARD if row.backward else "", scope_name(row)]
    return "/".join(part.replace("@", ".") for part in parts if part)  # XLA cuts names at an "@"


def call(row: Row, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, with what it traces named and placed as the row is."""
    with jax.named_scope(scope(row)):
        path, _, rest = row.line.rpartition(":")
        number, _, name = rest.partition(" ")
        if not path or not number.isdigit():
            return function(*args)
        name = name.strip("()")
        first = int(number) - _OFFSET
        placed = _template.__code__.replace(co_filename=path, co_firstlineno=first, co_name=name, co_qualname=name)
        result: T = FunctionType(placed, _globals)(function, args)
        return result


def _template(function: Any, args: Any) -> Any:
    return function(*args)


_OFFSET = 1  # lines from the first of `_template` to its call
_globals: dict[str, Any] = {}


def one_line_each() -> AbstractContextManager[Any]:
    """A block in which JAX notes the line of an instruction only, not who calls that."""
    try:
        from jax._src import config
    except ImportError:
        return contextlib.nullcontext()
    state = getattr(config, "traceback_in_locations_limit", None)
    return contextlib.nullcontext() if state is None else cast(AbstractContextManager[Any], state(1))


def _exclude_package() -> None:
    """Tells JAX that this package is no user code."""
    with contextlib.suppress(ImportError, AttributeError):  # a release without it names our own lines
        from jax.extend import source_info_util

        source_info_util.register_exclusion(os.path.dirname(torch_xla.__file__) + os.sep)


_exclude_package()
