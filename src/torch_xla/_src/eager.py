"""Eager mode: every op is a program of its own, launched at once.

Note [Eager mode]
An op that is recorded while eager mode is on ends the recording. Ops go through the same lowerings, and a program per op
and input shapes is kept like any other, so that after the first time an op only costs its launch. A large view has no
program (Note [Views at a cut]): it is part of that of the op that uses it. Programs and launches are sampled as
`EagerOpCompileTime` and `EagerOpExecuteTime`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_xla._src import environment

enabled = environment.flag("XLA_USE_EAGER_DEBUG_MODE")
_recorder: Any = None
_WRAPPED = ("record", "record_values", "buffer", "cut")


def set_enabled(enable: bool) -> None:
    """Turns eager mode on or off; what is pending is launched first."""
    global enabled
    if enable == enabled:
        return
    if _recorder is not None and enable:
        _recorder.cut()
    enabled = enable
    if _recorder is not None:
        _apply(_recorder)


@contextmanager
def mode(enable: bool) -> Iterator[None]:
    """A context in which eager mode is on or off."""
    before = enabled
    set_enabled(enable)
    try:
        yield
    finally:
        set_enabled(before)


def attach(recorder: Any) -> None:
    """Tells this module of the process's recorder, when that is made."""
    global _recorder
    _recorder = recorder
    _apply(recorder)


def _apply(recorder: Any) -> None:
    """Puts methods that cut after each op over those of the recorder's class, or takes them away."""
    if enabled:
        depth = _Depth()
        for name in _WRAPPED:
            setattr(recorder, name, _cutting(recorder, getattr(type(recorder), name), depth, name))
    else:
        for name in _WRAPPED:
            recorder.__dict__.pop(name, None)


class _Depth:
    """How many wrapped methods are running: an op may record others, and only the outermost ends the recording."""

    value = 0


def _cutting(recorder: Any, method: Callable[..., Any], depth: _Depth, name: str) -> Callable[..., Any]:
    records = name.startswith("record")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with recorder.lock:
            depth.value += 1
            try:
                result = method(recorder, *args, **kwargs)
            finally:
                depth.value -= 1
            if records and depth.value == 0:
                recorder.cut()
            return result

    return wrapped
