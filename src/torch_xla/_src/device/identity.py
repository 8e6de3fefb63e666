"""`Module.to("xla")` keeps Parameter objects.

PyTorch replaces the Parameters of a module that moves to a device of another kind, which unties tied weights and
orphans an optimizer made before the move; its alternative (`torch.__future__.set_swap_module_params_on_conversion`)
loses attributes and hooks of a Parameter, and refuses one that is part of a live graph. Here, for moves to and from xla,
a Parameter takes the contents of its copy on the other device, and nothing else about it changes. A buffer that is
registered twice stays one tensor.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Move = Callable[[torch.Tensor], torch.Tensor]
_active = False


def _moves_xla(module: nn.Module, fn: Move) -> tuple[bool, Move]:
    """Whether `fn` moves the module's tensors to or from xla; and `fn` that computes the tried tensor and buffers once."""
    first = next(itertools.chain(module.parameters(), module.buffers()), None)
    if first is None:
        return False, fn
    with torch.no_grad():
        moved = fn(first)
    if moved is first:
        return False, fn
    tried = {id(first): moved}
    once = {id(buffer) for buffer in module.buffers()}
    known: dict[int, torch.Tensor] = {}

    def again(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in known:
            return known[id(tensor)]
        result = tried.pop(id(tensor)) if id(tensor) in tried else fn(tensor)
        if id(tensor) in once:
            known[id(tensor)] = known[id(result)] = result
        return result

    return (moved.device.type == "xla") != (first.device.type == "xla"), again


def _moved_before_backward(*_: Any) -> None:
    raise RuntimeError(
        "backward of a graph from before its module was moved to or from xla: move first, then run forward"
    )


def _take_contents(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    """`tensor` becomes what `moved` is; its class, attributes, hooks and references to it stay."""
    if type(moved) not in (torch.Tensor, nn.Parameter, nn.parameter.UninitializedParameter):
        torch.utils.swap_tensors(tensor, moved)  # a subclass keeps its contents in attributes
        return
    if tensor.requires_grad and tensor._use_count() > 1:  # a graph refers to the old contents
        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_moved_before_backward)
    moved.requires_grad_(tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, moved)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):  # setting registers them with the new contents
        if (registered := getattr(tensor, hooks, None)) is not None:
            setattr(tensor, hooks, None)
            setattr(tensor, hooks, registered)


@torch.no_grad()
def _move(module: nn.Module, fn: Move, recurse: bool) -> nn.Module:
    """torch.nn.Module._apply for a move that keeps identity."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    for parameter in module._parameters.values():
        if parameter is None or (moved := fn(parameter)) is parameter:
            continue
        gradient, parameter.grad = parameter.grad, None
        _take_contents(parameter, moved)
        if gradient is not None:
            _take_contents(gradient, fn(gradient))
            parameter.grad = gradient
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _keeping_identity(original: Any) -> Any:
    @functools.wraps(original)
    def _apply(self: nn.Module, fn: Move, recurse: bool = True) -> Any:
        global _active
        if _active:
            return _move(self, fn, recurse)
        moves, fn = _moves_xla(self, fn)
        if not moves:
            return original(self, fn, recurse)
        _active = True
        try:
            return _move(self, fn, recurse)
        finally:
            _active = False

    return _apply


def install() -> None:
    """Wraps torch.nn.Module._apply, the method behind `.to`, `.cpu` and friends."""
    nn.Module._apply = _keeping_identity(nn.Module._apply)
