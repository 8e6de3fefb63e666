"""Names of PyTorch/XLA's `torch_xla.core.xla_op_registry`: ops written with `torch_xla.core.xla_builder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src import surface


class Op:
    """A function of builder Ops that takes and gives xla tensors; keyword arguments are constants."""

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        self._name, self._opfn = name, opfn
        self._computations: dict[Any, Any] = {}

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        from torch_xla._src.builder import Computation, shape_of
        from torch_xla._src.jax_function import call

        shapes = [shape_of(tensor) for tensor in args]
        key = tuple(s.shape for s in shapes), tuple(sorted((name, repr(value)) for name, value in kwargs.items()))
        if key not in self._computations:
            self._computations[key] = Computation(self._name, self._opfn, shapes, kwargs)
        return call(self._computations[key].on_arrays, args)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """An op from a function of builder Ops (and keyword arguments) that returns an Op, or several."""
    return Op(name, opfn)


__getattr__ = surface.missing(__name__)
