"""When a recording does not compile: compute it row by row, the rows at fault by PyTorch's CPU kernels.

Nothing pending is lost to a defect of one lowering. The call at fault is remembered, so that from then on it runs on the
CPU between two compiled programs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
import torch.utils._pytree as pytree

from torch_xla._src.compile import undo
from torch_xla._src.compile.plan import Use, uses
from torch_xla._src.compile.poison import CheckedRow, inherited, outputs_with
from torch_xla._src.compile.program import Inputs, Program, RowError, flags_of
from torch_xla._src.graph.value import Ref, Row, Spec
from torch_xla._src.runtime import client, live, memory, transfer

if TYPE_CHECKING:
    from torch_xla._src.compile.launch import Launch


_WORTH_A_LOOK = 8  # a program that needs less than this part of the memory is not held against what is live
_NUM_LARGEST = 5


class CompileWarning(UserWarning):
    """A recording did not compile as a whole."""


def explain(error: Exception, rows: Sequence[Row], program: Program | None = None) -> Exception:
    """The exception to raise for an error of the device: of the class PyTorch raises, with the user's line."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text:
        return out_of_memory(text.splitlines()[0], rows, program)
    calls = [row for row in rows if _may_fail(row)]
    suspects = "".join(f"; it calls {row.op} at {row.line or 'an unknown line'}" for row in calls[:_NUM_LARGEST])
    return RuntimeError(
        f"device xla failed to run the program recorded up to {rows[-1].op} at {rows[-1].line or 'an unknown line'}"
        f"{suspects}: {_essence(text)}"
    )


def _may_fail(row: Row) -> bool:
    """Whether a row may run the user's Python: a callback in a JAX function."""
    return bool(row.op._schema.name == "torch_xla::call_jax")


def independent(rows: Sequence[Row], numbers: Sequence[int]) -> list[int]:
    """Those of the outputs that depend on no row that may have failed; none if there is no such row."""
    errors: dict[int, Exception] = {}
    for row in rows:
        if _may_fail(row) or inherited(errors, row) is not None:
            errors |= outputs_with(RuntimeError(), row)
    return [number for number in numbers if number not in errors] if errors else []


