"""Names of PyTorch/XLA's `torch_xla.core.xla_builder`, usually imported as `xb`: JAX functions and XLA ops on xla tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._src import surface
from torch_xla._src.builder_shapes import Shape
from torch_xla._src.builder_shapes import Type as Type


def call_jax(
    jax_func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
) -> Any:
    """`jax_func(*args, **kwargs)` on xla tensors, nested in lists and dicts as JAX takes them; gives xla tensors.

    The call is recorded like an op. The function is traced once for each set of shapes; it is told apart from others by
    its identity, or by `override_hash`, so a function defined anew in each step should be given one. What is no tensor is
    a constant. Gradients flow through it. name: only for readers.
    """
    from torch_xla._src.jax_function import call

    return call(jax_func, args, kwargs, override_hash)


def create_builder(name: str) -> Any:
    """A builder, which only names what is built."""
    from torch_xla._src.builder import Builder

    return Builder(name)


def mkshape(dtype: str, sizes: Sequence[int], dynamic_dimensions: Any = None) -> Shape:
    """The Shape of an array; dtype: a name of Type."""
    return Shape.create(dtype, sizes, dynamic_dimensions)


def mkop(name: str, ops: Sequence[Any], **kwargs: Any) -> Any:
    """The operation `name` (a method of Op) on the first of `ops`, with the others and `kwargs` as arguments."""
    first, *others = ops
    return getattr(first, name.lower())(*others, **kwargs)


def mkleaf(name: str, builder: Any, **kwargs: Any) -> Any:
    """An Op without operands: a classmethod of Op (`constant`, `scalar`, `zero`, `one`, `iota`) by name."""
    from torch_xla._src.builder import Op

    return getattr(Op, name.lower())(builder, **kwargs)


def mkparam(builder: Any, param_no: int, shape: Shape) -> Any:
    """The Op of parameter `param_no` of a computation that `builder` builds: apply methods, then `build(name)` the result.

    ValueError if the builder has a parameter of that number.
    """
    from torch_xla._src.builder import parameter_of

    return parameter_of(builder, param_no, shape)


def tensor_shape(tensor: Any, device: str = "") -> Any:
    """The Shape of a tensor, or of each of a list of tensors."""
    from torch_xla._src.builder import shape_of

    return [shape_of(t) for t in tensor] if isinstance(tensor, (list, tuple)) else shape_of(tensor)


def create_computation(name: str, fn: Callable[..., Any], shapes: Sequence[Shape], **kwargs: Any) -> Any:
    """A computation from a function of Ops (and `kwargs`) that returns an Op."""
    from torch_xla._src.builder import Computation

    return Computation(name, fn, shapes, kwargs)


def get_computation_hlo(computation: Any) -> str:
    """The HLO text of a computation."""
    return str(computation.hlo())


def xla_computation_as_func(computation: Any, name: str | None = None) -> Callable[..., Any]:
    """A function of xla tensors, given in a list or one by one, that records the computation."""

    def function(*args: Any) -> Any:
        from torch_xla._src.jax_function import call

        tensors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        return call(computation.on_arrays, tuple(tensors))

    return function


def _of_builder(name: str) -> Any:
    from torch_xla._src import builder

    return getattr(builder, name)


_find = surface.missing(__name__)


def __getattr__(name: str) -> Any:
    """Op needs JAX, which this module does not load before it is used."""
    return _of_builder(name) if name in ("Op", "Computation") else _find(name)
