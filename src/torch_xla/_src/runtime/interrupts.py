"""Ctrl-C waits for a launch to be complete.

A program takes over the buffers of the parameters it updates. An interrupt after that, but before the tensors hold the
new buffers, would leave the model without either.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Uninterrupted:
    """A context that holds back SIGINT, and delivers it at the end. Does nothing on threads that never get signals."""

    def __enter__(self) -> None:
        self.original: Any = None
        self.received: tuple[int, FrameType | None] | None = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self.original = handler
                signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self.received = number, frame

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self.original is not None:
            signal.signal(signal.SIGINT, self.original)
            if self.received is not None:
                self.original(*self.received)
