"""Tensors whose buffers are longer than they: what `mark_dynamic` makes of a tensor, and how to get the elements back.

Note [Varying lengths]
A program is compiled for shapes, so a loop over batches of 50 lengths would compile 50 programs. `mark_dynamic` pads the
buffer of a tensor, along the dims whose length varies, to one of a few sizes (`bucket_of`). The user's tensor keeps its
true shape, and so does all that is recorded: a new length records new rows, and replays when it returns. What the
lengths of one bucket share is the program: it takes padded buffers, and the true lengths as numbers.

* Which sizes and integers of a recording depend on the lengths is learnt from two recordings that differ in nothing else
  (`graph/families.py`); each further one is compared in full before it runs the program. So the first length compiles
  as it is.
* Each op that meets a padded dim needs a rule that is right whatever the padding holds (`ops/padded.py`): where results
  depend on other elements along that dim, padding is replaced by what does not count; NaN in it never spreads, because
  that is a selection and no product. An op without a rule is a VaryingLengthError; the recording is then computed for
  its exact shapes first, so that nothing pending is lost.
* Outputs with padded dims stay padded (`compile/padded_program.py`), and are cut to size on the host when they are read.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_MAX_BUCKETS = 4
_FIRST_BUCKET = 16  # without an upper bound: 16, 64, 256, ...

in_use = False  # whether a tensor of this process has been marked: else nothing here costs anything


class VaryingLengthError(RuntimeError):
    """An op cannot be computed on tensors of varying length. What was recorded has been computed all the same."""


class Length:
    """The true size of a dim, and the size it has in buffers. Compared by identity: two dims may be equal by chance."""

    __slots__ = ("bucket", "size")

    def __init__(self, size: int, bucket: int) -> None:
        self.size, self.bucket = size, bucket


class Affine(NamedTuple):
    """`const + sum(factor * length)`: a size or an integer that depends on lengths, which `terms` names by any key."""

    const: int
    terms: tuple[tuple[Any, int], ...] = ()

    def at(self, lengths: Any) -> Any:
        """The value for these lengths, a mapping or sequence by key; of numbers or arrays."""
        value: Any = self.const
        for key, factor in self.terms:
            value = value + factor * lengths[key]
        return value

    def renamed(self, names: Any) -> Affine:
        """The same with other keys, looked up in a mapping or sequence."""
        return Affine(self.const, tuple((names[key], factor) for key, factor in self.terms))


# A dim of a padded tensor is the product of its factors, outermost first: flattening [2, n, 8] to [2 * n, 8] leaves the
# padding where it was, after every n of bucket(n) elements.
Dim = tuple[Affine, ...]
Layout = tuple[Dim, ...]


def dim_of(factors: Sequence[Affine]) -> Dim:
    """The Dim with these factors: constant neighbours are multiplied, ones are left out."""
    found: list[Affine] = []
    for factor in factors:
        if not factor.terms and found and not found[-1].terms:
            found[-1] = Affine(found[-1].const * factor.const)
        elif factor.terms or factor.const != 1:
            found.append(factor)
    return tuple(f for f in found if f.terms or f.const != 1)


def static(size: int) -> Dim:
    """The Dim of a size that does not vary."""
    return dim_of([Affine(size)])


def is_static(dim: Dim) -> bool:
    """Whether the size does not vary."""
    return not any(f.terms for f in dim)


def size_of(dim: Dim, lengths: Any) -> Any:
    """The size for these lengths, as Affine.at."""
    return math.prod(f.at(lengths) for f in dim)


class _Sizes:
    def __getitem__(self, length: Length) -> int:
        return length.size


class _Buckets:
    def __getitem__(self, length: Length) -> int:
        return length.bucket


# ---- buffers ---------------------------------------------------------------------------------------------------------

# id of a buffer -> the buffer, weakly, and its layout with Lengths as keys.
_layouts: dict[int, tuple[weakref.ref[Any], Layout]] = {}


def layout_of(buffer: Any) -> Layout | None:
    """The layout of a padded buffer; None if it is as it seems."""
    entry = _layouts.get(id(buffer))
    return None if entry is None or entry[0]() is not buffer else entry[1]


def set_layout(buffer: Any, layout: Layout) -> None:
    """Says how a buffer is padded, for as long as it lives."""
    key = id(buffer)
    _layouts[key] = weakref.ref(buffer, lambda _: _layouts.pop(key, None)), layout


# The same for buffers without padding: sizes of theirs are those of lengths, and so might vary. See `suppose`.
_supposed: dict[int, tuple[weakref.ref[Any], Layout]] = {}


def suppose(buffer: Any, lengths: Sequence[Length]) -> None:
    """Says of a result that was computed for exact lengths that sizes which are equal to one of them may be that.

    So the next recording, which takes it, is of the same structure whatever ran before it.
    """
    by_size = {length.size: length for length in lengths}
    if any(n in by_size for n in buffer.shape):
        layout = tuple((Affine(0, ((by_size[n], 1),)),) if n in by_size else static(n) for n in buffer.shape)
        key = id(buffer)
        _supposed[key] = weakref.ref(buffer, lambda _: _supposed.pop(key, None)), layout


def supposed_layout_of(buffer: Any) -> Layout | None:
    """How a buffer is to be padded for a program that takes padded ones, if that is not known to be done."""
    entry = _supposed.get(id(buffer))
    return None if entry is None or entry[0]() is not buffer else entry[1]


def exact(buffer: Any) -> Any:
    """The buffer itself, or the true elements of a padded one as a numpy array; waits for that."""
    layout = layout_of(buffer) if in_use else None
    if layout is None:
        return buffer
    import numpy as np

    factors = [f for dim in layout for f in dim]
    parts = np.asarray(buffer).reshape([f.at(_Buckets()) for f in factors])
    parts = parts[tuple(slice(f.at(_Sizes())) for f in factors)]
    return np.ascontiguousarray(parts).reshape([size_of(dim, _Sizes()) for dim in layout])


def to_device(array: Any) -> Any:
    """A device buffer with the contents of a numpy array that nobody else holds."""
    import jax

    from torch_xla._src.runtime import client

    with jax.enable_x64(True):
        return jax.device_put(array, client.default_device())


# ---- marking ---------------------------------------------------------------------------------------------------------


def bucket_of(size: int, low: int, high: int | None) -> int:
    """The size in buffers of a dim of `size` elements.

    At most four sizes between `low` and `high`, in equal ratios of at least two; without `high`, powers of four.
    """
    if high is None:
        bucket = _FIRST_BUCKET
        while bucket < size:
            bucket *= 4
        return bucket
    span = max(high / max(low, 1), 1.0)
    count = min(max(math.ceil(math.log2(span)), 1), _MAX_BUCKETS)
    ratio = span ** (1 / count) if low > 1 else 2.0
    buckets = [math.ceil(high / ratio**i - 1e-9) for i in range(count)]
    return min(b for b in buckets if b >= size)


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Says that the size of `tensor` along `dim` varies from one call to the next, so that few programs serve all sizes.

    tensor: of device xla, any dtype and shape. Its shape and contents stay as they are; its buffer is padded to one of
    at most four sizes between `min` and `max`. dim: a dimension or several, negative ones counted from the end.
    min, max: bounds of the size, inclusive; 1 and none by default. Without `max`, buffers have 16, 64, 256 ... elements.

    Mark each batch before it is used; what is computed from it follows. The marked tensor is computed, and read back, if
    it was not uploaded. IndexError for a dim that it does not have, ValueError for a size outside of the bounds,
    TypeError for a tensor on another device. An op that has no rule for tensors of varying length raises
    VaryingLengthError when the recording is launched. The arguments are those of `torch._dynamo.mark_dynamic`.
    """
    from torch_xla._src.graph.recorder import RECORDER
    from torch_xla._src.graph.tensor import value_of

    value = value_of(tensor)
    shape = value.spec.shape
    dims = [_dim_in(d, shape) for d in ([dim] if isinstance(dim, int) else dim)]
    low, high = 1 if min is None else min, max
    if low < 0 or (high is not None and high < low):
        raise ValueError(f"mark_dynamic: min={min} and max={max} are no bounds of a size")
    for d in dims:
        if shape[d] < low or (high is not None and shape[d] > high):
            text = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ValueError(
                f"mark_dynamic: dim {d} of a tensor of shape {list(shape)} has to be {text}: pass other bounds, or pad it"
            )
    with RECORDER.lock:
        elements = RECORDER.buffer(value)
        marked = layout_of(value.buffer) or tuple(static(n) for n in shape)
        layout = tuple(
            (Affine(0, ((Length(n, bucket_of(n, low, high)), 1),)),) if d in dims else marked[d]
            for d, n in enumerate(shape)
        )
        old, value.buffer = value.buffer, padded(elements, layout)
        _replace_leaf(RECORDER, old, value.buffer)


def _dim_in(dim: int, shape: Sequence[int]) -> int:
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"mark_dynamic: a tensor of shape {list(shape)} has no dim {dim}")
    return dim % len(shape)


def padded(elements: Any, layout: Layout) -> Any:
    """A padded buffer with these elements, an array of any kind."""
    import numpy as np

    global in_use
    factors = [f for dim in layout for f in dim]
    array = np.zeros([f.at(_Buckets()) for f in factors], elements.dtype)
    true = [f.at(_Sizes()) for f in factors]
    array[tuple(map(slice, true))] = np.asarray(elements).reshape(true)
    buffer = to_device(array.reshape([size_of(dim, _Buckets()) for dim in layout]))
    set_layout(buffer, layout)
    in_use = True
    return buffer


def _replace_leaf(recorder: Any, old: Any, new: Any) -> None:
    """The pending recording may have taken the buffer that was not padded."""
    for place, buffer in enumerate(recorder.leaf_buffers):
        if buffer is old:
            recorder.leaf_buffers[place] = new
