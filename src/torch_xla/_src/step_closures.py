"""Functions to run after the next sync, when the values they print or log have been launched."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

_pending: list[tuple[Callable[..., Any], Sequence[Any], bool]] = []
_errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
_jobs: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
_worker: threading.Thread | None = None


def add_step_closure(closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False) -> None:
    """Calls `closure(*args)` after the next sync; on a background thread if `run_async`.

    An exception of an asynchronous closure is raised at a later sync.
    """
    _pending.append((closure, tuple(args), run_async))


def _work() -> None:
    while True:
        job = _jobs.get()
        try:
            job()
        except BaseException as error:
            _errors.put(error)


def run_step_closures() -> None:
    """Runs what was added since the last sync; raises what an earlier asynchronous closure raised."""
    global _worker
    if not _pending and _errors.empty():
        return
    if not _errors.empty():
        raise _errors.get()
    closures = _pending[:]
    _pending.clear()
    for closure, args, run_async in closures:
        if not run_async:
            closure(*args)
            continue
        if _worker is None:
            _worker = threading.Thread(target=_work, name="torch_xla step closures", daemon=True)
            _worker.start()
        _jobs.put(functools.partial(closure, *args))
