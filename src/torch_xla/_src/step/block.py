"""A block of code, or each call of a function, as one step: behind `torch_xla.step` and `torch_xla.compile`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch_xla._src import api, eager
from torch_xla._src.compile import causes

active = (
    0  # blocks that are being executed: in one, an optimizer's step is no cut (Note [The cut after an optimizer step])
)


class Step:
    """Context manager and decorator: pending work is launched before the block, and what it has recorded after it.

    full_graph: RuntimeError if something in the block runs early; functions are frozen (Note [Frozen steps]).
    max_graphs: RuntimeError if the block has recorded more programs than that.
    """

    def __init__(self, name: str | None, full_graph: bool, max_graphs: int | None) -> None:
        self.name, self.full_graph, self.max_graphs = name, full_graph, max_graphs
        self.seen: set[int] = set()  # recordings that ended in this block, by the identity of their last row
        self.cuts: list[int] = []
        self.outer: list[bool] = []  # whether the block around this one is one in which nothing may run
        self.eager: list[bool] = []  # whether eager mode was on outside: inside, ops are recorded all the same

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        if self.full_graph:
            return _frozen(f, self)

        @functools.wraps(f)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return f(*args, **kwargs)

        return stepped

    def __enter__(self) -> Step:
        global active
        with causes.because(causes.COMPILE_CLEAR, self.name and f"{self.name}_clear_pending"):
            api.sync()
        self.eager.append(eager.enabled)
        eager.set_enabled(False)
        self.outer.append(causes.nothing_may_run)
        causes.nothing_may_run = self.full_graph
        current = api.recorder()
        self.cuts.append(0 if current is None else current.num_cuts)
        active += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        global active
        active -= 1
        causes.nothing_may_run = self.outer.pop()
        before, current = self.cuts.pop(), api.recorder()
        early = current is not None and current.num_cuts > before
        last = None if current is None else current.last_recording()
        try:
            with causes.because(causes.COMPILE, self.name):
                api.sync()
        finally:
            eager.set_enabled(self.eager.pop())
        if kind is not None:
            return
        if self.full_graph and early:
            raise RuntimeError("Unexpected execution happens inside the compiled function, exiting")
        if self.max_graphs is not None and last is not None:
            self.seen.add(last)
            if len(self.seen) > self.max_graphs:
                raise RuntimeError(
                    f"Maximum number of different graphs allowed per function exceeded: {self.max_graphs}\n"
                    f"Got: {len(self.seen)}\nExpected: at most {self.max_graphs}\n{_last_compile()}"
                )


def _last_compile() -> str:
    """Why the last program was compiled."""
    from torch_xla._src.compile import why  # loads JAX

    return str(why.history[-1]) if why.history else ""


def _frozen(f: Callable[..., Any], block: Step) -> Callable[..., Any]:
    """`f` as steps that run without their Python once they can. `status()` of the result says whether, or why not."""
    freezer: Any = None

    @functools.wraps(f)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        nonlocal freezer
        if freezer is None:
            from torch_xla._src.step.freezer import Freezer  # imports the recorder, and JAX

            freezer = Freezer(f, block)
        return freezer(args, kwargs)

    def status() -> str:
        return "not called yet" if freezer is None else freezer.status()

    wrapper: Any = stepped
    wrapper.status = status
    return stepped
