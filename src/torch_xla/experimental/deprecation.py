"""Names of PyTorch/XLA's `torch_xla.experimental.deprecation`: functions under their old names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._src import surface
from torch_xla._src.deprecation import alias


def deprecated(
    module: Any, new: Callable[..., Any], old_name: str | None = None, extra_msg: str | None = None
) -> Callable[..., Any]:
    """`new` for use under `module.old_name` (by default of the same name); it warns once."""
    old = f"{module.__name__}.{old_name or new.__name__}"
    function: Callable[..., Any] = alias(old, _advice(new, extra_msg), new)
    return function


def mark_deprecated(new: Callable[..., Any], extra_msg: str | None = None) -> Callable[..., Any]:
    """`new`, which is deprecated itself; it warns once."""
    function: Callable[..., Any] = alias(f"{new.__module__}.{new.__name__}", extra_msg or "something else", new)
    return function


def register_deprecated(module: Any, new: Callable[..., Any]) -> Callable[..., Any]:
    """Puts `new` into `module` as deprecated, and returns it."""
    setattr(module, new.__name__, deprecated(module, new))
    return new


def _advice(new: Callable[..., Any], extra: str | None) -> str:
    text = f"{new.__module__}.{new.__name__}"
    return f"{text}. {extra}" if extra else text


__getattr__ = surface.missing(__name__)
