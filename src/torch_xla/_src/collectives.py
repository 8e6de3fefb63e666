"""Collective operations of a world of one process, where each is arithmetic on the process's own tensor.

Groups of more than one process raise: they need processes, which this version does not have.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src import environment, nested

REDUCE_TYPES = ("sum", "mul", "and", "or", "min", "max")
Groups = Sequence[Sequence[int]] | None


def world_size() -> int:
    """How many processes work together."""
    return 1


def ordinal() -> int:
    """The number of this process."""
    return 0


def _check_groups(groups: Groups) -> None:
    if groups is not None and [list(group) for group in groups] not in ([], [[0]], [[]]):
        raise ValueError(f"groups={groups} name processes that do not exist: this process is alone, with ordinal 0")


def _check_reduce_type(reduce_type: str) -> None:
    if reduce_type not in REDUCE_TYPES:
        raise ValueError(f"reduce_type {reduce_type!r} is none of {', '.join(REDUCE_TYPES)}")


def all_reduce(reduce_type: str, inputs: Any, scale: float, groups: Groups) -> Any:
    """A copy of a tensor; a list of tensors is returned itself. Scaled only if XLA_ALWAYS_ALLREDUCE is set."""
    _check_reduce_type(reduce_type)
    _check_groups(groups)
    scaled = environment.flag("XLA_ALWAYS_ALLREDUCE") and scale != 1.0
    if isinstance(inputs, torch.Tensor):
        return inputs * scale if scaled else inputs.clone()
    if scaled:
        with torch.no_grad():
            for tensor in inputs:
                tensor.mul_(scale)
    return inputs


def _give(result: Any, output: Any) -> Any:
    """`result`, or `output` with what `result` holds written to it."""
    if output is None:
        return result
    if isinstance(result, torch.Tensor) != isinstance(output, torch.Tensor):
        raise TypeError("`output` needs to be a tensor if the input is one, and a list of tensors if that is a list")
    if isinstance(result, torch.Tensor):
        return output.copy_(result)
    for target, source in zip(output, result, strict=True):
        target.copy_(source)
    return output


def all_gather(value: Any, groups: Groups, output: Any, pin_layout: bool) -> Any:
    """A copy of a tensor or of each tensor of a list."""
    _check_groups(groups)
    if isinstance(value, torch.Tensor):
        return _give(value.clone(), output)
    if not isinstance(value, list) or not all(isinstance(x, torch.Tensor) for x in value):
        raise TypeError(f"`value` needs to be a Tensor or a list of Tensors, but given {type(value)}.")
    if pin_layout:
        raise RuntimeError("For xm.all_gather with list of tensors input, pin_layout=True is not yet supported.")
    return _give([x.clone() for x in value], output)


def reduce_scatter(
    reduce_type: str, value: Any, scale: float, scatter_dim: int, shard_count: int, groups: Groups, output: Any
) -> Any:
    """The first of `shard_count` equal parts along `scatter_dim`, times `scale`; of each tensor of a list."""
    _check_reduce_type(reduce_type)
    _check_groups(groups)

    def shard(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.shape[scatter_dim]
        if shard_count < 1 or size % shard_count:
            raise ValueError(f"dim {scatter_dim} of size {size} does not divide into {shard_count} equal parts")
        part = tensor.narrow(scatter_dim, 0, size // shard_count)
        return part.clone() if scale == 1.0 else part * scale

    return _give(shard(value) if isinstance(value, torch.Tensor) else [shard(x) for x in value], output)


def all_to_all(value: torch.Tensor, split_count: int, groups: Groups) -> torch.Tensor:
    """A copy; ValueError if `split_count` is not 1, the number of processes."""
    _check_groups(groups)
    if split_count != 1:
        raise ValueError(f"split_count has to be the number of processes of a group, 1, not {split_count}")
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """A copy if this process sends to itself, else zeros."""
    for source, target in pairs:
        if source or target:
            raise ValueError(f"pair {[source, target]} names a process that does not exist: this one, 0, is alone")
    return value.clone() if pairs else torch.zeros_like(value)


def collective_broadcast(tensors: Sequence[torch.Tensor], root_ordinal: int, groups: Groups) -> None:
    """Nothing to do for the root itself."""
    if root_ordinal:
        raise ValueError(f"root_ordinal {root_ordinal} does not exist: this process, 0, is alone")


def rendezvous(payload: bytes, ordinals: Sequence[int] | None) -> list[bytes]:
    """The payloads of all: that of this process. TypeError if it is no bytes."""
    if not isinstance(payload, bytes):
        raise TypeError(f"`payload` must be bytes, not {type(payload)}")
    if ordinals and list(ordinals) != [0]:
        raise ValueError(f"{list(ordinals)} name processes that do not exist: this one, 0, is alone")
    return [payload]


def mesh_reduce(data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the data of all processes, xla tensors on the CPU; a copy, as if it had been sent."""
    file = io.BytesIO()
    torch.save(nested.to_cpu(data) if not isinstance(data, torch.Tensor) else data.cpu(), file)
    file.seek(0)
    return reduce_fn([torch.load(file, weights_only=False)])  # the process's own data, of any class
