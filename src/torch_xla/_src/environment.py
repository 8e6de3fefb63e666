"""How environment variables are read: at each use, so that setting one after the import counts.

A flag is on for "1", "true", "yes", "on" (in any case) and for numbers other than 0; PyTorch/XLA has three parsers, which
disagree, and one of which fails at "true".
"""

from __future__ import annotations

import os

_ON = frozenset({"true", "yes", "on", "y", "t"})


def flag(name: str, default: bool = False) -> bool:
    """Whether a variable says yes; `default` if it is unset or empty."""
    text = os.environ.get(name, "").strip()
    return is_on(text) if text else default


def is_on(text: str) -> bool:
    """Whether the text of a flag says yes."""
    text = text.strip().lower()
    return text in _ON or (text.lstrip("+-").isdigit() and int(text) != 0)


def integer(name: str, default: int) -> int:
    """A variable that is an integer, or a flag, which counts as 1; `default` if it is unset or no such thing."""
    text = os.environ.get(name, "").strip()
    try:
        return int(text)
    except ValueError:
        return int(is_on(text)) if text and (is_on(text) or text.lower() in ("false", "no", "off")) else default
