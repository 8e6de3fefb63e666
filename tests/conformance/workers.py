"""Runs tasks (entry, dtype) in processes that may die: an abort, a crash or a hang is the result of its task only.

A worker reads tasks from its standard input, one JSON line each, and answers on a pipe of its own, since libraries write
to the standard streams. It is replaced when it dies, when it takes too long, and every so often, to give memory back.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

Task = tuple[str, str]
TASKS_PER_PROCESS = 400
MEMORY_PER_PROCESS = 3 << 20  # kilobytes


def run(
    tasks: Iterable[Task], arguments: list[str], processes: int, timeout: float, done: Callable[[dict[str, Any]], None]
) -> None:
    """Calls `done` with the result of each task, in the order they end. arguments: of the worker processes."""
    waiting, lock = deque(tasks), threading.Lock()

    def take() -> Task | None:
        with lock:
            return waiting.popleft() if waiting else None

    def serve() -> None:
        worker: _Worker | None = None
        while task := take():
            if worker is None or worker.used >= TASKS_PER_PROCESS:
                if worker is not None:
                    worker.close()
                worker = _Worker(arguments)
            result = worker.evaluate(task, timeout)
            if worker.dead:
                worker = None
            with lock:
                done(result)
        if worker is not None:
            worker.close()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Worker:
    """A process that evaluates one task after another."""

    def __init__(self, arguments: list[str]) -> None:
        self.answers, theirs = os.pipe()
        environment = os.environ | {
            "PJRT_DEVICE": os.environ.get("PJRT_DEVICE", "CPU"),
            "OMP_NUM_THREADS": "1",
            "XLA_PERSISTENT_CACHE_PATH": "",  # programs of an older state of the package must not answer
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.workers", str(theirs), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[theirs], env=environment, text=True,
        )  # fmt: skip
        os.close(theirs)
        self.used, self.dead, self.buffer = 0, False, b""
        self._answer(300)  # it says so when everything is imported

    def evaluate(self, task: Task, timeout: float) -> dict[str, Any]:
        """The result of one task, whatever happens."""
        start = time.monotonic()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            answer = self._answer(timeout)
        except OSError:
            answer = None
        if answer is not None:
            self.used = TASKS_PER_PROCESS if answer.pop("full") else self.used + 1
            return answer
        self.process.kill()
        status = self.process.wait()
        late = time.monotonic() - start >= timeout
        reason = f"took more than {timeout:g} s" if late else f"the process ended with status {status}"
        self.close()
        return _failed(task, reason)

    def _answer(self, timeout: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.answers, 1 << 16) if ready else b""
            if not chunk:  # too late, or the process has ended
                return None
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        if not self.dead:
            self.dead = True
            self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None
            self.process.stdin.close()
            os.close(self.answers)


def _failed(task: Task, reason: str) -> dict[str, Any]:
    """The result of a task that gave none."""
    name, dtype = task
    variant = "errors" if dtype == "errors" else "forward"
    return {"entry": name, "dtype": dtype, "calls": {variant: 1}, "failures": {variant: [reason]}}


def main() -> None:
    """The worker process."""
    import torch

    from tests.conformance.entries import Samples, entries
    from tests.conformance.evaluate import evaluate

    torch.set_num_threads(1)
    known, samples = entries(), Samples(int(sys.argv[2]), "--reference" in sys.argv)
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as answers:
        print("{}", file=answers)
        for line in sys.stdin:
            name, dtype = json.loads(line)
            try:
                result = evaluate(known[name], dtype, samples).json()
            except Exception as error:  # of the database or of the runner
                result = _failed((name, dtype), f"not evaluated: {type(error).__name__}: {error}")
            result["full"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY_PER_PROCESS
            print(json.dumps(result), file=answers)


if __name__ == "__main__":
    main()
