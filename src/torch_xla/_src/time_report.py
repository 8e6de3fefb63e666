"""Where the time of a loop goes: recording, compiling, transfers, waiting for the device, or nothing that concerns it.

Note [Where the time goes]
While a report is on, the functions that compile, copy and wait are wrapped in ones that stop the time of the thread that
started it; while it is off they are as they were, so it costs nothing. Each moment counts for one thing: the
innermost of these functions, else *recording* (Python, PyTorch and the recorder, which cannot be told apart from outside), else,
from the end of a step to the first op after it, *idle*: there the loop fetches data, logs, sleeps. A step ends
with `torch_xla.sync()`, a block of `torch_xla.step()`, or an optimizer's step, if something was launched since the last end. How
long the device computes is measured by itself (`runtime/executions.py`): it overlaps with the rest.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch_xla._src import environment
from torch_xla._src.compile import causes
from torch_xla._src.wrapping import Wrapped

VARIABLE = "TORCH_XLA_TIME_REPORT"
RECORDING, COMPILING, TRANSFER, WAITING, IDLE = "recording", "compiling", "transfer", "waiting", "idle"
CATEGORIES = (RECORDING, COMPILING, TRANSFER, WAITING, IDLE)
_VERDICTS = {
    RECORDING: "host-bound",
    COMPILING: "compile-bound",
    TRANSFER: "transfer-bound",
    WAITING: "device-bound",
    IDLE: "input-bound",
}
_WHAT = {
    RECORDING: "in recording (Python and PyTorch)",
    COMPILING: "in tracing and compiling",
    TRANSFER: "in copies between host and device",
    WAITING: "waiting for the device",
    IDLE: "between steps: data loading, logging",
}
_ADVICE = {
    RECORDING: "give the step to torch_xla.compile(step, full_graph=True), which runs it without its Python",
    COMPILING: "print(torch_xla.debug.why_compiled()) says why; the first steps of a process always compile",
    TRANSFER: "read less often, and keep on the device what stays the same",
    WAITING: "the device is the limit: the program itself has to become faster",
    IDLE: "load data in workers: torch.utils.data.DataLoader(num_workers=...)",
}


class Stopwatch:
    """Adds the time of one thread to the innermost of the things that it does. clock: nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock, self.thread = clock, threading.get_ident()
        self.totals = dict.fromkeys(CATEGORIES, 0)
        self.doing = [IDLE]
        self.last = clock()

    def mine(self) -> bool:
        """Whether the calling thread is the one whose time is told."""
        return threading.get_ident() == self.thread

    def _account(self) -> None:
        now = self.clock()
        self.totals[self.doing[-1]] += now - self.last
        self.last = now

    def enter(self, category: str) -> None:
        """From now on `category` is done, until `leave`. A read or a wait after a step does not begin the next."""
        self._account()
        self.doing.append(category)

    def leave(self) -> None:
        """Ends what was entered last."""
        self._account()
        self.doing.pop()

    def active(self) -> None:
        """Something is recorded or launched: the step has begun."""
        if self.doing[0] is IDLE:
            self._account()
            self.doing[0] = RECORDING

    def step_ends(self) -> None:
        """What comes now is between steps."""
        self._account()
        self.doing[0] = IDLE

    def take(self) -> dict[str, int]:
        """Nanoseconds by category since the last call."""
        self._account()
        found, self.totals = self.totals, dict.fromkeys(CATEGORIES, 0)
        return found


