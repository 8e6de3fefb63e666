"""Ops whose output shape depends on data. Only the size is read back to the host; the data stays on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src.graph import fallback
from torch_xla._src.graph.dispatch import aten, dispatch, download, handles
from torch_xla._src.graph.opinfo import host_leaf, op_info
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import XlaTensor
from torch_xla._src.ops import lexsort as _defines_the_op  # noqa: F401  (for its effect on torch.ops)
from torch_xla._src.ops.lower import how

_FEW = 1 << 16  # numbers that are read in less time than a program takes to add them up


def _size(inner: XlaTensor) -> int:
    return int(download(inner).item())


def _record(op: Any, *args: Any, **kwargs: Any) -> Any:
    return dispatch(op, args, kwargs)


@handles(aten.nonzero.default)
def _nonzero(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    count = _size(_record(aten.count_nonzero.default, args[0]))
    return _record(aten.nonzero_static.default, args[0], size=count)


@handles(aten.masked_select.default)
def _masked_select(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    shape = list(torch.broadcast_shapes(args[0].shape, args[1].shape)) or [1]
    x, mask = (_record(aten.expand_copy.default, a, shape) for a in args)
    return _index(aten.index.Tensor, (x, [mask]), {})


def _flattened(x: Any, mask: Any) -> tuple[Any, Any]:
    """`x` and a mask of its leading dims with those dims as one, so that one index stands for each true element."""
    rank = mask.ndim
    if type(mask) is not XlaTensor or rank == 1:
        return x, mask
    return _reshaped(x, [mask.numel(), *x.shape[rank:]]), _reshaped(mask, [mask.numel()])


def _reshaped(x: Any, shape: list[int]) -> Any:
    if not x.is_contiguous():
        x = _record(aten.clone.default, x, memory_format=torch.contiguous_format)
    return _record(aten.view_copy.default, x, shape)


def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8)


def _without_masks(indices: Sequence[Any]) -> list[Any]:
    """Indices with each boolean mask replaced by the integer indices of its true elements, one per dimension of it."""
    plain: list[Any] = []
    for index in indices:
        if not _is_mask(index):
            plain.append(index)
        elif index.ndim == 0:
            raise IndexError("a 0-d boolean mask has to be used alone")
        else:
            index = index if type(index) is XlaTensor else index.detach()
            where = _nonzero(None, (index,), {}) if type(index) is XlaTensor else torch.nonzero(index)
            split = _record(aten.unbind_copy.int, where, 1) if type(where) is XlaTensor else where.unbind(1)
            plain.extend(split)
    return plain


@handles(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, indices = args
    _check_indices(x, indices)
    if any(map(_is_mask, indices)):
        _check_masks(x, indices)
        if len(indices) == 1 and indices[0].ndim:
            x, mask = _flattened(x, indices[0])
            indices = [mask]
        indices = _without_masks(indices)
    return RECORDER.record(aten.index.Tensor, [x, list(indices)], {})


@handles(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, indices, values = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    _check_indices(x, indices)
    masks = [i for i in indices if _is_mask(i)]
    if masks:
        _check_masks(x, indices)
        if len(indices) == 1 and values.numel() == 1 and not accumulate and type(masks[0]) is XlaTensor:
            return _masked_fill(x, masks[0], values)  # no size to read back
        if len(indices) == 1 and masks[0].ndim:
            flat, mask = _flattened(x, masks[0])
            where = _without_masks([mask])
            _check_values(flat, where, values)
            new = RECORDER.record(aten.index_put.default, [flat, where, values, accumulate], {})
            return new if flat is x else _record(aten.view_copy.default, new, list(x.shape))
        indices = _without_masks(indices)
    _check_values(x, indices, values)
    return RECORDER.record(aten.index_put.default, [x, list(indices), values, accumulate], {})


def _check_values(x: Any, indices: Sequence[Any], values: Any) -> None:
    """RuntimeError for values that cannot be broadcast to what is indexed; the meta kernel accepts them."""
    if values.numel() == 1:
        return
    ((spec,), _, _) = op_info(aten.index.Tensor).outputs([x, list(indices)], {})
    assert spec is not None
    shape = tuple(values.shape)
    extra = max(len(shape) - len(spec.shape), 0)  # ones in front are dropped, as in any assignment
    aligned = zip(shape[extra:][::-1], spec.shape[::-1])
    if any(n != 1 for n in shape[:extra]) or any(n not in (1, m) for n, m in aligned):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(shape)} cannot be broadcast to indexing result of shape "
            f"{list(spec.shape)}"
        )


def _masked_fill(x: XlaTensor, mask: XlaTensor, values: Any) -> Any:
    mask = _record(aten.view_copy.default, mask, list(mask.shape) + [1] * (x.ndim - mask.ndim))
    if mask.dtype is not torch.bool:
        mask = _record(aten.ne.Scalar, mask, 0)
    values = _record(aten.view_copy.default, values, []) if type(values) is XlaTensor else values
    return _record(aten.where.self, mask, values, x)


def _check_indices(x: Any, indices: Sequence[Any]) -> None:
    """IndexError for an index of a dtype that cannot be one, and for more of them than there are dimensions."""
    if sum(index.ndim if _is_mask(index) else 1 for index in indices) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype not in (torch.int64, torch.int32, torch.bool, torch.uint8):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _check_masks(x: Any, indices: Sequence[Any]) -> None:
    """IndexError where a mask does not have the shape of the dimensions that it indexes, as PyTorch raises."""
    dim = 0
    for index in indices:
        if not _is_mask(index):
            dim += 1
            continue
        for offset, size in enumerate(index.shape):
            if dim + offset >= x.ndim or x.shape[dim + offset] != size:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {offset} does not match the shape of the indexed "
                    f"tensor {list(x.shape)} at index {dim + offset}"
                )
        dim += index.ndim


@handles(aten.repeat_interleave.Tensor)
def _repeat_interleave(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    size = kwargs.get("output_size")
    if size is None:
        known = args[0].value.buffer is not None and args[0].numel() <= _FEW
        size = int(download(args[0]).sum()) if known else _size(_record(aten.sum.default, args[0]))
    return RECORDER.record(op, args, {"output_size": size})


@handles(aten.bincount.default)
def _bincount(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, weights = args[0], args[1] if len(args) > 1 else kwargs.get("weights")
    length = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    if x.numel():
        low, high = _record(aten.aminmax.default, x)
        if _size(low) < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        length = max(length, _size(high) + 1)
    dtype = torch.int64 if weights is None else torch.float64 if weights.dtype != torch.float32 else torch.float32
    if weights is None:
        weights = _record(aten.ones_like.default, x, dtype=dtype)
    zeros = _record(aten.new_zeros.default, x, [length], dtype=dtype)
    weights = _record(aten._to_copy.default, weights, dtype=dtype)
    return _record(aten.index_add.default, zeros, 0, _record(aten._to_copy.default, x, dtype=torch.int64), weights)


# ---- unique: mark where a run of equal elements starts; the number of marks is all that the host reads ----------------


def _starts(rows: Any) -> Any:
    """[n, ...] -> bool [n]: whether each row differs from the one before it. The first does."""
    later, earlier = _record(aten.slice_copy.Tensor, rows, 0, 1), _record(aten.slice_copy.Tensor, rows, 0, 0, -1)
    differs = _record(aten.ne.Tensor, later, earlier)
    if rows.ndim > 1:
        differs = _record(aten.any.dims, differs, list(range(1, rows.ndim)))
    return _record(aten.constant_pad_nd.default, differs, [1, 0], True)


def _runs(rows: Any, inverse: bool, counts: bool) -> tuple[Any, Any, Any, Any]:
    """(first row of each run, number of the run that each row is in, length of each run, where each starts).

    The second and the third are empty unless asked for.
    """
    starts, length = _starts(rows), rows.shape[0]
    number = _record(aten.cumsum.default, starts, 0)
    size = _size(_record(aten.select_copy.int, number, 0, -1))
    first = _record(aten.view_copy.default, _record(aten.nonzero_static.default, starts, size=size), [size])
    values = _record(aten.index_select.default, rows, 0, first)
    nothing = _record(aten.new_empty.default, first, [0])
    ends = _record(aten.constant_pad_nd.default, _record(aten.slice_copy.Tensor, first, 0, 1), [0, 1], length)
    return (
        values,
        _record(aten.sub.Tensor, number, _record(aten.ones_like.default, number)) if inverse else nothing,
        _record(aten.sub.Tensor, ends, first) if counts else nothing,
        first,
    )


def _flat(x: Any) -> Any:
    return _reshaped(x, [x.numel()])


def _of_nothing(x: Any, inverse: bool) -> tuple[Any, Any, Any]:
    """What `unique` makes of a tensor without elements."""
    empty = lambda shape, dtype: _record(aten.new_empty.default, x, shape, dtype=dtype)
    return empty([0], x.dtype), empty(list(x.shape) if inverse else [0], torch.int64), empty([0], torch.int64)


def _of_no_slices(x: Any, dim: int) -> tuple[Any, Any, Any]:
    """The same along a dimension. What the CPU kernel refuses it refuses here."""
    aten.unique_dim.default(torch.empty(x.shape, dtype=x.dtype, device="cpu"), dim)
    values, _, counts = _of_nothing(x, False)
    return _record(aten.view_copy.default, values, list(x.shape)), counts, counts


def _refuse_complex(op: Any, x: Any) -> None:
    if x.is_complex():
        raise NotImplementedError(f"{op} is not implemented for {x.dtype}: complex numbers have no order")


def _undo_sort(order: Any, number: Any) -> Any:
    """The number of the run that each element is in, from that of each sorted one."""
    return _record(aten.scatter.src, _record(aten.zeros_like.default, number), 0, order, number)


@handles(aten._unique2.default, aten._unique.default)
def _unique(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    inverse = args[2] if len(args) > 2 else kwargs.get("return_inverse", False)
    counts = args[3] if len(args) > 3 else kwargs.get("return_counts", False)
    num_outputs = len(op._schema.returns)
    _refuse_complex(op, x)
    if not x.numel():
        return _of_nothing(x, inverse)[:num_outputs]
    ordered, order = _record(aten.sort.stable, _flat(x), stable=True)
    values, number, lengths, _ = _runs(ordered, inverse, counts)
    if inverse:
        number = _record(aten.view_copy.default, _undo_sort(order, number), list(x.shape))
    return (values, number, lengths)[:num_outputs]


@handles(aten.unique_dim.default)
def _unique_dim(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Sorted whatever `sorted` says, with inverse and counts whether asked for or not, as on the CPU."""
    x, dim = args[:2]
    _refuse_complex(op, x)
    if not x.numel() or not -x.ndim <= dim < x.ndim:
        return _of_no_slices(x, dim)
    others = [d for d in range(x.ndim) if d != dim % x.ndim]
    # `dim` first, the others as they stand: they decide which row comes first.
    rows = _record(aten.permute_copy.default, x, [dim, *others])
    rows = _record(aten.view_copy.default, _flat(rows), [x.shape[dim], x.numel() // x.shape[dim]])
    order = _record(torch.ops.torch_xla.lexsort.default, rows)
    _, number, lengths, first = _runs(_record(aten.index_select.default, rows, 0, order), True, True)
    values = _record(aten.index_select.default, x, dim, _record(aten.index_select.default, order, 0, first))
    return values, _undo_sort(order, number), lengths


@handles(aten.unique_consecutive.default)
def _unique_consecutive(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, inverse, counts, dim = [*args, False, False, None][: len(args)] + [False, False, None][len(args) - 1 :]
    _refuse_complex(op, x)
    if not x.numel():
        return _of_nothing(x, inverse) if dim is None else _of_no_slices(x, dim)
    if dim is not None:
        values, number, lengths, _ = _runs(_record(aten.transpose_copy.int, x, 0, dim), inverse, counts)
        return _record(aten.transpose_copy.int, values, 0, dim), number, lengths
    values, number, lengths, _ = _runs(_flat(x), inverse, counts)
    return values, _record(aten.view_copy.default, number, list(x.shape)) if inverse else number, lengths


# ---- linear algebra: what is raised, or how much is returned, depends on the matrix -----------------------------------


@handles(aten.linalg_eig.default, aten._linalg_eigvals.default)
def _eig(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """NaN for a matrix that is not finite; LAPACK as PyTorch calls it may end the process on one."""
    if how(op) == "native":
        return RECORDER.record(op, args, kwargs)
    if not _size(_record(aten.all.default, _record(aten.isfinite.default, args[0]))):
        raise torch.linalg.LinAlgError(f"{op}: the matrix holds NaN or infinity")
    return fallback.run(op, args, kwargs)


@handles(aten.linalg_lstsq.default)
def _lstsq(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The drivers that know the rank give residuals only if it is full for every matrix."""
    a, b, driver = args[0], args[1], kwargs.get("driver")
    if not _is_least_squares(a, b) or driver not in (None, "gelsy", "gels", "gelsd", "gelss"):
        return fallback.run(op, args, kwargs)  # in most cases an error
    solution, residuals, rank, values = RECORDER.record(op, args, kwargs)
    deficient = lambda: _size(_record(aten.min.default, rank)) < min(a.shape[-2:])
    if driver in ("gelsd", "gelss") and residuals.numel() and deficient():
        residuals = _record(aten.new_empty.default, residuals, [0])
    return solution, residuals, rank, values


def _is_least_squares(a: Any, b: Any) -> bool:
    """Whether A X = B is well formed, without broadcasting and with elements."""
    if a.dtype != b.dtype or a.ndim < 2 or not a.numel() or not b.numel():
        return False
    return bool(b.shape[:-1] == a.shape[:-1] if b.ndim == a.ndim else b.shape == a.shape[:-1])


@handles(aten._pack_padded_sequence.default)
def _pack_padded_sequence(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Rows of the sequences that are that long, time step by time step; (data on the device, batch sizes on the host)."""
    x, lengths, batch_first = args
    steps = x.shape[1] if batch_first else x.shape[0]
    batch = x.shape[0] if batch_first else x.shape[1]
    # The CPU kernel on the numbers of the rows checks the lengths, and says which rows make the result.
    numbers = torch.arange(steps * batch).view((batch, steps) if batch_first else (steps, batch))
    rows, batch_sizes = aten._pack_padded_sequence(numbers[..., None], lengths, batch_first)
    flat = _record(aten.view_copy.default, x, [steps * batch, *x.shape[2:]])
    return _record(aten.index_select.default, flat, 0, host_leaf(rows[:, 0])), batch_sizes
