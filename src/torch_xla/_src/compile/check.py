"""Finds the first op of a recording that makes NaN or Inf, is given an index out of range, or departs from the CPU.

Note [Checking a recording]
Inside `debug.check()` each recording is examined before it is launched, so what is found is raised while everything is
still pending. The rows are computed by PyTorch's CPU kernels, in order: that is the reference. Then the rows of a segment
are run on the device in one program, each given the reference for all it reads. So no row sees the error of another, or
rounding that has added up, and the first result that departs is that of the first row at fault. A segment that the device
cannot compile or run is halved until the row at fault stands alone; that is noted, and the others are compared.

What this does not see is a difference that XLA makes by fusing rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import jax
import torch

from torch_xla._src.compile import on_cpu, poison
from torch_xla._src.compile.on_cpu import Replay
from torch_xla._src.compile.plan import refs_in
from torch_xla._src.compile.program import RowError
from torch_xla._src.graph import contents, lengths
from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import transfer

SEGMENT = 128  # rows a program, so that building it takes a second or so and its results fit beside each other
# dtype -> (relative tolerance, absolute one as a part of the largest element): of one op on the same inputs.
_TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.complex128: (1e-7, 1e-9),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3.2e-2, 1.6e-2),
}
_OF_FLOAT32 = 1e-4, 2e-5


@dataclass(frozen=True)
class Finding:
    """What `debug.check()` has found at one op.

    kind: "nonfinite", "index" or "departs". op: the aten op. line: "file:line (function)" of the user's code. module: path
    of the module, or empty. text: what is wrong there. element: index of the first wrong element, or None.
    """

    kind: str
    op: str
    line: str
    module: str
    text: str
    element: tuple[int, ...] | None = None

    def __str__(self) -> str:
        module = f", in {self.module}" if self.module else ""
        return f"{self.op} at {self.line or 'an unknown line'}{module}: {self.text}"


class CheckError(RuntimeError):
    """`debug.check()` has found an op at fault; `finding` says which."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class _Found(Exception):
    """The row at this position of the recording is at fault."""

    def __init__(self, position: int, error: Exception) -> None:
        super().__init__(position)
        self.position, self.error = position, error


_seen = (-1, 0)  # a generation of the recorder, and how many of its rows are not to be reported any more


def _note_seen(generation: int, count: int) -> None:
    global _seen
    _seen = generation, max(count, _seen[1] if _seen[0] == generation else 0)


