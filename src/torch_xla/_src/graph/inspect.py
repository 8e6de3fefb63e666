"""What is pending for some tensors: as IR text, HLO, StableHLO. Looking changes nothing and launches nothing."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._src.compile.program import Inputs, Use, uses
from torch_xla._src.graph import printing
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of
from torch_xla._src.graph.value import UNSET, Ref, Row, Spec, Value


class Pending:
    """The pending recording as far as some tensors need it.

    rows: the recording. specs, buffers: its leaves. roots: by tensor, the output (>= 0) or leaf (< 0) that it holds.
    counts: how many slots for floats and for integers and how many PRNG keys the recording has.
    """

    def __init__(
        self, rows: Sequence[Row], specs: list[Spec], buffers: list[Any], counts: tuple[int, int, int]
    ) -> None:
        self.rows, self.specs, self.buffers, self.counts = rows, specs, buffers, counts
        self.roots: list[int] = []

    def add(self, value: Value) -> None:
        """Wants what a Value holds."""
        if value.buffer is None and value.generation == RECORDER.generation:
            self.roots.append(value.index)
            return
        buffer = RECORDER.buffer(value)
        self.specs.append(value.spec)
        self.buffers.append(buffer)
        self.roots.append(-len(self.specs))

    def graph(self) -> printing.Graph:
        """For printing."""
        return printing.Graph(self.rows, self.specs, self.roots)

    def lowered(self) -> Any:
        """The program as jax.stages.Lowered, without checks and donation."""
        return lowered(self.rows, self.buffers, self.roots, self.counts)


def lowered(rows: Sequence[Row], buffers: Sequence[Any], roots: Sequence[int], counts: tuple[int, int, int]) -> Any:
    """Rows that compute `roots` from leaves, as jax.stages.Lowered."""

    def function(leaves: Any, floats: Any, ints: Any, keys: Any) -> list[Any]:
        inputs = Inputs(leaves, floats, ints, keys)
        for row, use in zip(rows, uses(rows, [r for r in roots if r >= 0]), strict=True):
            if use is Use.RUN:
                inputs.run(row)
            else:
                inputs.skip(row)
        return [inputs.resolve(Ref(root)) for root in roots]

    with jax.enable_x64(True), warnings.catch_warnings():
        return jax.jit(function).lower(
            [jax.ShapeDtypeStruct(b.shape, b.dtype, sharding=b.sharding) for b in buffers],
            jax.ShapeDtypeStruct((counts[0],), np.float64, weak_type=True),
            jax.ShapeDtypeStruct((counts[1],), np.int64, weak_type=True),
            jax.ShapeDtypeStruct((counts[2], 2), np.uint32),
        )


def pending(tensors: Sequence[torch.Tensor] | None) -> Pending:
    """What is pending for `tensors`, or for all live ones."""
    with RECORDER.lock:
        if tensors is None:
            values = [value for ref in RECORDER.values if (value := ref()) is not None]
        else:
            values = [_placed(value_of(tensor)) for tensor in tensors]
        counts = len(RECORDER.floats), len(RECORDER.ints), len(RECORDER.keys)
        rows = RECORDER.node.path()
        found = Pending(rows, list(RECORDER.leaf_specs), list(RECORDER.leaf_buffers), counts)
        for value in values:
            found.add(value)
        return found


def _placed(value: Value) -> Value:
    """The Value, after a row has been recorded for one that has none and no buffer either."""
    here = value.generation == RECORDER.generation
    if value.buffer is None and not here and (value.generation == UNSET or value.origin is not None):
        RECORDER._place(value)
    return value


def text(tensors: Sequence[torch.Tensor]) -> str:
    """The IR text of what is pending for `tensors`."""
    return pending(tensors).graph().text(printing.shows_places())


def hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The HLO text, before XLA has optimised it, with the user's lines if `XLA_HLO_DEBUG` is set."""
    return str(pending(tensors).lowered().as_text(dialect="hlo", debug_info=printing.shows_places()))


def stablehlo(tensors: Sequence[torch.Tensor] | None) -> str:
    """The StableHLO text, with the user's lines if `XLA_HLO_DEBUG` is set."""
    return str(pending(tensors).lowered().as_text(debug_info=printing.shows_places()))


def stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None) -> bytes:
    """The StableHLO module as MLIR bytecode."""
    file = io.BytesIO()
    pending(tensors).lowered().compiler_ir("stablehlo").operation.write_bytecode(file)
    return file.getvalue()


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether a tensor has yet to be computed."""
    return value_of(tensor).buffer is None


def materialize(tensors: Sequence[torch.Tensor]) -> None:
    """Launches what is pending if one of the tensors needs it."""
    for tensor in tensors:
        RECORDER.buffer(value_of(tensor))


def dot(tensors: Sequence[torch.Tensor]) -> str:
    """What is pending for `tensors` in the language of graphviz."""
    return pending(tensors).graph().dot()


def waiter(tensor: torch.Tensor) -> Callable[[], None]:
    """A function that blocks until a tensor, which is launched now if it is pending, has been computed."""
    watched = RECORDER.buffer(value_of(tensor)).addressable_data(0)  # an object of its own: the buffer can be donated

    def wait() -> None:
        if not watched.is_deleted():
            watched.block_until_ready()

    return wait


def debug_info(tensor: torch.Tensor, number: int) -> str:
    """A few lines about an xla tensor: its number, device, shape, the op that it waits for or the buffer it holds."""
    value = value_of(tensor)
    row = None
    if value.buffer is None and value.generation == RECORDER.generation:
        rows = RECORDER.node.path()
        row = next((r for r in rows if r.base <= value.index < r.base + len(r.outs)), None)
    lines = [
        "XLATensor {",
        f"TensorID: {number}",
        f"Device: {tensor.device}",
        f"XLA Shape: {printing.shape_text(value.spec)}",
        "ShardingSpec: None",
        f"IR: {'None' if row is None else row.op._schema.name}",
        f"XLAData: {'None' if value.buffer is None else value.buffer.sharding}",
        "Tensor on host: None",
        "}",
        "",
    ]
    return "\n".join(lines)
