"""A recording as text: the IR text of PyTorch/XLA, graphviz, and a hash that tells whether two are the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xla._src import environment
from torch_xla._src.graph.value import Ref, Row, Spec, contiguous_strides

_TYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.bool: "pred",
    torch.int8: "s8", torch.int16: "s16", torch.int32: "s32", torch.int64: "s64", torch.uint8: "u8", torch.uint16: "u16",
    torch.uint32: "u32", torch.uint64: "u64", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def shape_text(spec: Spec) -> str:
    """ "f32[2,3]{1,0}": dtype, sizes, and dims from minor to major."""
    dtype = _TYPES.get(spec.dtype) or str(spec.dtype).removeprefix("torch.")
    sizes = ",".join(map(str, spec.shape))
    if not spec.shape:
        return f"{dtype}[]"
    strides = spec.strides or contiguous_strides(spec.shape)
    order = sorted(range(len(spec.shape)), key=lambda dim: (strides[dim], -dim))
    return f"{dtype}[{sizes}]{{{','.join(map(str, order))}}}"


def shows_places() -> bool:
    """Whether texts name the user's lines: `XLA_IR_DEBUG` or `XLA_HLO_DEBUG`, or `_XLAC._set_ir_debug(True)`."""
    return ir_debug or environment.flag("XLA_IR_DEBUG") or environment.flag("XLA_HLO_DEBUG")


ir_debug = False


def place(row: Row) -> str:
    """ "function@file.py:12", from the line of a row; an empty string if it has none."""
    path, _, rest = row.line.rpartition(":")
    number, _, function = rest.partition(" ")
    return f"{function.strip('()')}@{os.path.basename(path)}:{number}" if path else ""


def scope_name(row: Row) -> str:
    """What XLA's metadata call the instructions of a row: its op, and with `XLA_HLO_DEBUG` the user's line."""
    name = str(row.op._schema.name).replace("::", ".")
    if environment.flag("XLA_HLO_DEBUG") and (where := place(row)):
        name += f"[{where.replace('@', ':')}]"  # XLA cuts names at an "@"
    return name


@dataclass
class _Node:
    op: str
    inputs: list[str]
    specs: Sequence[Spec | None]
    attributes: list[str] = field(default_factory=list)
    place: str = ""


class Graph:
    """What a recording computes for some outputs. Nodes in order; leaves come where they are first used.

    rows: the recording. leaves: Specs of its leaves. roots: the outputs (>= 0) and leaves (< 0) that are wanted.
    """

    def __init__(self, rows: Sequence[Row], leaves: Sequence[Spec], roots: Sequence[int]) -> None:
        self.leaves, self.nodes = leaves, list[_Node]()
        self._names: dict[int, str] = {}
        needed = _needed(rows, roots)
        for row in rows:
            if row.depth in needed:
                self._add(row)
        self.roots = [self._name(root) for root in roots]

    def _name(self, ref: int) -> str:
        if ref not in self._names:
            assert ref < 0, "an output that is not computed"
            self._names[ref] = f"%{len(self.nodes)}"
            self.nodes.append(_Node("xla::device_data", [], [self.leaves[-1 - ref]]))
        return self._names[ref]

    def _add(self, row: Row) -> None:
        inputs, attributes = [], []
        names = [argument.name for argument in row.op._schema.arguments]
        for name, argument in [*zip(names, row.args), *zip(row.names, row.kwargs)]:
            refs = _refs(argument)
            inputs += [self._name(ref) for ref in refs]
            if not refs and argument is not None:
                attributes.append(f"{name}={argument}")
        number = len(self.nodes)
        self.nodes.append(_Node(row.op._schema.name, inputs, row.outs, attributes, place(row)))
        for i in range(len(row.outs)):
            self._names[row.base + i] = f"%{number}" if len(row.outs) == 1 else f"%{number}.{i}"

    def _shape(self, node: _Node) -> str:
        shapes = [shape_text(spec) if spec is not None else "()" for spec in node.specs]
        return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"

    def _marks(self, number: int) -> list[str]:
        own = f"%{number}"
        return [f"ROOT={i}" for i, root in enumerate(self.roots) if root == own or root.startswith(own + ".")]

    def text(self, places: bool = False) -> str:
        """One node a line: `%2 = f32[3]{0} aten::mul(%0, %1), xla_shape=f32[3]{0}, ROOT=0`. places: name user lines."""
        lines = []
        for number, node in enumerate(self.nodes):
            shape = self._shape(node)
            parts = [f"%{number} = {shape} {node.op}({', '.join(node.inputs)})"]
            if places and node.place:
                parts.append(f"location={node.place}")
            if len(node.specs) > 1:
                parts.append(f"num_outputs={len(node.specs)}")
            lines.append("  " + ", ".join([*parts, f"xla_shape={shape}", *node.attributes, *self._marks(number)]))
        return "\n".join(["IR {", *lines, "}", ""])

    def dot(self) -> str:
        """The same in the language of graphviz."""
        lines = []
        for number, node in enumerate(self.nodes):
            label = "\\n".join([node.op, self._shape(node), *node.attributes, *self._marks(number)]).replace('"', "'")
            lines.append(f'  node{number} [label="{label}"]')
        for number, node in enumerate(self.nodes):
            for i, source in enumerate(node.inputs):
                label = f' [label="i={i}"]' if len(node.inputs) > 1 else ""
                lines.append(f"  node{source[1:].partition('.')[0]} -> node{number}{label}")
        return "\n".join(["digraph G {", *lines, "}", ""])

    def digest(self) -> str:
        """32 hexadecimal digits, the same for the same computation in every process."""
        return hashlib.md5(self.text().encode(), usedforsecurity=False).hexdigest()


def _refs(template: Any) -> list[int]:
    if type(template) is Ref:
        return [int(template)]
    return [ref for t in template for ref in _refs(t)] if type(template) is tuple else []


def _needed(rows: Sequence[Row], roots: Sequence[int]) -> set[int]:
    """Depths of the rows that the roots depend on."""
    wanted, found = set(roots), set()
    for row in reversed(rows):
        if any(number in wanted for number in range(row.base, row.base + len(row.outs))):
            found.add(row.depth)
            wanted.update(_refs((row.args, row.kwargs)))
    return found
