"""The arguments and the result of a step, taken apart into tensors, plain values and other objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_xla._src.step.reach import is_plain


class Flat(NamedTuple):
    """Arguments of a call. structure: equal for calls that differ in the tensors only, hashable. Of a tensor that is not on
    device xla it has what Python and an upload depend on, its contents aside, and which others are in the same memory.

    objects: those that are neither tensors, plain values nor containers of these; `structure` has their identities.
    """

    structure: Any
    tensors: list[torch.Tensor]
    objects: list[Any]


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> Flat:
    """Takes the arguments of a call apart."""
    tensors: list[torch.Tensor] = []
    objects: list[Any] = []
    structure = _flatten((args, kwargs), tensors, objects)
    if len(tensors) > 1:
        pointers = [t.data_ptr() for t in tensors if t.device.type == "cpu"]
        if len(set(pointers)) < len(pointers):
            structure = structure, tuple(map(pointers.index, pointers))
    return Flat(structure, tensors, objects)


def _flatten(one: Any, tensors: list[torch.Tensor], objects: list[Any]) -> Any:
    if isinstance(one, torch.Tensor):
        tensors.append(one)
        if vars(one):  # attributes of Python
            objects.append(vars(one))
            return type(one), id(one)
        if one.device.type == "xla":
            return type(one)
        return type(one), one.device, one.shape, one.dtype, one.stride(), one.requires_grad
    if type(one) in (tuple, list):
        return type(one), tuple(_flatten(x, tensors, objects) for x in one)
    if type(one) is dict:
        return dict, tuple(one), tuple(_flatten(x, tensors, objects) for x in one.values())
    if is_plain(one):
        return type(one), repr(one) if type(one) in (float, complex) else one  # NaN equals NaN, and 0.0 not -0.0
    objects.append(one)
    return object, id(one)