def _essence(text: str) -> str:
    """An error of the device without the traceback that it may hold: the first line, and the last of a Python exception."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not any(line.startswith("Traceback") or "Traceback (most recent" in line for line in lines):
        return text
    raised = [line for line in lines if line[:1].isalpha() and ": " in line and "Traceback" not in line]
    return f"{lines[0].partition('Traceback')[0].rstrip(' :')}: {raised[-1] if raised else lines[-1]}"


def refuse_if_too_large(program: Program) -> None:
    """OutOfMemoryError before the run, on CPU: there XLA may end the process when an allocation fails.

    What other tensors hold counts too, but is looked up only for a program that needs a part of the memory worth the time.
    """
    if client.device_type() != "CPU":
        return
    needed, limit = program.bytes_needed, memory.host_limit()
    if needed <= limit // _WORTH_A_LOOK:
        return
    others = max(memory.live_bytes() - program.executable.memory_analysis().argument_size_in_bytes, 0)
    if needed + others > limit:
        text = f"the program needs {needed:,} bytes of {limit:,}, of which other tensors hold {others:,}"
        raise out_of_memory(text, program.rows, program)


def out_of_memory(text: str, rows: Sequence[Row], program: Program | None = None) -> torch.OutOfMemoryError:
    """The exception that names the largest results of the program, its memory, and the largest live tensors by line."""
    largest = max(rows, key=_bytes)
    parts = [
        f"device xla is out of memory: {text}. The largest result of the program is {_bytes(largest):,} bytes, of "
        f"{largest.op} at {largest.line or 'an unknown line'}",
        *([_memory_of(program)] if program is not None else []),
        "Largest tensors that are live:",
        live.table() or "  none",
        "To need less: smaller batches, torch.utils.checkpoint, a narrower dtype under torch.autocast, del of what is done "
        "with, torch_xla.sync() at the end of each step",
    ]
    return torch.OutOfMemoryError("\n".join(parts))


def _memory_of(program: Program) -> str:
    from torch_xla._src.compile import memory_plan  # measures rows as this does

    return str(memory_plan.of_program(program))


def num_bytes(spec: Spec) -> int:
    """Bytes of a tensor."""
    return math.prod(spec.shape) * spec.dtype.itemsize


def _bytes(row: Row) -> int:
    return sum(num_bytes(s) for s in row.outs if s is not None)


@dataclass
class Recovered:
    """What running the rows of a recording one by one gave.

    outputs: those of the live outputs that are not in `errors`, then the flags if there are `checks`, as of a Program.
    undone: as of a Program.
    errors: the error of each output that could not be computed, by number; that of the first row at fault comes first.
    """

    outputs: list[Any]
    checks: list[CheckedRow]
    undone: dict[int, undo.Place]
    errors: dict[int, Exception]


def recover(launch: Launch, error: Exception) -> Recovered:
    """Computes a recording whose program could not be built because of `error`."""
    rows = launch.node.path()
    if "RESOURCE_EXHAUSTED" in str(error):
        raise explain(error, rows) from error
    numbers = [number for number, _ in launch.live]
    with jax.enable_x64(True):
        inputs = Inputs(launch.buffers, launch.floats, launch.ints, _keys(launch.keys), *launch.prior)
        errors: dict[int, Exception] = {}
        wanted = [*numbers, *undo.earlier(numbers, launch.replaced)]
        for row, use in zip(rows, uses(rows, wanted), strict=True):
            failure = inherited(errors, row)
            if use is Use.RUN and failure is None:
                failure = _run(inputs, row)
            elif use is Use.CHECK and failure is None:
                inputs.run(row, only_check=True)
            else:
                inputs.skip(row)
            if failure is not None:
                errors |= outputs_with(failure, row)
        flags = flags_of(inputs)
        known = {n: None if type(held) is int and held in errors else held for n, held in launch.replaced.items()}
        outputs, undone = undo.settle([number for number in numbers if number not in errors], inputs, known)
        return Recovered([*map(jax.numpy.asarray, outputs), *flags], inputs.checks, undone, errors)


def _run(inputs: Inputs, row: Row) -> Exception | None:
    """Runs a row by its lowering, else on the CPU. Returns the error that the CPU raises."""
    position, num_checks = dict(inputs.position), len(inputs.checks)
    try:
        inputs.run(row)
    except RowError as failure:
        inputs.position = dict(position)
        del inputs.checks[num_checks:], inputs.flags[num_checks:]  # the CPU makes its own
        try:
            _run_on_cpu(inputs, row, failure)
        except Exception as error:
            inputs.position = position
            inputs.skip(row)
            error.add_note(f"{row.op} at {row.line or 'an unknown line'}")
            return error
    return None


def _keys(keys: Sequence[tuple[int, int]]) -> Any:
    return np.array(keys, np.uint32).reshape(-1, 2)


def _run_on_cpu(inputs: Inputs, row: Row, failure: RowError) -> None:
    from torch_xla._src.graph.recorder import RECORDER

    warnings.warn(
        f"{row.op} at {row.line or 'an unknown line'} does not compile for device xla ({failure.__cause__!r}); it runs on "
        "the CPU from now on",
        CompileWarning,
        stacklevel=2,
    )
    values: list[Any] = []

    def to_host(t: Any) -> Any:
        if type(t) is Ref:
            values.append(t)
            return transfer.download(inputs.outs[t] if t >= 0 else inputs.leaves[-1 - t])
        if type(t) is tuple:
            return [to_host(x) for x in t]
        return torch.device("cpu") if isinstance(t, torch.device) else inputs.resolve(t)

    args = [to_host(t) for t in row.args]
    kwargs = {name: to_host(t) for name, t in zip(row.names, row.kwargs)}
    results = row.op(*args, **kwargs)
    flat = [results] if isinstance(results, torch.Tensor) else pytree.tree_leaves(results, is_leaf=lambda x: x is None)
    for number, result in enumerate(flat, row.base):
        inputs.outs[number] = transfer.upload(result) if isinstance(result, torch.Tensor) else result
    RECORDER.forbid(row)