class Check:
    """The context manager behind `debug.check()`. `notes`: what could not be compared, and why. `num_rows`: examined."""

    def __init__(self, nonfinite: bool, against_cpu: bool, rtol: float | None, atol: float | None) -> None:
        self.nonfinite, self.against_cpu, self.rtol, self.atol = nonfinite, against_cpu, rtol, atol
        self.notes: list[str] = []
        self.num_rows = 0
        self._outer: list[Callable[..., None] | None] = []

    def __enter__(self) -> Check:
        contents.depth += 1
        self._outer.append(contents.examine)
        contents.examine = self._launching
        from torch_xla._src.graph.recorder import RECORDER

        _note_seen(RECORDER.generation, RECORDER.pending)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self._pending()
        finally:
            contents.depth -= 1
            contents.examine = self._outer.pop()

    def _pending(self) -> None:
        from torch_xla._src.graph.recorder import RECORDER

        with RECORDER.lock:
            if RECORDER.pending:
                self._launching(RECORDER.node, RECORDER.leaf_buffers, RECORDER.floats, RECORDER.ints, RECORDER.keys)

    def _launching(self, node: Row, leaves: Sequence[Any], floats: Any, ints: Any, keys: Any) -> None:
        """Examines what has been added to a recording that is about to be launched. Nothing is reported twice."""
        if not (self.nonfinite or self.against_cpu):
            return
        poison.settle(wait=True)  # leaves may be wrong because of an earlier failure
        from torch_xla._src.graph.recorder import RECORDER

        rows, generation = node.path(), RECORDER.generation
        first = _seen[1] if _seen[0] == generation else 0
        contents.examine = None  # what the examination itself launches is not examined
        try:
            exact = [lengths.exact(buffer) for buffer in leaves]
            self._examine(Replay(rows, exact, floats, ints, on_cpu.key_data(keys)), first)
        except _Found as found:
            _note_seen(generation, found.position + 1)
            raise found.error from None
        finally:
            contents.examine = self._launching

    def _examine(self, replay: Replay, first: int) -> None:
        last_use: dict[int, int] = {}
        for position, row in enumerate(replay.rows):
            last_use.update(dict.fromkeys(refs_in((row.args, row.kwargs)), position))
        for start in range(0, len(replay.rows), SEGMENT):
            stop = min(start + SEGMENT, len(replay.rows))
            self._segment(replay, start, stop, first)
            for number in [n for n in replay.host if last_use.get(n, -1) < stop]:
                del replay.host[number]
        self.num_rows += len(replay.rows) - first
        for position, reason in replay.uncompared.items():
            row = replay.rows[position]
            note = f"{on_cpu.name_of(row)} at {row.line or 'an unknown line'} was not compared with the CPU: {reason}"
            if self.against_cpu and note not in self.notes:
                self.notes.append(note)

    def _segment(self, replay: Replay, start: int, stop: int, first: int) -> None:
        bad: _Found | None = None
        for position in range(start, stop):
            row = replay.rows[position]
            try:
                replay.on_cpu(position, known=position < first)
            except (IndexError, ZeroDivisionError) as error:
                bad = _Found(position, contents.failure(type(error), str(error), row.op, row.line))
                stop = position
                break
            if position >= first and self.nonfinite and (found := nonfinite(replay, row)) is not None:
                bad, stop = _Found(position, CheckError(found)), position + 1
                break
        if self.against_cpu or self.nonfinite:
            self._departing(replay, [p for p in range(max(start, first), stop) if p not in replay.uncompared])
        if bad is not None:
            raise bad

    def _departing(self, replay: Replay, positions: list[int]) -> None:
        """Raises for the first of these rows that departs from the CPU. See Note [Checking a recording]."""
        if not positions:
            return
        try:
            outs = replay.on_device(positions)
        except RowError as error:
            failed = next(p for p in positions if replay.rows[p] is error.row)
            replay.uncompared[failed] = (
                f"it does not compile for device xla ({error.__cause__!r}), so it runs on the CPU"
            )
            self._departing(replay, [p for p in positions if p != failed])
            return
        except jax.errors.JaxRuntimeError as error:
            if len(positions) == 1:
                replay.uncompared[positions[0]] = f"the device cannot run it: {str(error).splitlines()[0]}"
                return
            middle = len(positions) // 2
            self._departing(replay, positions[:middle])
            self._departing(replay, positions[middle:])
            return
        for position in positions:
            row = replay.rows[position]
            for number in range(row.base, row.base + len(row.outs)):
                host, buffer = replay.host.get(number), outs.get(number)
                if host is None or buffer is None:
                    continue
                got = transfer.download(buffer, host.dtype)
                if not self.against_cpu and (_has_nonfinite(host) or not _has_nonfinite(got)):
                    continue
                wrong = difference(got, host, self.rtol, self.atol, _scale(replay, row))
                if wrong is not None:
                    text = wrong.text if len(row.outs) == 1 else f"output {number - row.base}: {wrong.text}"
                    raise _Found(position, CheckError(_finding("departs", row, text, wrong.element)))


def _finding(kind: str, row: Row, text: str, element: tuple[int, ...] | None = None) -> Finding:
    return Finding(kind, on_cpu.name_of(row), row.line, getattr(row, "module", ""), text, element)


# ---- NaN and Inf -----------------------------------------------------------------------------------------------------


def nonfinite(replay: Replay, row: Row) -> Finding | None:
    """The finding for a row that made NaN of inputs without NaN, or Inf of finite ones (constants count as inputs)."""
    outs = [replay.host.get(n) for n in range(row.base, row.base + len(row.outs))]
    if not any(_has_nonfinite(x) for x in outs):
        return None
    if on_cpu.has_no_contents(row):
        return None
    refs = list(dict.fromkeys(refs_in((row.args, row.kwargs))))
    inputs = [replay.held(ref) for ref in refs]
    has_nan = any(_has(x, torch.isnan) for x in inputs)
    has_inf = any(_has_nonfinite(x) for x in inputs) or _has_constant(
        [row.args, row.kwargs, replay.numbers[replay.position(row)]]
    )
    for out in outs:
        for kind, test, excused in (("NaN", torch.isnan, has_nan), ("Inf", torch.isinf, has_nan or has_inf)):
            if not excused and _has(out, test):
                return _finding("nonfinite", row, *_nonfinite_text(kind, test(_plain(out)), out, inputs))
    return None


