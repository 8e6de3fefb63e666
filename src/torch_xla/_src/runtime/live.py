"""The live tensors of the device: how large each is, and where it comes from.

Nothing is kept for this: the garbage collector knows every Value, a Value knows the row it was computed by, and names are
those that modules and the user's frames have for a tensor when somebody asks.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._src.graph.tensor import value_of
from torch_xla._src.graph.value import Row, Value
from torch_xla._src.runtime import names

_UPLOADED = "moved or made from host data"


@dataclass(frozen=True)
class LiveTensor:
    """A buffer on the device that a tensor holds.

    shape, dtype: as PyTorch sees them. num_bytes: of its elements. line: "file:line (function)" of the user's code that
    computed it, and op the aten op; both empty for what came from the host. names: what modules and variables call it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int
    line: str
    op: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        origin = f"{self.op} at {self.line or 'an unknown line'}" if self.op else _UPLOADED
        named = f" ({', '.join(self.names)})" if self.names else ""
        return f"{self.num_bytes:>16,} bytes  {str(self.dtype).removeprefix('torch.')}[{shape}]{named}, {origin}"


class LiveTensors(list[LiveTensor]):
    """Live tensors, largest first. Prints as a table."""

    def by_line(self) -> dict[str, int]:
        """Bytes by user line, the largest first; what came from the host is under its own name."""
        found: dict[str, int] = {}
        for tensor in self:
            key = (tensor.line or "an unknown line") if tensor.op else _UPLOADED
            found[key] = found.get(key, 0) + tensor.num_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        return "\n".join([f"{sum(t.num_bytes for t in self):>16,} bytes  in {len(self)} tensors", *map(str, self)])


def row_of(value: Value) -> Row | None:
    """The row that computed a Value in the last launch that wrote it; None if it came from the host."""
    if value.made is None:
        return None
    row, number = value.made
    while row.parent is not None and row.base > number:
        row = row.parent
    return row


def live_tensors() -> LiveTensors:
    """All buffers that tensors hold now, largest first; one that several tensors share once."""
    values: dict[int, Value] = {}
    for found in gc.get_objects():
        if type(found) is Value and found.buffer is not None and not _is_deleted(found.buffer):
            values.setdefault(id(found.buffer), found)
    named = _names()
    described = [_described(value, named.get(id(value.buffer), ())) for value in values.values()]
    return LiveTensors(sorted(described, key=lambda tensor: -tensor.num_bytes))


def table(count: int = 10) -> str:
    """The `count` largest live tensors, one a line, and how many there are beside; empty if there are none."""
    tensors = live_tensors()
    lines = [f"  {tensor}" for tensor in tensors[:count]]
    if rest := tensors[count:]:
        lines.append(f"  {sum(t.num_bytes for t in rest):>16,} bytes  in {len(rest)} smaller ones")
    return "\n".join(lines)


def _is_deleted(buffer: Any) -> bool:
    return bool(getattr(buffer, "is_deleted", bool)())


def _described(value: Value, names: tuple[str, ...]) -> LiveTensor:
    row, spec = row_of(value), value.spec
    size = math.prod(spec.shape) * spec.dtype.itemsize
    line, op = ("", "") if row is None else (row.line, row.op._schema.name)
    return LiveTensor(tuple(spec.shape), spec.dtype, size, line, op, names)


def _names() -> dict[int, tuple[str, ...]]:
    """By the identity of the buffer: what the user's frames and the modules in them call a tensor."""
    found: dict[int, list[str]] = {}
    for name, tensor in names.tensors():
        if (buffer := _buffer_of(tensor)) is not None:
            known = found.setdefault(id(buffer), [])
            if name not in known and len(known) < 3:
                known.append(name)
    return {key: tuple(known) for key, known in found.items()}


def _buffer_of(tensor: torch.Tensor) -> Any:
    try:
        return value_of(tensor).buffer
    except (TypeError, RuntimeError):  # not on the device, or without elements that could be looked at
        return None
