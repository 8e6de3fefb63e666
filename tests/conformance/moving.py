"""Samples are made on the CPU; both devices get copies with the same numbers, strides and needs of gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree


class OnHost(tuple[Any, ...]):
    """Arguments that stay on the CPU on any device."""


def moved(tree: Any, device: str, grad: bool = True) -> Any:
    """A copy of nested arguments on `device`: leaves of autograd, and one tensor twice stays one tensor twice.

    grad: keep `requires_grad`. Devices named in the arguments become `device` too.
    """
    memo: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, OnHost):
            return moved(tuple(x), "cpu", grad)
        if isinstance(x, torch.Tensor):
            if id(x) not in memo:
                memo[id(x)] = _copy(x, device).requires_grad_(grad and x.requires_grad)
            return memo[id(x)]
        if isinstance(x, slice):
            return slice(move(x.start), move(x.stop), move(x.step))
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
            return device
        return x

    return pytree.tree_map(move, tree, is_leaf=lambda x: isinstance(x, OnHost))


def _copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    source = tensor.detach()
    if source.layout is not torch.strided:
        return source.clone().to(device)
    if source.is_conj():
        return _copy(source.conj(), device).conj()
    if source.is_neg():
        return torch._neg_view(_copy(torch._neg_view(source), device))
    if source.is_contiguous() or source.numel() == 0:
        return source.clone().to(device)
    if is_dense(source):
        order = _order(source)
        inverse = [order.index(d) for d in range(source.ndim)]
        return source.permute(order).clone(memory_format=torch.contiguous_format).to(device).permute(inverse)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(source.shape, source.stride()))
    memory = source.as_strided((extent,), (1,))
    return memory.clone().to(device).as_strided(source.shape, source.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor fills its memory without holes and overlaps: then a clone has its strides."""
    return tensor.layout is torch.strided and tensor.permute(_order(tensor)).is_contiguous()


def _order(tensor: torch.Tensor) -> list[int]:
    """The dimensions, the one with the longest steps first."""
    return sorted(range(tensor.ndim), key=lambda d: (tensor.stride(d), tensor.shape[d]), reverse=True)


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested values, in order."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def cotangent(like: torch.Tensor) -> torch.Tensor:
    """The gradient that is fed to a result: uneven numbers, since ones hide what sums to nothing (softmax)."""
    steps = torch.arange(like.numel(), dtype=torch.float64).reshape(like.shape)
    numbers = torch.cos(steps) + 0.5
    if like.dtype.is_complex:
        return torch.complex(numbers, torch.sin(steps)).to(like.dtype)
    return numbers.to(like.dtype)
