"""Checks of what tensors hold: indices out of range, integer division by zero, probabilities that are none.

Note [Checks of contents]
XLA clamps an index that is out of range, and an integer divided by zero is some integer; PyTorch's CPU kernels raise.
`CHECKS` says, for each op, which elements of which argument they refuse. It is asked twice:

* When an op is called, about arguments whose elements the host can look at for nothing: those that have been computed
  or uploaded already, on the CPU client. Nothing has been recorded then, and the error comes from the user's line.
  What has passed is remembered for as long as the buffer lives, so a replayed step looks at its new batch only.
* When a program is built for the CPU client, about all arguments (jax arrays then): the program returns one more
  output, whether each check failed. `compile/poison.py` looks at it, and says what happens to what was computed.

On other clients nothing is checked but numbers, unless inside `debug.check()`: there the op reads its arguments back.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from torch_xla._src.compile import causes, poison
from torch_xla._src.graph import lengths
from torch_xla._src.graph.tensor import XlaTensor
from torch_xla._src.runtime import client, frames

aten = torch.ops.aten
Arguments = tuple[Sequence[Any], dict[str, Any]]
depth = 0  # > 0 inside `debug.check()`
examine: Callable[..., None] | None = None  # looks at a recording before it is launched, inside `debug.check()`


# ---- what is refused: predicates over the elements of torch tensors, numpy and jax arrays alike ----------------------


class Outside(NamedTuple):
    """Integers that are neither in range(low, high) nor `ignored`."""

    low: int
    high: int
    ignored: int | None = None

    def __call__(self, x: Any) -> Any:
        limit = 2 ** (8 * x.dtype.itemsize - 1)  # JAX refuses to compare with a number that the dtype does not have
        wrong = x < max(self.low, -limit)
        if self.high < limit:
            wrong = wrong | (x >= self.high)
        return wrong if self.ignored is None or not -limit <= self.ignored < limit else wrong & (x != self.ignored)


class Zero(NamedTuple):
    """Zeros."""

    def __call__(self, x: Any) -> Any:
        return x == 0


class NotBetween(NamedTuple):
    """Floats outside of [low, high], and NaN."""

    low: float
    high: float

    def __call__(self, x: Any) -> Any:
        return ~((x >= self.low) & (x <= self.high))


class NotFinite(NamedTuple):
    """Infinities and NaN."""

    def __call__(self, x: Any) -> Any:
        return x - x != 0


class NoDistribution(NamedTuple):
    """Rows that cannot be weights to draw by: negative, infinite or NaN somewhere, or zero everywhere."""

    def __call__(self, x: Any) -> Any:
        return (~((x >= 0) & (x < math.inf))).any(-1) | (x.sum(-1) <= 0)


class BadOffsets(NamedTuple):
    """Starts of bags that do not begin with 0, or that end beyond `length` indices."""

    length: int

    def __call__(self, x: Any) -> Any:
        return (x[:1] != 0) | (x[-1:] > self.length)


class MoreThan(NamedTuple):
    """Whether more than `limit` elements are true."""

    limit: int

    def __call__(self, x: Any) -> Any:
        return x.sum() > self.limit


class OtherSum(NamedTuple):
    """Whether the sum is not `total`."""

    total: int

    def __call__(self, x: Any) -> Any:
        return x.sum() != self.total


_OF_INTEGERS = (Outside, Zero, BadOffsets, OtherSum, MoreThan)


class Check(NamedTuple):
    """`error` with `text` is due if `refused` holds for an element of `values`, or if that is the number 0 itself."""

    values: Any
    refused: Any
    error: type[Exception]
    text: str


def failure(kind: type[Exception], text: str, op: Any, line: str) -> Exception:
    """The exception for a failed check."""
    return kind(f"{text}: {op._schema.name} at {line or 'an unknown line'}")


# ---- which arguments of which op -------------------------------------------------------------------------------------


def _text(size: int) -> str:
    return f"index out of range for a dimension of size {size}"


Error = type[Exception]


def _along(error: Callable[..., Error | None], wraps: bool = False) -> Callable[..., list[Check]]:
    """The check of an op(self, dim, index, ...). error: of self, its shape, dim and keyword arguments; None: no check."""

    def checks(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
        x, dim, index = args[:3]
        shape = tuple(x.shape) or (1,)
        dim = dim % len(shape)
        size, kind = shape[dim], error(x, shape, dim, kwargs)
        return [] if kind is None else [Check(index, Outside(-size if wraps else 0, size), kind, _text(size))]

    return checks


# The CPU has several kernels for some of them, which raise different classes; some look at no index of an empty tensor.


def _of_elements(x: Any, shape: tuple[int, ...], dim: int, kwargs: dict[str, Any]) -> Error | None:
    return RuntimeError


def _of_reduce(x: Any, shape: tuple[int, ...], dim: int, kwargs: dict[str, Any]) -> Error | None:
    return IndexError


def _of_copy(x: Any, shape: tuple[int, ...], dim: int, kwargs: dict[str, Any]) -> Error | None:
    others = shape[:dim] + shape[dim + 1 :]
    if 0 in others:
        return None
    return IndexError if shape[dim] or _has_memory_of_slice(x, dim) else RuntimeError


def _has_memory_of_slice(x: Any, dim: int) -> bool:
    """Whether the storage of an empty tensor has room for one slice of it, which the CPU makes a view of first."""
    base = x.value.base() if type(x) is XlaTensor and x.value.base is not None else None
    if base is None:
        return False
    last = x.value.offset + sum((n - 1) * s for d, (n, s) in enumerate(zip(x.shape, x.stride())) if d != dim)
    return bool(last < math.prod(base.spec.shape))


def _of_select(x: Any, shape: tuple[int, ...], dim: int, kwargs: dict[str, Any]) -> Error | None:
    return RuntimeError if len(shape) > 1 and (dim == 1 or 0 in shape) else IndexError


def _of_add(x: Any, shape: tuple[int, ...], dim: int, kwargs: dict[str, Any]) -> Error | None:
    if 0 in shape:
        return None if len(shape) > 1 else IndexError
    return RuntimeError if len(shape) > 1 and dim in (0, len(shape) - 1) and kwargs.get("alpha", 1) == 1 else IndexError


def _is_mask(index: Any) -> bool:
    return str(index.dtype).removeprefix("torch.") in ("bool", "uint8")


def _advanced(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    x, indices = args[:2]
    found, dim, kept = [], 0, list(x.shape)
    for index in indices:
        if index is not None and not _is_mask(index):
            size, kept[dim] = x.shape[dim], 1
            found.append(Check(index, Outside(-size, size), IndexError, _text(size)))
        elif index is not None:
            kept[dim : dim + index.ndim] = [1] * index.ndim
        dim += 1 if index is None or not _is_mask(index) else index.ndim
    return [] if 0 in kept or any(0 in c.values.shape for c in found) else found  # an empty result reads nothing


def _flat(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    size = math.prod(args[0].shape)
    return [Check(args[1], Outside(-size, size), IndexError, _text(size))]


def _rows(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    """Those of an embedding, which are selected from dim 0."""
    shape = tuple(args[0].shape)
    return [Check(args[1], Outside(0, shape[0]), RuntimeError if 0 in shape else IndexError, _text(shape[0]))]


def _bags(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    size, length = args[0].shape[0], args[1].shape[0]
    text = f"offsets have to start with 0, and to end in the input of length {length}"
    return [
        Check(args[1], Outside(0, size), RuntimeError, _text(size)),
        Check(args[2], BadOffsets(length), RuntimeError, text),
        Check(args[2], Outside(0, length + 1), IndexError, text),
    ]


def _classes(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    size = args[0].shape[min(1, len(args[0].shape) - 1)]
    return [Check(args[1], Outside(0, size, args[4]), IndexError, f"Target is out of bounds for {size} classes")]


def _labels(low: int) -> Callable[..., list[Check]]:
    def checks(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
        size = args[0].shape[-1] if len(args[0].shape) else 1
        return [Check(args[1], Outside(low, size), RuntimeError, f"target is out of range for {size} classes")]

    return checks


def _unpooled(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    size = math.prod(args[2])
    text = f"found an invalid max index for an output of {size} elements"
    return [Check(args[1], Outside(0, size), RuntimeError, text)]


def _sorter(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    sorter = kwargs.get("sorter")
    if sorter is None:
        return []
    return [Check(sorter, Outside(0, args[0].shape[-1]), RuntimeError, "sorter index out of range")]


def _repeats(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    found = [Check(args[0], Outside(0, 2**63), RuntimeError, "repeats can not be negative")]
    if kwargs.get("output_size") is not None:
        total = kwargs["output_size"]
        found.append(Check(args[0], OtherSum(total), RuntimeError, f"repeats do not add up to output_size {total}"))
    return found


def _lengths(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    """Of the sequences of a CTC loss."""
    log_probs, targets, of_inputs, of_targets = args[:4]
    text = "a length that is longer than the sequences, or negative"
    found = [Check(of_inputs, Outside(0, log_probs.shape[0] + 1), RuntimeError, text)]
    if len(targets.shape) == 2:
        found.append(Check(of_targets, Outside(0, targets.shape[1] + 1), RuntimeError, text))
    return found


def _range_of_data(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    """A histogram without a range takes that of its elements."""
    x, low, high = args[0], *(*args[2:], 0, 0)[:2]
    if type(low) in (int, float) and type(high) in (int, float) and low == high:
        return [Check(x, NotFinite(), RuntimeError, "the range of the elements is not finite")]
    return []


def _masked(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    x, mask, source = args
    count, shown = math.prod(source.shape), math.prod(mask.shape)
    repeats = math.prod(torch.broadcast_shapes(tuple(x.shape), tuple(mask.shape))) // max(shown, 1)
    text = f"a source of {count} elements for more true elements of a mask"
    return [Check(mask, MoreThan(count // repeats), RuntimeError, text)] if repeats else []


def _is_integral(x: Any) -> bool:
    if isinstance(x, (int, float, complex)):
        return isinstance(x, int)
    if isinstance(x, torch.Tensor):
        return not (x.is_floating_point() or x.is_complex())
    return x.dtype.kind in "iub"


def _divisor(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    """`kwargs` of `div` may ask for no rounding: then the quotient is a float."""
    dividend, divisor = args[:2]
    rounded = kwargs.get("rounding_mode", "floor") is not None
    if not rounded or not _is_integral(divisor) or not _is_integral(dividend):
        return []
    if 0 in getattr(dividend, "shape", ()) or 0 in getattr(divisor, "shape", ()):
        return []
    return [Check(divisor, Zero(), RuntimeError, "ZeroDivisionError, integer division by zero")]


def _elements(refused: Any, text: str, *positions: int) -> Callable[..., list[Check]]:
    def checks(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
        return [Check(args[p], refused, RuntimeError, text) for p in positions]

    return checks


_scattered = _along(_of_elements)
_probability = NotBetween(0.0, 1.0)
_at_least_zero = NotBetween(0.0, math.inf)
_CHECKS: dict[str, Callable[[Sequence[Any], dict[str, Any]], list[Check]]] = {
    "embedding": _rows,
    "embedding_renorm": _rows,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "gather": _scattered,
    "scatter": _scattered,
    "scatter_add": _scattered,
    "scatter_reduce": _scattered,
    "index_select": _along(_of_select),
    "index_add": _along(_of_add),
    "index_copy": _along(_of_copy),
    "index_reduce": _along(_of_reduce),
    "index_fill": _along(_of_copy, wraps=True),
    "index": _advanced,
    "index_put": _advanced,
    "_index_put_impl": _advanced,
    "masked_scatter": _masked,
    "take": _flat,
    "put": _flat,
    "nll_loss_forward": _classes,
    "nll_loss2d_forward": _classes,
    "multi_margin_loss": _labels(0),
    "multilabel_margin_loss_forward": _labels(-1),
    "max_unpool2d": _unpooled,
    "max_unpool3d": _unpooled,
    "histc": _range_of_data,
    "searchsorted": _sorter,
    "repeat_interleave": _repeats,
    "floor_divide": _divisor,
    "remainder": _divisor,
    "fmod": _divisor,
    "div": _divisor,
    "binary_cross_entropy": _elements(_probability, "elements of input and target have to be between 0 and 1", 0, 1),
    "poisson": _elements(_at_least_zero, "the rate of a Poisson distribution has to be at least 0", 0),
    "multinomial": _elements(
        NoDistribution(), "weights to draw by have to be at least 0, finite, and not all 0", 0
    ),
}  # fmt: skip
# Overloads whose arguments mean something else, or that take fewer.
_OVERLOADS: dict[str, Callable[[Sequence[Any], dict[str, Any]], list[Check]] | None] = {
    "div.Tensor": None,
    "div.Scalar": None,
    "repeat_interleave.self_Tensor": None,
    "repeat_interleave.self_int": None,
    "_ctc_loss.Tensor": _lengths,
    "bernoulli.default": _elements(_probability, "a probability has to be between 0 and 1", 0),
    "bernoulli.Tensor": _elements(_probability, "a probability has to be between 0 and 1", 1),
    "normal.Tensor_Tensor": _elements(_at_least_zero, "standard deviations have to be at least 0", 1),
    "normal.float_Tensor": _elements(_at_least_zero, "standard deviations have to be at least 0", 1),
}


@cache
def checks_of(op: Any) -> Callable[[Sequence[Any], dict[str, Any]], list[Check]] | None:
    """The function that gives the Checks of a call of `op`, or None if it has none."""
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten":
        return None
    overload = f"{name}.{op._overloadname}"
    return _OVERLOADS[overload] if overload in _OVERLOADS else _CHECKS.get(name)


def _checks(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Check]:
    of = checks_of(op)
    assert of is not None
    try:
        found = of(args, kwargs)
    except (IndexError, TypeError):  # arguments that do not fit together: the meta kernel says why
        return []
    return [c for c in found if _is_integral(c.values) == isinstance(c.refused, _OF_INTEGERS)]


# ---- when an op is called --------------------------------------------------------------------------------------------

# Buffer -> the predicates that hold for none of its elements. By id; the weak reference takes the entry out in time.
_passed: dict[int, tuple[weakref.ref[Any], set[Any]]] = {}


def check_call(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises what the CPU raises for a call of an op that has checks, if that can be told without waiting."""
    for c in _checks(op, args, kwargs):
        values = c.values
        if isinstance(values, (int, float)):
            failed = values == 0
        elif _fits_nothing(c.refused):
            failed = 0 not in values.shape
        elif type(values) is XlaTensor:
            failed = _failed(values.value, c.refused)
        else:
            failed = bool(c.refused(values.detach()).any())
        if failed:
            if type(values) is XlaTensor and values.value.buffer is not None:
                poison.settle(values.value.buffer)  # the elements may be wrong because of an earlier failure
            raise failure(c.error, c.text, op, frames.user_line())