def _nonfinite_text(kind: str, where: Any, out: Any, inputs: Sequence[Any]) -> tuple[str, tuple[int, ...]]:
    element = tuple(where.nonzero()[0].tolist())
    given = "; ".join(describe(x) for x in inputs if x is not None) or "no tensors"
    text = (
        f"makes the first {kind}: {int(where.sum())} of {out.numel()} elements of {_shape(out)}, the first at "
        f"{list(element)}. Its inputs: {given}"
    )
    return text, element


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype.itemsize == 1 else x  # float8 has few kernels


def _has(x: Any, test: Callable[[torch.Tensor], torch.Tensor], invert: bool = False) -> bool:
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return False
    found = test(_plain(x))
    return not bool(found.all()) if invert else bool(found.any())


def _has_nonfinite(x: Any) -> bool:
    return _has(x, torch.isfinite, invert=True)


def _has_constant(x: Any) -> bool:
    """Whether an infinite number, or NaN, is among nested constants."""
    if isinstance(x, (tuple, list)):
        return any(map(_has_constant, x))
    return isinstance(x, float) and not math.isfinite(x)


def _shape(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def describe(x: torch.Tensor) -> str:
    """A tensor in words: dtype, shape and the range of its finite elements."""
    if x.is_complex() or not x.numel():
        return _shape(x)
    plain = _plain(x)
    finite = plain[torch.isfinite(plain)] if x.is_floating_point() else plain
    if not finite.numel():
        return f"{_shape(x)} with nothing finite"
    rest = x.numel() - finite.numel()
    return f"{_shape(x)} from {finite.min().item():.6g} to {finite.max().item():.6g}" + (
        f" and {rest} not finite" if rest else ""
    )


# ---- departures from the CPU -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """How a result departs from the CPU's, and the index of the first element that does."""

    text: str
    element: tuple[int, ...]


def _largest(x: Any) -> float:
    """The largest finite magnitude in a tensor of floats; 0 if there is none."""
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return 0.0
    sizes = _plain(x).abs()
    sizes = sizes[torch.isfinite(sizes)]
    return float(sizes.max()) if sizes.numel() else 0.0


def _scale(replay: Replay, row: Row) -> float:
    """The largest magnitude that a row is given: what cancels in a sum is rounded in proportion to that."""
    return max((_largest(replay.held(ref)) for ref in set(refs_in((row.args, row.kwargs)))), default=0.0)


def difference(
    got: torch.Tensor, want: torch.Tensor, rtol: float | None, atol: float | None, scale: float = 0.0
) -> Difference | None:
    """How `got` departs from `want`, beyond the tolerances (None: those of the dtype); None if it does not.

    scale: the largest magnitude of the inputs.
    """
    if got.shape != want.shape:
        return Difference(f"has shape {list(got.shape)} on device xla, {list(want.shape)} on the CPU", ())
    if not want.numel():
        return None
    a, b = got, want.detach()
    is_float = b.is_floating_point() or b.is_complex()
    if not is_float:
        where = a != b
        a, b = a.double(), b.double()
    else:
        a, b = (x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (a, b))
        relative, part = _TOLERANCES.get(want.dtype, _OF_FLOAT32)
        if want.dtype.itemsize == 1:
            relative, part = 0.25, 0.1
        scale = max(scale, _largest(b))
        relative = relative if rtol is None else rtol
        absolute = part * scale if atol is None else atol
        where = ~torch.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
    if not bool(where.any()):
        return None
    element = tuple(where.nonzero()[0].tolist())
    gap = (a - b).abs()[where]
    largest = float(gap.max())
    ratio = float((gap / b.abs()[where]).max())
    text = (
        f"departs from the CPU in {int(where.sum())} of {want.numel()} elements of {_shape(want)}, by at most {largest:.6g} "
        f"({ratio:.3g} of the CPU's value); the first at {list(element)}: {got[element].item()} on device xla, "
        f"{want[element].item()} on the CPU"
    )
    return Difference(text, element)
