"""Finds the line of the user's code that an op comes from."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from functools import cache
from types import FrameType

import torch

_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        sysconfig.get_paths()["stdlib"],
        sysconfig.get_paths()["purelib"],
        sysconfig.get_paths()["platlib"],
    }
)


@cache
def is_library(filename: str) -> bool:
    """Whether a source file is one of torch, torch_xla, the standard library or an installed package."""
    return filename.startswith("<") or os.path.realpath(filename).startswith(_LIBRARIES)


def _innermost(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_frame() -> FrameType | None:
    """The innermost frame outside of torch, torch_xla and installed packages.

    Backward runs on the autograd engine's threads: there it is the frame of the main thread, which waits in backward.
    """
    frame = _innermost(sys._getframe(1))
    if frame is None and threading.current_thread() is not threading.main_thread():
        ident = threading.main_thread().ident
        frame = _innermost(sys._current_frames().get(ident)) if ident is not None else None
    return frame


def user_line() -> str:
    """`file:line (function)` of `user_frame()`, or an empty string."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})" if frame is not None else ""


def user_frames() -> list[tuple[str, str, int]]:
    """(function, file, line) of all user frames that are being executed, innermost first."""
    found = []
    frame = user_frame()
    while frame is not None:
        found.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = _innermost(frame.f_back)
    return found


def user_stack() -> int:
    """A hash of the places in all user frames that are being executed: the instruction, for a line may call twice."""
    places = []
    frame = _innermost(sys._getframe(1))
    while frame is not None:
        places.append((frame.f_code, frame.f_lasti))
        frame = _innermost(frame.f_back)
    return hash(tuple(places))
