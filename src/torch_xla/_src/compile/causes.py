"""Why programs are launched and compiled: what cut the recording, where in the user's code, how long it took.

The texts are those of PyTorch/XLA's analyses; what it does not have follows their form.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

READ = "most likely user code trying to access tensor value before torch_xla.sync"
SYNC = "user torch_xla.sync"
LOADER = "torch_xla.sync in parallel loader at step end"
STEP_TRACE = "torch_xla.sync when exiting a profiler StepTrace region"
COMPILE = "torch_xla.compile"
COMPILE_CLEAR = "torch_xla.compile clear the pending graph prior calling the target function"
DYNAMO_INPUTS = "torch_xla.sync when dynamo processing input graphs"
OPTIMIZER = "the end of an optimizer's step()"


@dataclass
class Compile:
    """One program that was compiled. line: of the user's code that caused the launch. seconds: it took. why: in words."""

    cause: str
    line: str
    num_rows: int
    num_inputs: int
    num_outputs: int
    seconds: float
    why: str = ""
    when: float = field(default_factory=time.time)


current = READ  # what a recording that is cut now is cut for
nothing_may_run = False  # whether a block of `torch_xla.compile(full_graph=True)` is being executed
graph_name: str | None = None  # what `torch_xla.compile(name=)` calls it
history: deque[Compile] = deque(maxlen=20)


class because:
    """A context in which recordings are cut for `cause`, under `name` if given. The outermost cause counts."""

    def __init__(self, cause: str, name: str | None = None) -> None:
        self.cause, self.name = cause, name

    def __enter__(self) -> None:
        global current, graph_name
        self.before = current, graph_name
        if current is READ:
            current, graph_name = self.cause, self.name

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        global current, graph_name
        current, graph_name = self.before
