"""Tensors inside lists, tuples, dicts, sets and objects: finding them, moving them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class DataWrapper:
    """Base class for batches of the user's own type: says which tensors it holds, and makes one from moved tensors."""

    def get_tensors(self) -> list[torch.Tensor]:
        """The tensors to move."""
        raise NotImplementedError(f"{type(self).__name__} has to define get_tensors()")

    def from_tensors(self, tensors: list[torch.Tensor]) -> Any:
        """A batch like this one that holds `tensors`, which are in the order of `get_tensors()`."""
        raise NotImplementedError(f"{type(self).__name__} has to define from_tensors(tensors)")


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> None:
    """Calls `fn` on each object inside `value` (itself included) for which `select_fn` holds, in order."""
    _walk(value, select_fn, fn, set())


def _walk(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any], seen: set[int]) -> None:
    if id(value) in seen:
        return
    if select_fn(value):
        fn(value)
        return
    children = _children(value)
    if children:
        seen.add(id(value))
        for child in children:
            _walk(child, select_fn, fn, seen)
        seen.discard(id(value))


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return list(vars(value).values()) if _is_plain_object(value) else []


def _is_plain_object(value: Any) -> bool:
    """An instance of the user's own class, whose attributes may hold tensors."""
    return hasattr(value, "__dict__") and not isinstance(value, (type, torch.Tensor)) and not callable(value)


def for_each_instance_rewrite(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> Any:
    """A copy of `value` in which each object that `select_fn` holds for is replaced by what `fn` makes of it.

    Plain tuples become lists, as in PyTorch/XLA; named tuples and dict classes stay what they are. Objects of other
    classes are changed in place.
    """
    return _rewrite(value, select_fn, fn, {})


def _rewrite(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    if select_fn(value):
        return fn(value)

    def each(x: Any) -> Any:
        return _rewrite(x, select_fn, fn, done)

    if isinstance(value, dict):
        result = copy.copy(value)
        for key in value:
            result[key] = each(value[key])
        return result
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(each, value))
    if isinstance(value, (list, tuple)):
        return [each(x) for x in value]
    if isinstance(value, (set, frozenset)):
        return type(value)(each(x) for x in value)
    if _is_plain_object(value):
        done[id(value)] = value
        for name, child in list(vars(value).items()):
            if _holds(child, select_fn):
                setattr(value, name, each(child))
    return value


def _holds(value: Any, select_fn: Callable[[Any], bool]) -> bool:
    found: list[Any] = []
    for_each_instance(value, select_fn, found.append)
    return bool(found)


class ToXlaTensorArena:
    """Moves all selected tensors of a nested structure in one call.

    convert_fn: takes the list of tensors, returns that of their replacements. select_fn: which objects to take.
    """

    def __init__(
        self,
        convert_fn: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        select_fn: Callable[[torch.Tensor], bool],
    ) -> None:
        self._convert_fn, self._select_fn = convert_fn, select_fn

    def transform(self, inputs: Any) -> Any:
        """`inputs` with the selected tensors replaced; a tensor that appears twice is converted once."""
        found: list[torch.Tensor] = []
        places: dict[int, int] = {}

        def collect(tensor: torch.Tensor) -> None:
            if id(tensor) not in places:
                places[id(tensor)] = len(found)
                found.append(tensor)

        def selected(x: Any) -> bool:
            return isinstance(x, (torch.Tensor, DataWrapper)) and (isinstance(x, DataWrapper) or self._select_fn(x))

        def visit(x: Any) -> None:
            for tensor in x.get_tensors() if isinstance(x, DataWrapper) else [x]:
                collect(tensor)

        for_each_instance(inputs, selected, visit)
        converted = self._convert_fn(found) if found else []

        def replace(x: Any) -> Any:
            if isinstance(x, DataWrapper):
                return x.from_tensors([converted[places[id(tensor)]] for tensor in x.get_tensors()])
            return converted[places[id(x)]]

        return for_each_instance_rewrite(inputs, selected, replace)


def to_cpu(data: Any) -> Any:
    """`data` with the xla tensors inside it copied to the CPU; one that appears twice is one tensor afterwards too."""

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.cpu() for tensor in tensors]

    return ToXlaTensorArena(convert, lambda x: x.is_xla).transform(data)


def to_device(data: Any, device: Any) -> Any:
    """`data` with the CPU tensors inside it copied to `device`; a bare tensor gives a list of one."""
    if isinstance(data, torch.Tensor):
        data = [data]

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.to(device) for tensor in tensors]

    return ToXlaTensorArena(convert, lambda x: x.device.type == "cpu").transform(data)
