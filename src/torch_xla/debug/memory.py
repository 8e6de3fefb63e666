"""What memory a program takes, before it runs: `plan()`; what takes it now: `live()`. See docs/memory.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torch_xla._src.compile.memory_plan import MemoryPlan
    from torch_xla._src.runtime.live import LiveTensors
    from torch_xla._src.view.program import View

__all__ = ["MemoryPlan", "last", "live", "plan"]


def plan(program: View | torch.Tensor | None = None) -> MemoryPlan:
    """The memory of what is pending, which is compiled, not run: the launch that follows runs the same program.

    program: one of `torch_xla.debug.program`, compiled, or pending: this is compiled as it is shown, without donation, each
    time; or a tensor that is to be read next: only a large view makes a difference. The result prints as a table.

    ValueError if nothing is pending, RuntimeError if it does not compile as a whole, OutOfMemoryError if the compiler
    refuses it, TypeError for anything else. All stays pending.
    """
    import torch

    from torch_xla._src.compile import memory_plan
    from torch_xla._src.view.program import View

    if isinstance(program, View):
        return memory_plan.of_view(program)
    if program is not None and not (isinstance(program, torch.Tensor) and program.is_xla):
        given = program.device if isinstance(program, torch.Tensor) else type(program).__name__
        raise TypeError(
            f"a plan is made of a program of torch_xla.debug.program, or of a tensor of device xla, not {given}"
        )
    return memory_plan.pending(program)


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
