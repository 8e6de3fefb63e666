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
from torch_xla._src.runtime import client, memory, transfer

if TYPE_CHECKING:
    from torch_xla._src.compile.launch import Launch


class CompileWarning(UserWarning):
    """A recording did not compile as a whole."""


def explain(error: Exception, rows: Sequence[Row]) -> Exception:
    """The exception to raise for an error of the device: of the class PyTorch raises, with the user's line."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text:
        return out_of_memory(text.splitlines()[0], rows)
    return RuntimeError(f"device xla failed to run the program recorded up to {rows[-1].line}: {text}")


def refuse_if_too_large(program: Program) -> None:
    """OutOfMemoryError before the run, on CPU: there XLA may end the process when an allocation fails."""
    if client.device_type() == "CPU" and program.bytes_needed > (limit := memory.host_limit()):
        raise out_of_memory(f"the program needs {program.bytes_needed:,} bytes of {limit:,}", program.rows)


def out_of_memory(text: str, rows: Sequence[Row]) -> torch.OutOfMemoryError:
    """The exception that names the largest result and its line."""
    largest = max(rows, key=_bytes)
    return torch.OutOfMemoryError(
        f"device xla is out of memory: {text}. The largest result of the program is {_bytes(largest):,} "
        f"bytes, of {largest.op} at {largest.line or 'an unknown line'}"
    )


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
