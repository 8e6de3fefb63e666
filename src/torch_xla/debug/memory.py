"""What memory a program takes, before it runs: `plan()`; what takes it now: `live()`. See docs/memory.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torch_xla._src.compile.memory_plan import MemoryPlan
    from torch_xla._src.runtime.live import LiveTensors

__all__ = ["MemoryPlan", "last", "live", "plan"]


def plan(tensor: torch.Tensor | None = None) -> MemoryPlan:
    """The memory of what is pending, which is compiled, not run: the launch that follows runs the same program.

    tensor: one that is to be read next; only a large view makes a difference to the program. The result prints as a table.

    ValueError if nothing is pending, RuntimeError if it does not compile as a whole, OutOfMemoryError if the compiler
    refuses it. All stays pending.
    """
    from torch_xla._src.compile import memory_plan

    return memory_plan.pending(tensor)


def last() -> MemoryPlan:
    """The memory of the program that was launched last. RuntimeError if none was."""
    from torch_xla._src.compile import memory_plan

    return memory_plan.last()


def live() -> LiveTensors:
    """The buffers on the device that tensors hold now, as a list, largest first; `by_line()` has bytes by user line.

    Each has `shape`, `dtype`, `num_bytes`, the user's `line` and the `op` that computed it (empty for what came from the
    host) and `names` that variables and modules of running functions have for it. The list prints as a table.
    """
    from torch_xla._src.runtime import live

    return live.live_tensors()


def __getattr__(name: str) -> Any:
    if name == "MemoryPlan":
        from torch_xla._src.compile.memory_plan import MemoryPlan

        return MemoryPlan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
