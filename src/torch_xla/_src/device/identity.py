"""`Module.to("xla")` keeps Parameter objects.

PyTorch replaces the Parameters of a module that moves to a device of another kind, which unties tied weights and
orphans an optimizer made before the move. `torch.utils.swap_tensors` exchanges the contents instead; torch takes that
path under a global flag, which is set here for moves to and from xla only.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

_active = False


def _moves_xla(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> tuple[bool, Any]:
    """Whether `fn` moves the module's tensors to or from xla; and `fn` that does not compute the tried tensor twice."""
    first = next(itertools.chain(module.parameters(), module.buffers()), None)
    if first is None:
        return False, fn
    with torch.no_grad():
        moved = fn(first)
    if moved is first:
        return False, fn
    tried = {id(first): moved}

    def again(tensor: torch.Tensor) -> torch.Tensor:
        known = tried.pop(id(tensor), None)
        return fn(tensor) if known is None else known

    return (moved.device.type == "xla") != (first.device.type == "xla"), again


def _keeping_identity(original: Any) -> Any:
    @functools.wraps(original)
    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> Any:
        global _active
        if _active or torch.__future__.get_swap_module_params_on_conversion():
            return original(self, fn, recurse)
        moves, fn = _moves_xla(self, fn)
        if not moves:
            return original(self, fn, recurse)
        _active = True
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return original(self, fn, recurse)
        finally:
            _active = False
            torch.__future__.set_swap_module_params_on_conversion(False)

    return _apply


def install() -> None:
    """Wraps torch.nn.Module._apply, the method behind `.to`, `.cpu` and friends."""
    torch.nn.Module._apply = _keeping_identity(torch.nn.Module._apply)
