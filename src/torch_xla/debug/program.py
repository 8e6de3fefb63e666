"""Programs to look at: what is pending, and what has been compiled. See docs/see-the-program.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torch_xla._src.view.program import View

__all__ = ["compiled", "pending"]


def pending(tensors: Sequence[torch.Tensor] | torch.Tensor | None = None) -> View:
    """What is recorded and has not run yet for some tensors, or for all that live. Nothing runs for it.

    The result prints as a table, and has `python()` (a function of aten ops that can be run), `stablehlo()`, `hlo()` (as the
    compiler has optimised it), `dot()`, `html()`, `save_html(path)`, and `cost()` by module.
    """
    from torch_xla._src.view import program

    return program.pending(tensors)


def compiled() -> list[View]:
    """The compiled programs that this process keeps, the one used last at the end; each as `pending` describes."""
    from torch_xla._src.view import program

    return program.compiled()
