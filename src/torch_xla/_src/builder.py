"""Computations written op by op, the way of PyTorch/XLA's `xla_builder`: an Op wraps an array that JAX traces.

A computation is a function of Ops; JAX traces it when it is used, so it becomes part of the recording like any JAX
function. Methods are XLA's operations under their names there (openxla.org, "XLA operation semantics").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._src.builder_parameters import Expression, can_wait, parameter
from torch_xla._src.builder_shapes import Shape, Type, dtype_of, type_of
from torch_xla._src.ops.dtypes import numpy_dtype, torch_dtype

_lax: Any = lax


class Builder:
    """Names a computation that is being built, and has the parameters that were made for it by hand."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: dict[int, tuple[Expression, Shape]] = {}


class Computation:
    """A function of Ops, with the Shapes of its parameters."""

    def __init__(
        self, name: str, function: Callable[..., Any], shapes: Sequence[Shape], kwargs: dict[str, Any]
    ) -> None:
        self.name, self.function, self.shapes, self.kwargs = name, function, list(shapes), kwargs
        self.on_arrays = self._on_arrays  # one object, so that calls of it are recognised

    def _on_arrays(self, *arrays: Any) -> Any:
        """The computation on JAX arrays."""
        with jax.named_scope(self.name or "computation"):
            return unwrap(self.function(*map(Op, arrays), **self.kwargs))

    def hlo(self) -> str:
        """Its HLO text, before XLA has optimised it."""
        structs = [jax.ShapeDtypeStruct(tuple(s.sizes), dtype_of(s.dtype)) for s in self.shapes]
        with jax.enable_x64(True):
            return str(jax.jit(self.on_arrays).lower(*structs).as_text(dialect="hlo"))


def unwrap(value: Any) -> Any:
    """Arrays for Ops; tuples stay tuples."""
    if isinstance(value, Op):
        return unwrap(value.op)
    return tuple(map(unwrap, value)) if isinstance(value, (tuple, list)) else value


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that applies `function` to the arrays of the operands."""

    def method(self: Op, *others: Any) -> Op:
        return Op(function(self.op, *map(unwrap, others)))

    return method


def _pair(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of two operands; a number takes the dtype of the Op."""

    def method(self: Op, other: Any) -> Op:
        return Op(function(self.op, _operand(self, other)))

    return method


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Op, other: Any) -> Op:
        return Op(function(_operand(self, other), self.op))

    return method


def _operand(like: Op, other: Any) -> Any:
    value = unwrap(other)
    return value if isinstance(other, Op) else jnp.asarray(value, like.op.dtype)


def _divide(x: Any, y: Any) -> Any:
    return lax.div(*jnp.broadcast_arrays(x, y))


def _padding(padding: Any) -> Any:
    return padding.upper() if isinstance(padding, str) else [tuple(p) for p in padding]


