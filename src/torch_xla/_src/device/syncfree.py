"""Optimizers whose `step` may be told, by a tensor on the device, to change nothing: fused ones of torch.optim."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src.device.grad_scaler import needs_first_step


def _step_of(optimizer: type[torch.optim.Optimizer]) -> Any:
    """A class's `step` without the hooks that PyTorch puts around it: those of the subclass run already."""
    return inspect.unwrap(optimizer.step, stop=lambda step: not getattr(step, "hooked", False))


class _SyncFree(torch.optim.Optimizer):
    """What the three have in common; goes before an optimizer of torch.optim that has a fused implementation."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **({"fused": True} | kwargs))

    def step(self, closure: Callable[[], Any] | None = None, found_inf: Any = None) -> Any:
        """One step, as of torch.optim. found_inf: a number or tensor of one element; the step changes nothing if it is not 0.

        Returns what `closure` does, or None.
        """
        order = type(self).__mro__
        base = _step_of(order[order.index(_SyncFree) + 1])
        if found_inf is None:  # or as GradScaler has set it
            return base(self, closure)
        device = self.param_groups[0]["params"][0].device
        flag = torch.as_tensor(found_inf, device=device).reshape(()).ne(0).float()
        if needs_first_step(self) and flag.item():  # the only read: a step that is skipped must not begin the average
            return None if closure is None else torch.enable_grad()(closure)()
        self.grad_scale, self.found_inf = None, flag
        try:
            return base(self, closure)
        finally:
            del self.grad_scale, self.found_inf


class SGD(_SyncFree, torch.optim.SGD):
    """torch.optim.SGD, fused, with `step(closure=None, found_inf=None)`."""


class Adam(_SyncFree, torch.optim.Adam):
    """torch.optim.Adam, fused, with `step(closure=None, found_inf=None)`."""


class AdamW(_SyncFree, torch.optim.AdamW):
    """torch.optim.AdamW, fused, with `step(closure=None, found_inf=None)`."""
