"""Tools to look into programs on device xla. `check()` finds the op at fault; `metrics` counts what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torch import nn

from torch_xla._src import surface

if TYPE_CHECKING:
    from torch_xla._src.compile.check import Check, CheckError
    from torch_xla._src.compile.why import CompileLimitError, Explanations, limit
    from torch_xla._src.time_report import TimeReport

__all__ = [
    "CheckError",
    "CompileLimitError",
    "assert_donated",
    "check",
    "donation_report",
    "limit_compiles",
    "time_report",
    "why_compiled",
]

T = TypeVar("T")


@overload
def check(
    *, nonfinite: bool = True, against_cpu: bool = True, rtol: float | None = None, atol: float | None = None
) -> Check: ...


@overload
def check(
    function: Callable[[], T],
    *,
    nonfinite: bool = True,
    against_cpu: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> T: ...


def check(
    function: Callable[[], Any] | None = None,
    *,
    nonfinite: bool = True,
    against_cpu: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> Any:
    """A context in which the first op at fault is an error that names the op and the line; or one call of `function` in it.

    * An index out of range or an integer division by zero raises at the op, as on the CPU. On the CPU client it does
      without this too, though for what the device has yet to compute only when that is read. Elsewhere XLA clamps such an
      index silently, so an embedding looks up a wrong row.
    * nonfinite: CheckError for the first op that makes NaN of inputs without NaN, or Inf of finite ones.
    * against_cpu: CheckError for the first op whose result on the device departs from that of PyTorch's CPU kernel on the
      same inputs, by more than `rtol * |cpu| + atol`. If those are None they follow from the dtype (float32: 1e-4, and 2e-5
      of the largest element of inputs and result); integers have to be equal. Ops that draw random numbers, have no CPU
      kernel or no determined result are left out: `notes` of the context says which.

    It is raised when what has been recorded is launched, or at the end of the block, and before anything runs: all stays
    pending. `finding` of the error has what its text says. Slow: the block is computed twice, and read back.
    """
    from torch_xla._src.compile.check import Check

    checked = Check(nonfinite, against_cpu, rtol, atol)
    if function is None:
        return checked
    with checked:
        return function()


def _names(module: nn.Module | None) -> dict[Any, str]:
    if module is not None and not isinstance(module, nn.Module):
        raise TypeError(f"names are those of a torch.nn.Module, not of {type(module).__name__}")
    from torch_xla._src.graph.tensor import value_of

    named = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
    return {value_of(tensor): name for name, tensor in named if tensor.is_xla}


def donation_report(module: nn.Module | None = None) -> str:
    """The inputs of the last program as a table: which of their buffers it could reuse for outputs, and why not the others.

    An input is donated if no tensor holds it any more, as what a parameter held before an optimizer's step. module: one
    whose parameters and buffers are to be named. RuntimeError if nothing has been launched yet.
    """
    from torch_xla._src.compile import donation

    return donation.report(_names(module))


def assert_donated(module: nn.Module | None = None) -> None:
    """AssertionError, with the table of `donation_report`, if an input of the last program that no tensor holds was kept.

    That is so while somebody has its jax.Array. What a tensor holds still is no failure; the table shows it. RuntimeError if
    nothing has been launched yet.
    """
    from torch_xla._src.compile import donation

    donation.check(_names(module))


def why_compiled(count: int | None = None) -> Explanations:
    """Why the last `count` programs of this process (all that are remembered, at most 100, if None) were compiled.

    A list, oldest first, that prints as text: for each program the line of user code and the op where its recording differs
    first from the nearest one that was known, what was and is there, and what to do about it. ValueError for what is no number.
    """
    from torch_xla._src.compile import why

    if count is not None and (type(count) is not int or count < 0):
        raise ValueError(f"the number of programs is an integer >= 0, not {count!r}")
    return why.Explanations(list(why.history)[-count if count else None :] if count != 0 else [])


def limit_compiles(count: int) -> limit:
    """A context, or a decorator, in which at most `count` programs are compiled. One more is a CompileLimitError.

    The error explains why the program is needed. It is raised before that is compiled, and what is pending stays so: it runs
    once the block is left. The environment variable `TORCH_XLA_MAX_COMPILES` limits a whole process in the same way.
    ValueError for what is no number.
    """
    from torch_xla._src.compile import why

    return why.limit(count)


def time_report(every: int | None = None) -> TimeReport:
    """Tells where the time of a training loop goes, in a `with` block or from its `start()` to its `stop()`.

    every: after so many steps their summary is printed to standard error, or into the file that `PT_XLA_DEBUG_FILE` names.
    `TORCH_XLA_TIME_REPORT=N` does so for a whole process. The object prints as the summary of all steps; `total.shares`
    has the shares of wall time: "recording", "compiling", "transfer", "waiting" (for the device), "idle" (between steps),
    which add up to 1; `total.verdict` says in a line what the loop is bound by.
    """
    from torch_xla._src.time_report import TimeReport

    return TimeReport(every)


def __getattr__(name: str) -> Any:
    if name == "CompileLimitError":
        from torch_xla._src.compile import why

        return why.CompileLimitError
    if name == "CheckError":
        from torch_xla._src.compile.check import CheckError

        return CheckError
    return _missing(name)


_missing = surface.missing(__name__)
