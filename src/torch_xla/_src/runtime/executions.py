"""How long programs take on the device, measured without holding up the thread that launches them.

A launch returns before the device has finished. A thread of its own waits for each program in turn, by an output of it,
and samples the time since the launch. It waits on an object of its own for the buffer, so the buffer can be donated.
Until Python lets the thread run, at most a switch interval (5 ms) if the launching thread computes without a pause, a
program seems to run on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from typing import Any

from torch_xla._src.runtime import metrics


class _Execution:
    """A launch that may still be running. watched: None once it has been seen to finish."""

    __slots__ = ("epoch", "start", "watched")

    def __init__(self, start: int, watched: Any) -> None:
        self.start, self.watched, self.epoch = start, watched, metrics.epoch


_queue: queue.SimpleQueue[_Execution | None] = queue.SimpleQueue()
_running: list[_Execution] = []  # oldest first; the thread takes them out
_thread: threading.Thread | None = None


def started(start: int, outputs: list[Any]) -> None:
    """Takes note of a program launched at `start` (perf_counter_ns) that will compute `outputs`."""
    global _thread
    if not outputs:
        return
    watched = min(outputs, key=_num_elements) if len(outputs) <= 4 else outputs[0]
    execution = _Execution(start, watched.addressable_data(0))
    _running.append(execution)
    if _thread is None:
        _thread = threading.Thread(target=_watch, name="torch_xla executions", daemon=True)
        _thread.start()
        atexit.register(_stop)
    _queue.put(execution)


def _num_elements(buffer: Any) -> int:
    return int(buffer.size)


def _watch() -> None:
    while (execution := _queue.get()) is not None:
        # It may have failed, which whoever reads it is told, or have been donated before this thread had its turn.
        with contextlib.suppress(Exception):
            execution.watched.block_until_ready()
        end = time.perf_counter_ns()
        execution.watched = None
        if execution.epoch == metrics.epoch:
            metrics.sample("ExecuteTime", end - execution.start)
        _running.remove(execution)


def settle(wait: bool = False) -> None:
    """Returns when all programs that have finished by now are in the metrics; with `wait`, when all are."""
    running = list(_running)
    last = len(running) if wait else max((n for n, e in enumerate(running, 1) if _has_finished(e)), default=0)
    for execution in running[:last]:  # a device runs programs in order
        while execution in _running and _thread is not None and _thread.is_alive():
            time.sleep(0.0001)


def _has_finished(execution: _Execution) -> bool:
    """Whether a program is known to have finished. Of one whose output was donated meanwhile it is not known."""
    watched = execution.watched
    with contextlib.suppress(Exception):  # donated between the two questions
        return watched is None or (not watched.is_deleted() and watched.is_ready())
    return False


def _stop() -> None:
    """Ends the thread, after what is running: one that waits for a device when Python is gone would crash the process."""
    if _thread is not None and _thread.is_alive():
        _queue.put(None)
        _thread.join()


def _after_fork() -> None:
    global _thread
    _thread = None
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)
metrics.settle.append(settle)