def _fits_nothing(refused: Any) -> bool:
    return type(refused) is Outside and refused.low >= refused.high and refused.ignored is None


def _failed(value: Any, refused: Any) -> bool:
    if depth and value.buffer is None and not causes.nothing_may_run:  # else it is found at the launch
        from torch_xla._src.graph.recorder import RECORDER

        RECORDER.buffer(value)
    buffer = value.buffer
    if buffer is None or not (depth or (in_programs() and buffer.is_ready())):
        return False
    entry = _passed.get(id(buffer))
    if entry is not None and refused in entry[1]:
        return False
    if bool(refused(_elements_of(buffer)).any()):
        return True
    if entry is None:
        key = id(buffer)
        entry = _passed[key] = weakref.ref(buffer, lambda _: _passed.pop(key, None)), set()
    entry[1].add(refused)
    return False


def _elements_of(buffer: Any) -> Any:
    import numpy as np

    return np.asarray(lengths.exact(buffer))  # on the CPU client no copy


# ---- when a program is built -----------------------------------------------------------------------------------------


@cache
def in_programs() -> bool:
    """Whether programs check what their rows are given."""
    return client.device_type() == "CPU"


def failures(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Check, Any]]:
    """The checks of a call on jax arrays, each with whether it fails (a 0-d array). Numbers were checked at the call."""
    return [(c, wrong.any()) for c, wrong in failing(op, args, kwargs)]


def failing(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Check, Any]]:
    """The same with what fails, element by element, as the check sees them."""
    if checks_of(op) is None or not in_programs():
        return []
    return [(c, c.refused(c.values)) for c in _checks(op, args, kwargs) if not _is_number(c.values)]


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) or bool(getattr(x, "weak_type", False))
