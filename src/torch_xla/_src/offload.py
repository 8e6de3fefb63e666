"""Keeps the state of an optimizer in the memory of the host between steps. Behind `torch_xla.utils.offload_optimizer_state`.

Note [Optimizer state on the host]
Hooks of the optimizer bring its state to the device before a step and take it back after it, as rows of the step's own
recording. So the step is one program, whose inputs and outputs for the state are in the host's memory, and which copies
when the compiler sees fit. The tensors in `optimizer.state` stay the objects they are, as they do without: what is brought
is another tensor, whose value is copied to the first after the step.

State that is not there before the first step would make that another program, with outputs but no inputs of this kind. So
it is made before, by the optimizer's own `_init_group`, as zeros (Note [State is there before the first step]), and put
into host memory at once; so is what `load_state_dict` has put onto the device.

Step counts, and all else of no dims, stay on the device.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch

from torch_xla._src import placement

_offloaded: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def offload(optimizer: torch.optim.Optimizer) -> None:
    """Keeps the state of `optimizer` in the host's memory from now on. A second call changes nothing."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"an optimizer of torch.optim is offloaded, not {type(optimizer).__name__}")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError("an optimizer with differentiable=True keeps its state in a graph: it cannot be offloaded")
    if not placement.has_two_memories() or optimizer in _offloaded:
        return
    _offloaded.add(optimizer)
    hooks = _Hooks()
    optimizer.register_step_pre_hook(hooks.before_step)
    optimizer.register_step_post_hook(hooks.after_step)
    for state in optimizer.state.values():
        for tensor in _placed(state).values():
            placement.move_to_host(tensor)


def kept_on_host(optimizer: torch.optim.Optimizer) -> set[int]:
    """Ids of the tensors of an optimizer's state that are in the host's memory between steps."""
    if optimizer not in _offloaded:
        return set()
    return {id(x) for state in optimizer.state.values() for x in _placed(state).values()}


def where(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`torch.where`, computed on the device, of tensors in the host's memory, as the result is."""
    place = torch.ops.torch_xla.place
    here: torch.Tensor = torch.where(condition, place(x, "device"), place(y, "device"))
    placed: torch.Tensor = place(here, "host")
    return placed


def _placed(state: Any) -> dict[str, torch.Tensor]:
    """The tensors, among the state of one parameter, that are kept on the host."""
    items = state.items() if isinstance(state, dict) else ()
    return {name: x for name, x in items if isinstance(x, torch.Tensor) and x.is_xla and x.dim()}


class _Hooks:
    """See Note [Optimizer state on the host]. Holds nothing between steps."""

    def __init__(self) -> None:
        self._host: dict[int, torch.Tensor] = {}  # by id of what is on the device, the tensor on the host
        self._here: list[torch.Tensor] = []

    @torch.no_grad()
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Brings the state that the step will use to the device."""
        self._clear()
        has_closure = len(args) > 1 or kwargs.get("closure") is not None  # it may make gradients
        _make_state(optimizer)
        for parameter, state in optimizer.state.items():
            used = has_closure or getattr(parameter, "grad", parameter) is not None
            for name, tensor in _placed(state).items():
                placement.move_to_host(tensor)
                if used:
                    state[name] = here = torch.ops.torch_xla.place(tensor, "device")
                    self._here.append(here)
                    # deepcopy makes views, and a write to one would be to all that it shows.
                    if not placement.is_view(tensor):
                        self._host[id(here)] = tensor
                else:
                    self._host[id(tensor)] = tensor

    @torch.no_grad()
    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Takes it back, with what the step has made anew."""
        for state in optimizer.state.values():
            for name, tensor in _placed(state).items():
                host = self._host.get(id(tensor))
                if host is None:
                    state[name] = torch.ops.torch_xla.place(tensor, "host")
                elif host is not tensor:
                    host.copy_(torch.ops.torch_xla.place(tensor, "host"))
                    state[name] = host
        self._clear()

    def _clear(self) -> None:
        self._host.clear()
        self._here.clear()


def _make_state(optimizer: Any) -> None:
    """Has an optimizer of torch.optim make the state of parameters that have a gradient and no state yet."""
    make = getattr(optimizer, "_init_group", None)
    if make is None:
        return
    num_lists = len(inspect.signature(make).parameters) - 1
    for group in optimizer.param_groups:
        if any(p.grad is not None and p.is_xla and not optimizer.state.get(p) for p in group["params"]):
            make(group, *[[] for _ in range(num_lists)])
