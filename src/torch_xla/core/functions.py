"""Names of PyTorch/XLA's `torch_xla.core.functions`: collective operations that gradients pass through."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._src import surface
from torch_xla.core import xla_model as xm


class AllReduce(torch.autograd.Function):
    """`xm.all_reduce`; the gradient is reduced in the same way."""

    @staticmethod
    def forward(ctx: Any, reduce_type: str, value: torch.Tensor, scale: float, groups: Any) -> Any:
        ctx.arguments = reduce_type, scale, groups
        return xm.all_reduce(reduce_type, value, scale=scale, groups=groups)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        reduce_type, scale, groups = ctx.arguments
        return None, xm.all_reduce(reduce_type, grad, scale=scale, groups=groups), None, None


class AllGather(torch.autograd.Function):
    """`xm.all_gather`; each process gets the sum of the gradients of its own part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> Any:
        ctx.dim, ctx.size = dim, value.shape[dim]
        return xm.all_gather(value, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        summed = xm.all_reduce(xm.REDUCE_SUM, grad)
        return summed.narrow(ctx.dim, xm.get_local_ordinal() * ctx.size, ctx.size), None


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over all processes, through which gradients pass unchanged in number: they are summed too."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> Any:
        return xm.all_reduce(xm.REDUCE_SUM, value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return xm.all_reduce(xm.REDUCE_SUM, grad)


def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Any = None) -> Any:
    """A new tensor: `value` reduced over all processes, then multiplied by `scale`. Differentiable."""
    return AllReduce.apply(reduce_type, value, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> Any:
    """The tensors of all processes, concatenated along `dim`. Differentiable."""
    return AllGather.apply(value, dim)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """`w @ x`, where each process holds some of the rows of `w` [m, k] and its own `x` [k, n]; gives [processes * m, n].

    split: in how many parts of the columns of `x` to do it, to save memory.
    """
    if x.shape[1] % split:
        raise ValueError(f"split={split} does not divide the {x.shape[1]} columns of x")
    size = x.shape[1] // split
    parts = [all_gather(w @ x.narrow(1, i * size, size)) for i in range(split)]
    return parts[0] if split == 1 else torch.cat(parts, dim=1)


class SyncBatchNorm(torch.nn.Module):
    """Batch norm over dim 1 of [batch, features, ...] whose statistics are those of all processes' batches.

    In a world of one process they are those of the batch.
    """

    def __init__(self, num_features: int, eps: float = 1e-05, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The normalised batch, of the same shape."""
        if batch.ndim < 2:
            raise ValueError(f"SyncBatchNorm needs at least two dims, [batch, features, ...], got {list(batch.shape)}")
        return torch.nn.functional.batch_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


__getattr__ = surface.missing(__name__)
