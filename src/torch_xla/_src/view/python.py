"""A recording as a Python function of aten ops that can be run, on the CPU or on device xla."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src.graph.printing import shape_text
from torch_xla._src.graph.value import FLOAT_SLOT, Ref, Row, Slot, Spec
from torch_xla._src.view import helpers

_MARKERS = ("torch_xla::recompute_begin", "torch_xla::recompute_end")
# Ops of this package that PyTorch has under another name.
_MOVING = {
    "torch_xla::select": "torch.ops.aten.select_copy.int({0}, {1}, {2})",
    "torch_xla::slice": "torch.ops.aten.slice_copy.Tensor({0}, {1}, {2}, {2} + {3})",
    "torch_xla::slice_scatter": "torch.ops.aten.slice_scatter.default({0}, {1}, {2}, {3}, {3} + {1}.shape[{2}])",
}
_ATTENTION = "aten::_scaled_dot_product_fused_attention_overrideable"
# Ops for which the CPU has no kernel: the function that is called, and those that it needs.
_HELPERS: dict[str, list[Any]] = {
    "aten::linear_backward": [helpers.linear_backward],
    _ATTENTION: [helpers.attention, helpers.attend],
    f"{_ATTENTION}_backward": [helpers.attention_backward, helpers.attend],
    "torch_xla::rnn_layer": [helpers.rnn_layer, helpers.rnn_loop, helpers.rnn_cell],
    "torch_xla::rnn_layer_backward": [helpers.rnn_layer_backward, helpers.rnn_loop, helpers.rnn_cell],
}


def text(rows: Sequence[Row], leaves: Sequence[Spec | None], roots: Sequence[int]) -> str:
    """The source of `program(leaves, floats=(), ints=(), device="cpu")`, which returns the list of outputs `roots`.

    leaves: Specs of the inputs, None for one that is not used. Numbers that are inputs of the program are taken from
    `floats` and `ints`, in order. Ops that draw random numbers draw from PyTorch's generator of the device. JAX functions
    are ops of this package, which run on device xla, in the process that recorded them.
    """
    writer = _Writer()
    body = [line for row in rows for line in writer.row(row)]
    inputs = [f"    leaf{n} = leaves[{n}]  # {shape_text(spec)}" for n, spec in enumerate(leaves) if spec is not None]
    returned = ", ".join(_name(root) for root in roots)
    used = "\n".join(body)
    head = [
        "import torch",
        *(["from torch.utils._pytree import tree_leaves"] if "tree_leaves(" in used else []),
        *(f"\n\n{inspect.getsource(helper).rstrip()}" for helper in writer.helpers),
        "\n",
        'def program(leaves, floats=(), ints=(), device="cpu"):',
        f'    """{len(leaves)} tensors, {writer.counts[0]} floats and {writer.counts[1]} integers give {len(roots)} tensors."""',
    ]
    return "\n".join([*head, *inputs, *body, f"    return [{returned}]", ""])


def _name(number: int) -> str:
    return f"v{number}" if number >= 0 else f"leaf{-1 - number}"


class _Writer:
    """Writes rows, counting the numbers that they take from the inputs."""

    def __init__(self) -> None:
        self.counts = [0, 0]
        self.helpers: dict[Any, None] = {}  # those that are called, in order

    def row(self, row: Row) -> list[str]:
        """The lines for one row."""
        name = str(row.op._schema.name)
        if name in _MARKERS:
            return []
        args = [self._value(t) for t in row.args]
        named = [f"{n}={self._value(t)}" for n, t in zip(row.names, row.kwargs)]
        if _is_factory(row.op):
            named = [*(n for n in named if not n.startswith("device=")), "device=device"]
        if name in _MOVING:
            call = _MOVING[name].format(*args)
        elif name in _HELPERS:
            self.helpers.update(dict.fromkeys(_HELPERS[name]))
            call = f"{_HELPERS[name][0].__name__}({', '.join([*args, *named])})"
        else:
            namespace, _, op = name.partition("::")
            call = f"torch.ops.{namespace}.{op}.{row.op._overloadname}({', '.join([*args, *named])})"
        returns = row.op._schema.returns
        if len(returns) > 1 and any("[]" in str(r.type) or "List" in str(r.type) for r in returns):  # lists of tensors
            call = f"tree_leaves({call})"
        outs = [f"v{n}" if spec is not None else "_" for n, spec in enumerate(row.outs, row.base)]
        is_one = row.rebuild is None
        target = outs[0] if is_one and outs else f"[{', '.join(outs)}]" if outs else ""
        shapes = ", ".join(shape_text(spec) for spec in row.outs if spec is not None)
        places = [part for part in (shapes, row.module, row.line) if part]
        comment = f"  # {'  '.join(places)}".replace("\n", " ") if places else ""
        return [f"    {target} = {call}{comment}" if target else f"    {call}{comment}"]

    def _value(self, t: Any) -> str:
        kind = type(t)
        if kind is Ref:
            return _name(int(t))
        if kind is Slot:
            which = 0 if t.kind is FLOAT_SLOT.kind else 1
            self.counts[which] += 1
            return f"{('floats', 'ints')[which]}[{self.counts[which] - 1}]"
        if kind in (tuple, list, torch.Size):
            return f"[{', '.join(map(self._value, t))}]"
        if kind is torch.device:
            return "device" if t.type == "xla" else repr(str(t))
        return _constant(t)


def _constant(t: Any) -> str:
    if type(t) is float:
        return repr(t) if math.isfinite(t) else f"float({str(t)!r})"
    if type(t) is complex:
        return f"complex({_constant(t.real)}, {_constant(t.imag)})"
    return repr(t)  # numbers, texts, None; dtypes, layouts and memory formats are written as torch.NAME


def _is_factory(op: Any) -> bool:
    arguments = op._schema.arguments
    return any(a.name == "device" for a in arguments) and not any("Tensor" in str(a.type) for a in arguments)