class Summary:
    """What some steps did. seconds: by category; busy: seconds that the device computed; counts: by place in the user's code."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = dict.fromkeys(CATEGORIES, 0.0)
        self.busy = 0.0
        self.compiles = 0
        self.reads: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()

    @property
    def total(self) -> float:
        """Wall time in seconds."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """The share of each category in the wall time; they add up to 1. All 0 if no time has passed."""
        total = self.total
        return {name: value / total if total else 0.0 for name, value in self.seconds.items()}

    @property
    def verdict(self) -> str:
        """One line: what the loop is bound by, and what of that can be seen from here."""
        if not self.total:
            return "no step has been seen"
        largest = max(CATEGORIES, key=self.seconds.__getitem__)
        parts = [f"{_VERDICTS[largest]}: {self.shares[largest]:.0%} {_WHAT[largest]}"]
        for counts, what in ((self.reads, "host reads"), (self.fallbacks, "ops on the CPU")):
            if counts:
                ((place, _),) = counts.most_common(1)
                parts.append(f"{_number(sum(counts.values()) / max(self.steps, 1))} {what} a step at {place}")
        if self.compiles and largest is not COMPILING:
            parts.append(f"{self.compiles} compiled")
        return "; ".join(parts)

    def __str__(self) -> str:
        steps = max(self.steps, 1)
        lines = [f"{self.steps} steps, {self.total / steps * 1e3:.2f} ms each: {self.verdict}"]
        for name in sorted(CATEGORIES, key=self.seconds.__getitem__, reverse=True):
            lines.append(
                f"  {name:<10} {self.shares[name]:6.1%} {self.seconds[name] / steps * 1e3:10.2f} ms  {_WHAT[name]}"
            )
        busy = self.busy / self.total if self.total else 0.0
        lines.append(f"  device computes {busy:.1%} of the time; {self.compiles} programs compiled")
        for counts, what in ((self.reads, "host read"), (self.fallbacks, "op on the CPU")):
            lines += [f"  {_number(n / steps)} a step: {what} at {place}" for place, n in counts.most_common(5)]
        if self.total:
            lines.append(f"  {_ADVICE[max(CATEGORIES, key=self.seconds.__getitem__)]}")
        return "\n".join(lines)

    def add(self, other: Summary) -> None:
        """Adds what other steps did."""
        self.steps, self.busy, self.compiles = (
            self.steps + other.steps, self.busy + other.busy, self.compiles + other.compiles,
        )  # fmt: skip
        for name, value in other.seconds.items():
            self.seconds[name] += value
        self.reads += other.reads
        self.fallbacks += other.fallbacks


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 1 and abs(x - round(x)) < 0.05 else f"{x:.1f}"


class TimeReport:
    """Tells where the time of a loop goes, from `start()` to `stop()` or in a `with` block.

    every: after so many steps, what these did is printed to standard error (or to `PT_XLA_DEBUG_FILE`); not if None.
    total: a Summary of all steps; last: of the last `every`. One report at a time: RuntimeError for another.
    """

    _running: TimeReport | None = None

    def __init__(self, every: int | None = None, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"a time report is printed every so many steps, an integer >= 1, not {every!r}")
        self.every, self._clock = every, clock
        self.total, self.last = Summary(), Summary()
        self._now = Summary()
        self._wrapped = Wrapped()
        self._any_launch = False  # since the last step ended

    def __enter__(self) -> TimeReport:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def __str__(self) -> str:
        return str(self.total)

    def start(self) -> None:
        """Begins. The calling thread is the one whose time is told."""
        if TimeReport._running is not None:
            raise RuntimeError("a time report is on already: stop() it first")
        TimeReport._running = self
        self.watch = Stopwatch(self._clock)
        self._busy = _busy()
        self._wrap()

    def stop(self) -> None:
        """Ends; a step that has begun is counted for what it is. Without effect if it is not on."""
        if TimeReport._running is not self:
            return
        self._wrapped.undo()
        TimeReport._running = None
        self._close()

    # ---- what is told while it is on --------------------------------------------------------------------------------

    def _wrap(self) -> None:
        from torch_xla._src import step_end
        from torch_xla._src.compile import launch, padded_program
        from torch_xla._src.graph import fallback
        from torch_xla._src.graph.recorder import RECORDER
        from torch_xla._src.runtime import transfer

        self._timed(launch.Launch, "build", COMPILING, self._compiled)
        self._timed(padded_program, "_build", COMPILING, self._compiled)
        self._timed(transfer, "upload", TRANSFER, lambda *_: self.watch.active())
        self._timed(transfer, "download", TRANSFER, self._read)
        self._timed(launch, "wait", WAITING)
        self._noticed(RECORDER, "record", self.watch.active)
        self._noticed(RECORDER, "record_values", self.watch.active)
        self._noticed(launch.Launch, "run", self.watch.active, self._launched)
        self._noticed(step_end, "finish", _nothing, self._step_ends)
        fallback.watcher = self._fell_back
        self._wrapped.on_undo(lambda: setattr(fallback, "watcher", None))

    def _timed(self, home: Any, name: str, category: str, first: Callable[..., None] = lambda *_: None) -> None:
        def make(original: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if not self.watch.mine():
                    return original(*args, **kwargs)
                self.watch.enter(category)
                try:
                    first(*args)
                    return original(*args, **kwargs)
                finally:
                    self.watch.leave()

            return timed

        self._wrapped.replace(home, name, make)

    def _noticed(
        self, home: Any, name: str, before: Callable[[], None], after: Callable[[], None] | None = None
    ) -> None:
        def make(original: Any) -> Any:
            def noticed(*args: Any, **kwargs: Any) -> Any:
                if not self.watch.mine():
                    return original(*args, **kwargs)
                before()
                result = original(*args, **kwargs)
                if after is not None:
                    after()
                return result

            return noticed

        self._wrapped.replace(home, name, make)

    def _compiled(self, *_: Any) -> None:
        self._now.compiles += 1

    def _read(self, buffer: Any, *_: Any) -> None:
        from torch_xla._src.graph import fallback
        from torch_xla._src.runtime import frames

        if sys._getframe(2).f_globals is not vars(fallback):
            self._now.reads[frames.user_line() or "an unknown line"] += 1
        self.watch.enter(WAITING)
        try:
            if hasattr(buffer, "block_until_ready"):  # padded ones come as arrays of the host
                buffer.block_until_ready()
        finally:
            self.watch.leave()

    def _fell_back(self) -> None:
        from torch_xla._src.runtime import frames

        self._now.fallbacks[frames.user_line() or "an unknown line"] += 1

    def _launched(self) -> None:
        self._any_launch = True
        if causes.current is causes.OPTIMIZER:
            self._step_ends()

    def _step_ends(self) -> None:
        if not self._any_launch:
            return
        self._any_launch = False
        self.watch.step_ends()
        self._now.steps += 1
        if self.every is not None and self._now.steps >= self.every:
            self._close()
            from torch_xla._src.compile.analysis import write

            write(f"time report: {self.last}\n")

    def _close(self) -> None:
        for name, nanoseconds in self.watch.take().items():
            self._now.seconds[name] += nanoseconds / 1e9
        busy = _busy()
        self._now.busy, self._busy = max(busy - self._busy, 0.0), busy  # the user may have cleared the metrics
        self.total.add(self._now)
        self.last, self._now = self._now, Summary()


def _nothing() -> None:
    """Nothing is told."""


def _busy() -> float:
    """Seconds that the device has computed in this process."""
    from torch_xla._src.runtime import metrics

    metric = metrics.all_metrics().get("ExecuteTime")
    return metric.total / 1e9 if metric is not None else 0.0


def start_if_asked() -> None:
    """Starts a report for the rest of the process if `TORCH_XLA_TIME_REPORT=N` asks for one every N steps."""
    if VARIABLE in os.environ and TimeReport._running is None and (every := environment.integer(VARIABLE, 0)) > 0:
        TimeReport(every).start()
