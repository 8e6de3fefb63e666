"""Deprecated names: each warns once in a process, at the line of the user's code."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

_warned: set[str] = set()


def warn_once(old: str, new: str, stacklevel: int = 3) -> None:
    """DeprecationWarning that `old` is to be replaced by `new`, the first time only."""
    if old not in _warned:
        _warned.add(old)
        warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=stacklevel)


def alias(old: str, new: str, function: Callable[..., Any], result: Callable[[Any], Any] = lambda x: x) -> Any:
    """`function` under its old name. result: what to make of what it returns."""

    @functools.wraps(function)
    def deprecated(*args: Any, **kwargs: Any) -> Any:
        warn_once(old, new)
        return result(function(*args, **kwargs))

    deprecated.__name__ = deprecated.__qualname__ = old.rpartition(".")[2]
    deprecated.__module__ = old.rpartition(".")[0]
    deprecated.__doc__ = f"Deprecated: use {new}."
    return deprecated
