"""Names of PyTorch/XLA's `torch_xla.experimental.gradient_accumulation`.

PyTorch/XLA makes one loop of the steps, in one program. Here each step is a launch of one and the same program, which
is as small, and need not be pure: running statistics, random numbers and host reads behave as in a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src import api
from torch_xla._src.device import accumulation

__all__ = ["gradient_accumulation"]


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Adds the gradients of the mean loss over several steps to the gradients of `model`, by a program that one step needs.

    iterable_tensors: at least one, each [steps, ...]. train_step(*slices, *carried_tensors), called for each step with the
    slices [...] of these, returns a loss (one element), followed, in a tuple, by new `carried_tensors` if there are some. No
    backward pass is to be made in it. What is pending is launched before the first step. Not for use within
    `torch_xla.compile(full_graph=True)`, which wants one program.

    Returns the mean loss, or a tuple of it and the last carried tensors, without gradients. ValueError if the tensors are
    missing, empty, or of different first dims, or if what `train_step` returns does not fit.
    """
    num_steps = _num_steps(iterable_tensors)
    trained = [p for p in model.parameters() if p.requires_grad]
    added = {p: torch.zeros_like(p) for p in trained if p.grad is None}  # so that the first step is like the others
    for p, zeros in added.items():
        p.grad = zeros
    versions = {p: zeros._version for p, zeros in added.items()}
    total = torch.zeros((), device=iterable_tensors[0].device)
    carried: Sequence[torch.Tensor] = carried_tensors
    try:
        api.sync()
        for number in range(num_steps):
            loss, carried = _parts(train_step(*(t[number] for t in iterable_tensors), *carried), len(carried))
            loss = loss / num_steps
            with accumulation.uncut():
                loss.backward()
            total = total + loss.detach()
            del loss  # or its graph would be kept through the next step
            api.sync()
    finally:
        for p, zeros in added.items():
            if p.grad is zeros and zeros._version == versions[p]:
                p.grad = None  # no step has used it
    return (total, *carried) if carried else total


def _num_steps(tensors: Sequence[torch.Tensor]) -> int:
    if not tensors:
        raise ValueError("iterable_tensors holds no tensor to iterate over")
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0 or tensor.numel() == 0:
            raise ValueError(f"element {number} of iterable_tensors is not a tensor with a first dim, or it is empty")
        if tensor.shape[0] != tensors[0].shape[0]:
            raise ValueError(
                f"element {number} of iterable_tensors has {tensor.shape[0]} slices, the first has {tensors[0].shape[0]}"
            )
    return tensors[0].shape[0]


def _parts(result: Any, num_carried: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss, and the carried tensors detached."""
    loss, *carried = result if isinstance(result, (tuple, list)) else (result,)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or len(carried) != num_carried:
        raise ValueError(f"train_step has to return a loss of one element and {num_carried} carried tensors")
    return loss, [t.detach() for t in carried]