class Op:
    """A value of a computation. `op` is the JAX array, or a tuple of them."""

    def __init__(self, op: Any) -> None:
        self.op = unwrap(op)

    # ---- about it

    def shape(self) -> Shape:
        """Sizes and dtype."""
        return shape_of(self.op.struct() if isinstance(self.op, Expression) else self.op)

    def builder(self) -> Builder:
        """The builder that it belongs to."""
        return self.op.builder if isinstance(self.op, Expression) else Builder("")

    def build(self, name: str) -> Computation:
        """A computation of the builder's parameters that gives this value."""
        value = self.op
        if isinstance(value, Expression):
            return Computation(name, lambda *ops: Op(value.on_arrays(*map(unwrap, ops))), value.shapes(), {})
        return Computation(name, lambda: Op(value), [], {})

    # ---- elementwise

    __add__, __radd__ = _pair(jnp.add), _swapped(jnp.add)
    __sub__, __rsub__ = _pair(jnp.subtract), _swapped(jnp.subtract)
    __mul__, __rmul__ = _pair(jnp.multiply), _swapped(jnp.multiply)
    __truediv__, __rtruediv__ = _pair(_divide), _swapped(_divide)
    __mod__, __pow__ = _pair(jnp.fmod), _pair(jnp.power)
    __and__, __or__, __xor__ = _pair(jnp.bitwise_and), _pair(jnp.bitwise_or), _pair(jnp.bitwise_xor)
    __lt__, __le__, __gt__, __ge__ = (
        _pair(jnp.less),
        _pair(jnp.less_equal),
        _pair(jnp.greater),
        _pair(jnp.greater_equal),
    )
    __matmul__ = dot = _pair(jnp.matmul)
    max, min, atan2 = _pair(jnp.maximum), _pair(jnp.minimum), _pair(jnp.arctan2)
    __neg__, __invert__, __abs__ = _method(jnp.negative), _method(jnp.bitwise_not), _method(jnp.abs)
    acos, asin, atan = _method(jnp.arccos), _method(jnp.arcsin), _method(jnp.arctan)
    cos, cosh, sin, sinh, tan, tanh = map(_method, (jnp.cos, jnp.cosh, jnp.sin, jnp.sinh, jnp.tan, jnp.tanh))
    exp, expm1, log, log1p = _method(jnp.exp), _method(jnp.expm1), _method(jnp.log), _method(jnp.log1p)
    sqrt, rsqrt, ceil, floor = _method(jnp.sqrt), _method(lax.rsqrt), _method(jnp.ceil), _method(jnp.floor)
    erf, erfc, erfinf, clz = _method(lax.erf), _method(lax.erfc), _method(lax.erf_inv), _method(lax.clz)
    conj, real, imag = _method(jnp.conj), _method(jnp.real), _method(jnp.imag)

    def __eq__(self, other: object) -> Any:
        return Op(jnp.equal(self.op, _operand(self, other)))

    def __ne__(self, other: object) -> Any:
        return Op(jnp.not_equal(self.op, _operand(self, other)))

    __hash__ = object.__hash__

    def clamp(self, min_value: Any, max_value: Any) -> Op:
        """At least `min_value` and at most `max_value`."""
        return Op(jnp.clip(self.op, _operand(self, min_value), _operand(self, max_value)))

    def select(self, true_value: Op, false_value: Op) -> Op:
        """`true_value` where this is true."""
        return Op(jnp.where(self.op, unwrap(true_value), unwrap(false_value)))

    def cast(self, to_type: str) -> Op:
        """With another dtype (of Type)."""
        return Op(lax.convert_element_type(self.op, dtype_of(to_type)))

    def bitcast(self, to_type: str) -> Op:
        """The same bits as another dtype."""
        return Op(lax.bitcast_convert_type(self.op, dtype_of(to_type)))

    # ---- shapes

    def reshape(self, sizes: Sequence[int], dimensions: Any = None, inferred_dimension: int | None = None) -> Op:
        """With other sizes; `dimensions`: the order in which dims are read."""
        value = self.op if dimensions is None else lax.transpose(self.op, dimensions)
        return Op(jnp.reshape(value, tuple(sizes)))

    def broadcast(self, sizes: Sequence[int]) -> Op:
        """With dims of these sizes in front."""
        return Op(lax.broadcast(self.op, tuple(sizes)))

    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> Op:
        """With these sizes, where dim i becomes dim `dimensions[i]`."""
        return Op(lax.broadcast_in_dim(self.op, tuple(sizes), tuple(dimensions)))

    def transpose(self, permutation: Sequence[int]) -> Op:
        """With the dims in another order."""
        return Op(lax.transpose(self.op, tuple(permutation)))

    def rev(self, dimensions: Sequence[int]) -> Op:
        """Reversed along dims."""
        return Op(lax.rev(self.op, tuple(dimensions)))

    def pad(self, value: Op, config: Sequence[Sequence[int]]) -> Op:
        """Padded: for each dim (before, after, between elements)."""
        return Op(lax.pad(self.op, unwrap(value), [tuple(c) for c in config]))

    def slice(self, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any = None) -> Op:
        """The elements from start to limit."""
        return Op(lax.slice(self.op, tuple(start_indices), tuple(limit_indices), strides))

    def slice_in_dim(self, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> Op:
        """The same along one dim."""
        return Op(lax.slice_in_dim(self.op, start_index, limit_index, stride, dimno))

    def dynamic_slice(self, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> Op:
        """A part of given sizes, whose start is computed."""
        return Op(lax.dynamic_slice(self.op, _indices(start_indices), tuple(slice_sizes)))

    def dynamic_update_slice(self, update: Op, start_indices: Sequence[Any]) -> Op:
        """With such a part replaced."""
        return Op(lax.dynamic_update_slice(self.op, unwrap(update), _indices(start_indices)))

    def gather(
        self, start_indices: Op, offset_dims: Any, collapsed_slice_dims: Any, start_index_map: Any, index_vector_dim: int,
        indices_are_sorted: bool | None = None, slice_sizes: Any = None,
    ) -> Op:  # fmt: skip
        """XLA's Gather; `slice_sizes` are those of the operand but 1 for collapsed dims, unless given."""
        collapsed = tuple(collapsed_slice_dims)
        sizes = slice_sizes or [1 if dim in collapsed else n for dim, n in enumerate(self.op.shape)]
        numbers = lax.GatherDimensionNumbers(tuple(offset_dims), collapsed, tuple(start_index_map))
        return Op(lax.gather(self.op, _trailing(unwrap(start_indices), index_vector_dim), numbers, tuple(sizes)))

    def scatter(
        self, scatter_indices: Op, updates: Op, computation: Computation, update_window_dims: Any,
        inserted_window_dims: Any, scatter_dims_to_operand_dims: Any, index_vector_dim: int,
        indices_are_sorted: bool | None = None, unique_indices: bool | None = None,
    ) -> Op:  # fmt: skip
        """XLA's Scatter; `computation` combines what is there and an update: a sum, product, minimum, maximum, or the update."""
        numbers = lax.ScatterDimensionNumbers(
            tuple(update_window_dims), tuple(inserted_window_dims), tuple(scatter_dims_to_operand_dims)
        )
        indices = _trailing(unwrap(scatter_indices), index_vector_dim)
        return Op(_scatter_of(computation)(self.op, indices, unwrap(updates), numbers))

    # ---- reductions, windows, convolutions

    def reduce(self, init_value: Op, computation: Computation, dimensions: Sequence[int]) -> Op:
        """Reduced over dims by a computation of two scalars."""
        init = lax.convert_element_type(unwrap(init_value), self.op.dtype)
        return Op(lax.reduce(self.op, init, computation.on_arrays, tuple(dimensions)))

    def reduce_all(self, init_value: Op, computation: Computation) -> Op:
        """Reduced over all dims."""
        return self.reduce(init_value, computation, range(self.op.ndim))

    def reduce_window(
        self,
        init_value: Op,
        computation: Computation,
        window_dimensions: Any,
        window_strides: Any,
        padding: Any = "valid",
    ) -> Op:
        """Reduced over windows."""
        init = lax.convert_element_type(unwrap(init_value), self.op.dtype)
        return Op(
            lax.reduce_window(
                self.op, init, computation.on_arrays, tuple(window_dimensions), tuple(window_strides), _padding(padding)
            )
        )

    def max_pool(
        self, kernel_size: Any, stride: Any, batch_dimension: int, feature_dimension: int, spatial_dimensions: Any,
        padding: Any = "valid",
    ) -> Op:  # fmt: skip
        """The maximum over windows of the spatial dims; kernel and stride are given for all dims."""
        low = -np.inf if np.issubdtype(self.op.dtype, np.inexact) else np.iinfo(self.op.dtype).min
        return Op(_lax.reduce_window(self.op, low, lax.max, tuple(kernel_size), tuple(stride), _padding(padding)))

    def conv(
        self, kernel: Op, window_strides: Any, feature_group_count: int = 1, batch_group_count: int = 1,
        padding: Any = "valid", precision_config: Any = None,
    ) -> Op:  # fmt: skip
        """Convolution of [batch, features, ...] with [features out, in, ...]."""
        return Op(
            lax.conv_general_dilated(
                self.op, unwrap(kernel), tuple(window_strides), _padding(padding),
                feature_group_count=feature_group_count, batch_group_count=batch_group_count,
            )
        )  # fmt: skip

    def conv_with_general_padding(
        self, kernel: Op, window_strides: Any, padding: Any, feature_group_count: int = 1, batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Op:  # fmt: skip
        """The same with padding for each spatial dim."""
        return self.conv(kernel, window_strides, feature_group_count, batch_group_count, padding)

    def conv_general_dilated(
        self, kernel: Op, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
        input_batch_dimension: int, input_feature_dimension: int, kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int, output_batch_dimension: int, output_feature_dimension: int,
        input_spatial_dimensions: Any, kernel_spatial_dimensions: Any, output_spatial_dimensions: Any,
        feature_group_count: int = 1, batch_group_count: int = 1, precision_config: Any = None,
    ) -> Op:  # fmt: skip
        """Convolution with dims in any order, and dilated."""
        numbers = lax.ConvDimensionNumbers(
            (input_batch_dimension, input_feature_dimension, *input_spatial_dimensions),
            (kernel_output_feature_dimension, kernel_input_feature_dimension, *kernel_spatial_dimensions),
            (output_batch_dimension, output_feature_dimension, *output_spatial_dimensions),
        )
        return Op(
            lax.conv_general_dilated(
                self.op, unwrap(kernel), tuple(window_strides), _padding(padding), lhs_dilation, rhs_dilation, numbers,
                feature_group_count, batch_group_count,
            )
        )  # fmt: skip

    def conv_general(self, kernel: Op, window_strides: Any, padding: Any, *dimensions: Any, **groups: Any) -> Op:
        """Convolution with dims in any order, not dilated."""
        return self.conv_general_dilated(kernel, window_strides, padding, None, None, *dimensions, **groups)

    def conv_with_general_dimensions(
        self, kernel: Op, window_strides: Any, *dimensions: Any, padding: Any = "valid", **groups: Any
    ) -> Op:
        """The same with padding "valid" or "same"."""
        return self.conv_general_dilated(kernel, window_strides, padding, None, None, *dimensions, **groups)

    def dot_general(self, rhs: Op, dimension_numbers: Any) -> Op:
        """Product over contracting dims: ((contracting left, right), (batch left, right))."""
        return Op(lax.dot_general(self.op, unwrap(rhs), dimension_numbers))

    def triangualr_solve(
        self, b: Op, left_side: bool | None = None, lower: bool | None = None, unit_diagonal: bool | None = None,
        transpose_a: bool | None = None,
    ) -> Op:  # fmt: skip
        """The solution of a triangular system (the name is PyTorch/XLA's)."""
        return Op(
            _lax.linalg.triangular_solve(
                self.op, unwrap(b), left_side=bool(left_side), lower=bool(lower), transpose_a=bool(transpose_a),
                unit_diagonal=bool(unit_diagonal),
            )
        )  # fmt: skip

    triangular_solve = triangualr_solve

    # ---- tuples and control flow

    def get_tuple_element(self, index: int) -> Op:
        """An element of a tuple."""
        return Op(self.op[index])

    def conditional(
        self, true_operand: Op, false_operand: Op, true_computation: Computation, false_computation: Computation
    ) -> Op:
        """One computation or the other, by this scalar."""
        yes, no = unwrap(true_operand), unwrap(false_operand)
        return Op(lax.cond(self.op, lambda: true_computation.on_arrays(yes), lambda: false_computation.on_arrays(no)))

    def mkconditional(
        self, ops: Sequence[Op], true_fn: Callable[..., Any], false_fn: Callable[..., Any], **kwargs: Any
    ) -> Op:
        """The same for functions of several Ops."""

        def branch(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arrays: unwrap(function(*map(Op, arrays), **kwargs))

        return Op(lax.cond(self.op, branch(true_fn), branch(false_fn), *map(unwrap, ops)))

    def while_loop(self, condition_computation: Computation, body_computation: Computation) -> Op:
        """The body again and again while the condition holds, from this value on."""
        return Op(lax.while_loop(condition_computation.on_arrays, body_computation.on_arrays, self.op))

    def mkwhile(
        self, ops: Sequence[Op], condition_fn: Callable[..., Any], body_fn: Callable[..., Any], **kwargs: Any
    ) -> Op:
        """The same for functions of this Op and others; `body_fn` returns a tuple of as many. Gives a tuple."""

        def on_tuple(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda arrays: unwrap(function(*map(Op, arrays), **kwargs))

        start = (self.op, *map(unwrap, ops))
        return Op(lax.while_loop(on_tuple(condition_fn), on_tuple(body_fn), start))

    @classmethod
    def tuple(cls, ops: Sequence[Op], builder: Any = None) -> Op:
        """A tuple of Ops."""
        return cls([*map(unwrap, ops)])

    @classmethod
    def concat_in_dim(cls, ops: Sequence[Op], dimension: int, builder: Any = None) -> Op:
        """Concatenated along a dim."""
        return cls(lax.concatenate([*map(unwrap, ops)], dimension))

    @classmethod
    def call(cls, computation: Computation, ops: Sequence[Op], builder: Any = None) -> Op:
        """What a computation gives for Ops."""
        return cls(computation.on_arrays(*map(unwrap, ops)))

    @classmethod
    def map(
        cls,
        ops: Sequence[Op],
        computation: Computation,
        dimensions: Any,
        static_operands: Any = (),
        builder: Any = None,
    ) -> Op:
        """A computation of scalars on each element."""
        function = computation.on_arrays
        arrays = [*map(unwrap, ops)]
        for _ in range(arrays[0].ndim):
            function = jax.vmap(function)
        return cls(function(*arrays))

    @classmethod
    def sort(
        cls, ops: Sequence[Op], comparator: Any, dimension: int | None = None, is_stable: bool | None = None
    ) -> Op:
        """Sorted along a dim by the first Op, ascending; the others are carried along.

        NotImplementedError for another `comparator` than a computation that asks whether one is less than the other.
        """
        arrays = [*map(unwrap, ops)]
        order = _order_of(comparator, arrays)
        keys = arrays if order > 0 else [-arrays[0], *arrays[1:]]
        found = list(lax.sort(tuple(keys), -1 if dimension is None else dimension, bool(is_stable), num_keys=1))
        if order < 0:
            found[0] = -found[0]
        return cls(found[0] if len(found) == 1 else found)

    # ---- constants

    @classmethod
    def constant(cls, builder: Any, value: Any) -> Op:
        """A constant: a tensor, array or number."""
        if isinstance(value, torch.Tensor):
            host = value.detach().cpu()
            host = host.float() if host.dtype is torch.bfloat16 else host  # which NumPy does not have
            return cls(jnp.asarray(host.numpy(), numpy_dtype(value.dtype)))
        return cls(jnp.asarray(value))

    @classmethod
    def scalar(cls, builder: Any, value: Any, dtype: str | None = None) -> Op:
        """A number."""
        return cls(jnp.asarray(value, None if dtype is None else dtype_of(dtype)))

    @classmethod
    def zero(cls, builder: Any, dtype: str | None = None) -> Op:
        """0."""
        return cls.scalar(builder, 0, dtype or Type.F32)

    @classmethod
    def one(cls, builder: Any, dtype: str | None = None) -> Op:
        """1."""
        return cls.scalar(builder, 1, dtype or Type.F32)

    @classmethod
    def iota(cls, builder: Any, shape: Shape, iota_dimension: int) -> Op:
        """0, 1, 2 ... along a dim."""
        return cls(lax.broadcasted_iota(dtype_of(shape.dtype), tuple(shape.sizes), iota_dimension))

    def zeros_like(self) -> Op:
        """0 for each element."""
        return Op(jnp.zeros_like(self.op))

    def ones_like(self) -> Op:
        """1 for each element."""
        return Op(jnp.ones_like(self.op))

    def scalar_like(self, value: Any) -> Op:
        """A number of the same dtype."""
        return Op(jnp.asarray(value, self.op.dtype))

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """The Type of a torch dtype."""
        return type_of(numpy_dtype(dtype))

    @classmethod
    def to_torch_type(cls, dtype: str) -> torch.dtype:
        """The torch dtype of a Type."""
        return torch_dtype(dtype_of(dtype))

    @classmethod
    def make_computation(cls, name: str, computation: Any, args_or_shapes: Sequence[Any], **kwargs: Any) -> Computation:
        """A Computation from a function of Ops; one that is a Computation already stays what it is."""
        if isinstance(computation, Computation):
            return computation
        shapes = [a.shape() if isinstance(a, Op) else a for a in args_or_shapes]
        return Computation(name, computation, shapes, kwargs)


def _let_wait() -> None:
    """Methods take Ops that have no value yet, too: `builder_parameters.py`."""
    about = ("__init__", "shape", "builder", "build", "from_torch_type", "to_torch_type", "make_computation")
    for name, method in list(vars(Op).items()):
        if isinstance(method, classmethod) and name not in about:
            setattr(Op, name, classmethod(can_wait(method.__func__, Op)))
        elif callable(method) and name not in about:
            setattr(Op, name, can_wait(method, Op))


_let_wait()


def parameter_of(builder: Builder, number: int, shape: Shape) -> Op:
    """A parameter of what `builder` builds."""
    return Op(parameter(builder, number, shape))


def _indices(starts: Sequence[Any]) -> list[Any]:
    return [unwrap(start) for start in starts]


def _trailing(indices: Any, index_vector_dim: int) -> Any:
    """Indices with the dim of index vectors last, where JAX has it."""
    return indices[..., None] if index_vector_dim == indices.ndim else jnp.moveaxis(indices, index_vector_dim, -1)


def _scatter_of(computation: Computation) -> Callable[..., Any]:
    """lax's scatter that combines as a computation of two scalars does, found out by example."""
    old, new = np.float32(3.0), np.float32(5.0)
    known = {8.0: lax.scatter_add, 15.0: lax.scatter_mul, 5.0: None, 3.0: lax.scatter_min}
    result = float(_eager(computation, old, new))
    if result not in known:
        raise NotImplementedError(
            f"scatter with computation {computation.name!r}, which is no sum, product, extremum or update"
        )
    chosen = known[result]
    if chosen is not None:
        return chosen
    return lax.scatter_max if float(_eager(computation, new, old)) == 5.0 else lax.scatter


def _order_of(comparator: Any, arrays: Sequence[Any]) -> int:
    """1 for a comparator that is "less", -1 for "greater"."""
    if comparator is None:
        return 1
    one, two = np.float32(1.0), np.float32(2.0)
    extra = [np.float32(0.0)] * (2 * (len(arrays) - 1))
    ascending = bool(_eager(comparator, one, two, *extra))
    if ascending == bool(_eager(comparator, two, one, *extra)):
        raise NotImplementedError("sort with a comparator that compares something else than the first operand")
    return 1 if ascending else -1


def _eager(computation: Computation, *arrays: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return computation.on_arrays(*map(jnp.asarray, arrays))


def shape_of(value: Any) -> Shape:
    """The Shape of an array, a tensor, or a tuple."""
    if isinstance(value, tuple):
        return Shape(tuple(map(shape_of, value)))
    dtype = numpy_dtype(value.dtype) if isinstance(value, torch.Tensor) else np.dtype(value.dtype)
    return Shape.create(type_of(dtype), tuple(value.shape))
