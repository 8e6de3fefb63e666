"""Checks of arguments that PyTorch's meta kernels leave to its other kernels: what the CPU refuses and they accept.

They look at shapes, dtypes and numbers. `contents.py` has those that look at what tensors hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src.graph import refused_dtypes

aten = torch.ops.aten
Check = Callable[..., None]  # called with the arguments of the op


def _refuse(wrong: bool, text: str, kind: type[Exception] = RuntimeError) -> None:
    if wrong:
        raise kind(text)


def _same_dtype(*positions: int) -> Check:
    def check(*args: Any, **kwargs: Any) -> None:
        tensors = [args[p] for p in positions if p < len(args) and isinstance(args[p], torch.Tensor)]
        if any(t.dtype is not tensors[0].dtype for t in tensors):
            dtypes = " and ".join(str(t.dtype) for t in tensors)
            raise RuntimeError(f"expected these arguments to have the same dtype, but got {dtypes}")

    return check


def _dim_in_range(x: torch.Tensor, dim: int, *args: Any) -> None:
    rank = max(x.ndim, 1)
    text = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
    _refuse(not -rank <= dim < rank, text, IndexError)


def _sort(x: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    dims = [a for a in args if type(a) is int]
    _dim_in_range(x, kwargs.get("dim", dims[0] if dims else -1))


def _arg_extremum(x: torch.Tensor, dim: int | None = None, *args: Any) -> None:
    _refuse(dim is None and x.numel() == 0, "expected a reduction dim to be specified for no elements", IndexError)
    _extremum(x, dim)


def _bitwise(left: Any, right: Any) -> None:
    for a in (left, right):
        if isinstance(a, float) or (isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex())):
            raise NotImplementedError(f"bitwise operations are not implemented for {getattr(a, 'dtype', 'float')}")


def _division(left: Any, right: Any, *, rounding_mode: str | None = "floor") -> None:
    """Booleans do not divide booleans with a remainder."""
    if rounding_mode is None or (isinstance(right, int) and not isinstance(right, bool)):
        return
    if all(isinstance(a, bool) or getattr(a, "dtype", None) is torch.bool for a in (left, right)):
        raise NotImplementedError("division with a remainder is not implemented for booleans")


def _multinomial(x: torch.Tensor, count: int, replacement: bool = False, **kwargs: Any) -> None:
    _refuse(not x.is_floating_point(), f"multinomial takes weights of a floating-point dtype, but got {x.dtype}")
    _refuse(count <= 0, "cannot sample n_sample <= 0 samples")
    too_many = not replacement and count > x.size(-1)
    _refuse(too_many, "cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    _refuse(x.size(-1) > 2**24, "number of categories cannot exceed 2^24")


def _probability(x: torch.Tensor, p: float = 0.5, **kwargs: Any) -> None:
    _refuse(not 0 <= p <= 1, f"bernoulli_ expects p to be in [0, 1], but got p={p}")


def _uniform(x: torch.Tensor, low: float = 0.0, high: float = 1.0, **kwargs: Any) -> None:
    _refuse(low > high, f"uniform_ expects a range [from, to), but found from={low} > to={high}")


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    text = f"expected the indices of an embedding to be int32 or int64, but got {indices.dtype}"
    _refuse(indices.dtype not in (torch.int32, torch.int64), text)


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    _same_dtype(0, 1, 2)(x, weight, bias)
    _refuse(any(p < 0 for p in padding), "negative padding is not supported")
    _refuse(any(d <= 0 for d in dilation), "dilation should be greater than zero")
    _refuse(any(s <= 0 for s in stride), "non-positive stride is not supported")
    if transposed:
        _refuse(any(p < 0 for p in output_padding), "negative output_padding is not supported")
        too_far = any(p >= max(s, d) for p, s, d in zip(output_padding, stride, dilation))
        _refuse(too_far, "output padding must be smaller than either stride or dilation")


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> None:
    _refuse(mask.dtype is not torch.bool, f"masked_scatter takes boolean masks, but got one of dtype {mask.dtype}")
    _refuse(x.dtype is not source.dtype, f"masked_scatter takes a source of dtype {x.dtype}, but got {source.dtype}")


def _same_dtype_as_target(x: torch.Tensor, _: Any, __: Any, source: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(source, torch.Tensor):
        _refuse(x.dtype is not source.dtype, f"expected a source of dtype {x.dtype}, but got {source.dtype}")


def _index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> None:
    _dim_in_range(x, dim)
    _same_dtype_as_target(x, dim, index, source)
    if source.ndim and x.ndim == source.ndim:
        wrong = index.numel() != source.shape[dim]
        _refuse(wrong, f"{index.numel()} indices for a source of {source.shape[dim]} slices", IndexError)


def _scatter(x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, *args: Any, **kwargs: Any) -> None:
    _same_dtype_as_target(x, dim, index, source)
    if isinstance(source, torch.Tensor) and index.numel() and index.ndim == x.ndim and 0 < source.ndim < x.ndim:
        _dim_in_range(x, dim)
        # The CPU looks at one dimension after the other, and what is too small (a RuntimeError) ends its search.
        others = [n > m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != dim % x.ndim]
        _refuse(
            any(others) or any(n > m for n, m in zip(index.shape, source.shape)),
            f"expected index {list(index.shape)} to be no larger than self {list(x.shape)} apart from dimension {dim} and "
            f"to be no larger size than src {list(source.shape)}",
        )
        rank = source.ndim
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {rank})")


def _index_put(x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    _indices(x, indices)
    wrong = isinstance(values, torch.Tensor) and values.dtype is not x.dtype
    _refuse(
        wrong, f"Index put requires the source and destination dtypes to match, but got {values.dtype} for {x.dtype}"
    )


def _indices(x: torch.Tensor, indices: Sequence[Any]) -> None:
    plain = [i.shape for i in indices if i is not None and i.dtype not in (torch.bool, torch.uint8)]
    try:
        torch.broadcast_shapes(*plain)
    except RuntimeError:
        shapes = ", ".join(str(list(s)) for s in plain)
        raise IndexError(f"shape mismatch: indices of shapes {shapes} could not be broadcast together") from None


def _index_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **kwargs: Any) -> None:
    _dim_in_range(x, dim)
    _same_dtype_as_target(x, dim, index, source)
    target, given = list(x.shape), list(source.shape)
    if target and len(target) == len(given):
        target[dim] = given[dim]
    _refuse(target != given, f"cannot add a source of shape {given} to slices of a tensor of shape {list(x.shape)}")


def _bucketize(x: Any, boundaries: torch.Tensor, **kwargs: Any) -> None:
    _refuse(boundaries.ndim != 1, f"boundaries must be 1-dimensional, but got {boundaries.ndim} dimensions")


def _searchsorted(*args: Any, side: str | None = None, **kwargs: Any) -> None:
    _refuse(side not in (None, "left", "right"), f"side can only be 'left' or 'right' but got {side}")


def _bincount(x: torch.Tensor, weights: Any = None, minlength: int = 0) -> None:
    wrong = x.is_floating_point() or x.is_complex()
    _refuse(wrong, f"bincount is not implemented for {x.dtype}", NotImplementedError)
    _refuse(minlength < 0, "minlength should be >= 0")


def _targets_of_classes(x: Any, target: torch.Tensor, weight: Any, *args: Any) -> None:
    _same_dtype(0, 2)(x, target, weight)
    wrong = target.dtype not in (torch.int64, torch.uint8)
    _refuse(wrong, f"expected targets of dtype int64 or uint8, but got {target.dtype}")


def _smooth_l1(x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> None:
    _refuse(beta < 0, "smooth_l1_loss does not support negative values for beta")


def _ctc(log_probs: torch.Tensor, targets: Any, inputs: Any, lengths: Any, blank: int = 0, *args: Any) -> None:
    _refuse(not 0 <= blank < log_probs.shape[-1], "blank must be in label range")
    if isinstance(inputs, (list, tuple)):
        longest = targets.shape[1] if targets.ndim == 2 else targets.shape[0]
        wrong = any(not 0 <= n <= log_probs.shape[0] for n in inputs) or any(not 0 <= n <= longest for n in lengths)
        _refuse(wrong, "a length that is longer than the sequences, or negative")


def _clamp(x: Any, low: Any = None, high: Any = None) -> None:
    _refuse(low is None and high is None, "clamp takes a minimum, a maximum or both")


def _addcdiv(x: Any, dividend: torch.Tensor, divisor: torch.Tensor, *, value: Any = 1) -> None:
    integral = not any(a.is_floating_point() or a.is_complex() for a in (dividend, divisor))
    _refuse(integral, "addcdiv does not divide integers; use true_divide")


def _normal_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> None:
    dtype = dtype or x.dtype
    wrong = not (dtype.is_floating_point or dtype.is_complex)
    _refuse(wrong, f"random numbers are not implemented for {dtype}", NotImplementedError)


def _heaviside(x: Any, values: Any) -> None:
    _refuse(x.dtype is not values.dtype, "heaviside is not implemented for tensors of different dtypes")


def _binomial(count: torch.Tensor, prob: torch.Tensor, *args: Any) -> None:
    torch.broadcast_shapes(count.shape, prob.shape)


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> None:
    _refuse(any(t.ndim == 0 for t in tensors), "a zero-dimensional tensor cannot be concatenated")


def _extremum(x: torch.Tensor, dim: Any = (), *args: Any, **kwargs: Any) -> None:
    """There is no largest element of none."""
    dims = [] if dim is None else [dim] if isinstance(dim, int) else dim
    for d in dims:
        if -x.ndim <= d < x.ndim and x.shape[d] == 0:
            raise IndexError(f"Expected reduction dim {d % x.ndim} to have non-zero size")


def _storage_reaches(x: torch.Tensor, source: Any, size: Any, stride: Any, offset: int | None = None) -> None:
    """A view by size and stride has to lie in the storage."""
    last = (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride))
    held = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) if x.numel() else 0
    outside = last >= held and 0 not in size
    _refuse(outside, f"sizes {list(size)} and strides {list(stride)} reach beyond a storage of {held} elements")


def _histogram_of_points(x: torch.Tensor, bins: Sequence[Any], **kwargs: Any) -> None:
    wrong = x.ndim == 0 or len(bins) != x.shape[-1]
    _refuse(wrong, "histogramdd: the number of bins must be the innermost size of the input")


def _pool2d(x: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    _refuse(x.ndim not in (3, 4), f"expected a 3-D or 4-D input to pool, but got {x.ndim} dimensions")


def _divisor(x: torch.Tensor, *args: Any, divisor_override: int | None = None, **kwargs: Any) -> None:
    override = args[5] if len(args) > 5 else divisor_override  # after kernel, stride, padding and two flags
    _refuse(override == 0, "divisor must be not zero")


ARGUMENTS: dict[Any, Check] = {
    aten.embedding.default: _embedding,
    aten.mm.default: _same_dtype(0, 1),
    aten.bmm.default: _same_dtype(0, 1),
    aten.mv.default: _same_dtype(0, 1),
    aten.dot.default: _same_dtype(0, 1),
    aten.vdot.default: _same_dtype(0, 1),
    aten.addmm.default: _same_dtype(0, 1, 2),
    aten.addmv.default: _same_dtype(0, 1, 2),
    aten.baddbmm.default: _same_dtype(0, 1, 2),
    aten.complex.default: _same_dtype(0, 1),
    aten.polar.default: _same_dtype(0, 1),
    aten.nll_loss_forward.default: _targets_of_classes,
    aten.nll_loss2d_forward.default: _targets_of_classes,
    aten.binary_cross_entropy.default: _same_dtype(0, 1),
    aten.smooth_l1_loss.default: _smooth_l1,
    aten._ctc_loss.default: _ctc,
    aten._ctc_loss.Tensor: _ctc,
    aten.convolution.default: _convolution,
    aten._softmax.default: _dim_in_range,
    aten._log_softmax.default: _dim_in_range,
    aten.logcumsumexp.default: _dim_in_range,
    aten.avg_pool2d.default: _divisor,
    aten.avg_pool3d.default: _divisor,
    aten.multinomial.default: _multinomial,
    aten.uniform.default: _uniform,
    aten.bernoulli.p: _probability,
    aten.binomial.default: _binomial,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten.argmax.default: _arg_extremum,
    aten.argmin.default: _arg_extremum,
    aten.searchsorted.Tensor: _searchsorted,
    aten.searchsorted.Scalar: _searchsorted,
    aten.bincount.default: _bincount,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.heaviside.default: _heaviside,
    aten.addcdiv.default: _addcdiv,
    aten.rand_like.default: _normal_like,
    aten.randn_like.default: _normal_like,
    aten.index.Tensor: _indices,
    aten.index_put.default: _index_put,
    aten.index_copy.default: _index_copy,
    aten.masked_scatter.default: _masked_scatter,
    aten.scatter.src: _scatter,
    aten.scatter.reduce: _scatter,
    aten.scatter_add.default: _scatter,
    aten.scatter_reduce.two: _scatter,
    aten.index_add.default: _index_add,
    aten.bucketize.Tensor: _bucketize,
    aten.bucketize.Scalar: _bucketize,
    aten.cat.default: _cat,
    aten.amax.default: _extremum,
    aten.amin.default: _extremum,
    aten.aminmax.default: _extremum,
    aten.as_strided_scatter.default: _storage_reaches,
    aten._histogramdd_bin_edges.default: _histogram_of_points,
    aten._histogramdd_from_bin_cts.default: _histogram_of_points,
    aten._histogramdd_from_bin_tensors.default: _histogram_of_points,
    aten.max_pool2d_with_indices.default: _pool2d,
}
for _packet in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor):
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        ARGUMENTS[getattr(_packet, _overload)] = _bitwise
for _packet in (aten.bitwise_left_shift, aten.bitwise_right_shift):
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        ARGUMENTS[getattr(_packet, _overload)] = _bitwise
for _packet in (aten.__lshift__, aten.__rshift__):
    for _overload in ("Tensor", "Scalar"):
        ARGUMENTS[getattr(_packet, _overload)] = _bitwise
for _op in (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor):
    ARGUMENTS[_op] = _division
for _op in (aten.fmod.Tensor, aten.fmod.Scalar, aten.floor_divide.default, aten.div.Tensor_mode, aten.div.Scalar_mode):
    ARGUMENTS[_op] = _division


def _both(first: Check, second: Check) -> Check:
    def check(*args: Any, **kwargs: Any) -> None:
        first(*args, **kwargs)
        second(*args, **kwargs)

    return check


for _op, _of_dtype in refused_dtypes.checks().items():
    ARGUMENTS[_op] = _both(_of_dtype, ARGUMENTS[_op]) if _op in ARGUMENTS else _of_dtype
