"""What memory a program takes, before it runs: `plan()`. See docs/memory.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torch_xla._src.compile.memory_plan import MemoryPlan

__all__ = ["MemoryPlan", "last", "plan"]


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


def __getattr__(name: str) -> Any:
    if name == "MemoryPlan":
        from torch_xla._src.compile.memory_plan import MemoryPlan

        return MemoryPlan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
