"""`torch.amp.GradScaler` on device xla skips a step without asking the device whether to.

Note [Steps skipped on the device]
Stock GradScaler reads a flag, whether a gradient is infinite or NaN, before each step. Here the program decides: the step
is taken, and writes what was there before if the flag is set. Fused optimizers do so by themselves, so SGD, Adam, AdamW
and Adagrad become fused ones at the first scaled step. The other optimizers of torch.optim become capturable ones, which
keep their step count on the device, and what they write is selected after the step; their first step, which makes their
state, is taken as in stock PyTorch. So is every step of an optimizer from elsewhere, which may keep numbers on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.amp import GradScaler

from torch_xla._src.device import optim

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_CAPTURABLE = ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                yield group, p


def _can(optimizer: torch.optim.Optimizer, names: tuple[str, ...]) -> bool:
    return any(type(optimizer) is getattr(torch.optim, name) for name in names) and all(
        p.is_xla and p.is_floating_point() and not group["differentiable"] for group, p in _trained(optimizer)
    )


def _become(optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Makes an optimizer "fused" or "capturable", with its step counts on the device."""
    if all(group[kind] for group in optimizer.param_groups):
        return
    for group in optimizer.param_groups:
        group[kind] = True
        if kind == "fused":
            group["foreach"] = False  # PyTorch takes one of the two
    for _, p in _trained(optimizer):
        step = optimizer.state[p].get("step")
        if isinstance(step, torch.Tensor):
            optimizer.state[p]["step"] = step.to(p.device)


def needs_first_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the momentum of SGD starts as no average of zero and the gradient does."""
    return any(
        group.get("dampening") and group["momentum"] and optimizer.state[p].get("momentum_buffer") is None
        for group, p in _trained(optimizer)
    )


def _step_fused(optimizer: Any, found_inf: torch.Tensor, args: Any, kwargs: Any) -> Any:
    optimizer.grad_scale, optimizer.found_inf = None, found_inf
    try:
        return optimizer.step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _step_selected(optimizer: Any, found_inf: torch.Tensor, args: Any, kwargs: Any) -> Any:
    from torch_xla._src import offload
    from torch_xla._src.graph.tensor import snapshot

    written = [p for _, p in _trained(optimizer)]
    written += [x for p in written for x in optimizer.state[p].values() if isinstance(x, torch.Tensor) and x.is_xla]
    before = [snapshot(x) for x in written]
    with optim.without_cut(), torch.no_grad():
        result = optimizer.step(*args, **kwargs)
        skipped = found_inf != 0
        on_host = offload.kept_on_host(optimizer)
        for x, old in zip(written, before, strict=True):
            x.copy_((offload.where if id(x) in on_host else torch.where)(skipped, old, x))
    return result


def _without_reading(original: Any) -> Any:
    """`GradScaler._maybe_opt_step`, which takes a step unless a gradient was infinite or NaN."""

    @functools.wraps(original)
    def maybe_opt_step(scaler: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        flags = list(optimizer_state["found_inf_per_device"].values())
        if flags and all(flag.is_xla for flag in flags):
            if _can(optimizer, _FUSED) and not needs_first_step(optimizer):
                _become(optimizer, "fused")
                return _step_fused(optimizer, sum(flags[1:], flags[0]), args, kwargs)
            if _can(optimizer, _CAPTURABLE):
                _become(optimizer, "capturable")
                if all(optimizer.state[p] for _, p in _trained(optimizer)):
                    return _step_selected(optimizer, sum(flags[1:], flags[0]), args, kwargs)
        return original(scaler, optimizer, optimizer_state, *args, **kwargs)

    return maybe_opt_step


def install() -> None:
    """Wraps the step of torch.amp.GradScaler."""
    GradScaler._maybe_opt_step = _without_reading(GradScaler._maybe_opt_step)
