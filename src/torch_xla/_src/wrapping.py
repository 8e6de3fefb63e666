"""Functions that are replaced for a while by ones that do more, so that looking costs nothing when nobody looks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Wrapped:
    """Attributes of modules, classes and objects that have been replaced, until `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, home: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Puts `make(original)` in the place of `home.name`."""
        original, own = getattr(home, name), name in vars(home)
        setattr(home, name, functools.wraps(original)(make(original)))
        self.on_undo(lambda: setattr(home, name, original) if own else delattr(home, name))

    def on_undo(self, function: Callable[[], None]) -> None:
        """Has `undo` call a function, too."""
        self._undo.append(function)

    def undo(self) -> None:
        """Puts everything back, the last first."""
        while self._undo:
            self._undo.pop()()
