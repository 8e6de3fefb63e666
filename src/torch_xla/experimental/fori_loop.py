"""Names of PyTorch/XLA's `torch_xla.experimental.fori_loop`: loops whose number of rounds is computed on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src import surface


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] | None = None,
) -> Any:
    """Calls `body_fn(*carried, *additional)` for a new `carried` as long as `cond_fn` of the same is true.

    Gives the last `carried`, a tuple. cond_fn: gives a boolean tensor of one element. Shapes and dtypes stay the same. Not
    differentiable.
    """
    from torch_xla._src.loops import while_loop as run

    return run(cond_fn, body_fn, tuple(carried_inputs), tuple(additional_inputs or ()))


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: Any) -> Any:
    """Calls `body_fun(*input_value)` for a new `input_value`, `upper - lower` times. lower, upper: integers or tensors."""
    device = input_value[0].device
    start, end = (torch.as_tensor(bound, device=device).reshape(()) for bound in (lower, upper))
    body = _kept.setdefault(body_fun, _Body(body_fun))
    result = while_loop(_not_done, body, (start, end, *input_value))[2:]
    return result[0] if len(input_value) == 1 else result


def _not_done(i: torch.Tensor, end: torch.Tensor, *values: Any) -> torch.Tensor:
    return i < end


class _Body:
    """The body of a fori_loop, with the counter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.__wrapped__ = function, function

    def __call__(self, i: torch.Tensor, end: torch.Tensor, *values: Any) -> Any:
        new = self.function(*values)
        return (i + 1, end, *(new if isinstance(new, (tuple, list)) else (new,)))


_kept: dict[Any, _Body] = {}

__getattr__ = surface.missing(__name__)
