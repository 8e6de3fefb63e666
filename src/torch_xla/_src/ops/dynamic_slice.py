"""Slices whose start may be an input of the program: `x[i]` or `x[i : i + n]` with a changing i is one program.

Note [Slices with a moving start]
aten's slice and select take the start as an `int`, a constant of the program, and a loop over the windows of a tensor
would compile each of them. The recorder sends these ops instead, whose start is a Scalar: constant at first, a slot
from the first time that it differs. The length determines a shape and stays constant.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax import lax

from torch_xla._src.ops.dtypes import cast, constant
from torch_xla._src.ops.registry import lowers
from torch_xla._src.ops.update import update_slice

_library = torch.library.Library("torch_xla", "DEF")
_library.define("slice(Tensor self, int dim, Scalar start, int length) -> Tensor")
_library.define("select(Tensor self, int dim, Scalar index) -> Tensor")
_library.define("slice_scatter(Tensor self, Tensor src, int dim, Scalar start) -> Tensor")


def _slice_on_host(self: torch.Tensor, dim: int, start: Any, length: int) -> torch.Tensor:
    return self.narrow(dim, int(start), length).clone()


def _slice_of_meta(self: torch.Tensor, dim: int, start: Any, length: int) -> torch.Tensor:
    shape = [*self.shape[:dim], length, *self.shape[dim + 1 :]]
    return torch.empty_strided(shape, self.stride(), dtype=self.dtype, device="meta")  # as the view reports them


def _select_on_host(self: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    return self.select(dim, int(index)).clone()


def _select_of_meta(self: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    shape, strides = list(self.shape), list(self.stride())
    del shape[dim], strides[dim]
    return torch.empty_strided(shape, strides, dtype=self.dtype, device="meta")


def _scatter_on_host(self: torch.Tensor, src: torch.Tensor, dim: int, start: Any) -> torch.Tensor:
    return self.slice_scatter(src, dim, int(start), int(start) + src.shape[dim])


def _scatter_of_meta(self: torch.Tensor, src: torch.Tensor, dim: int, start: Any) -> torch.Tensor:
    return torch.empty_like(self)


for _name, _host, _meta in (
    ("slice", _slice_on_host, _slice_of_meta),
    ("select", _select_on_host, _select_of_meta),
    ("slice_scatter", _scatter_on_host, _scatter_of_meta),
):
    _library.impl(_name, _host, "CPU")
    _library.impl(_name, _meta, "Meta")


def _start(start: Any) -> Any:
    return start if constant(start) is not None else cast(start, "int32")


@lowers("torch_xla.slice")
def slice_(self: jax.Array, dim: int, start: Any, length: int) -> jax.Array:
    if constant(start) is not None:
        return lax.slice_in_dim(self, start, start + length, axis=dim)
    return lax.dynamic_slice_in_dim(self, _start(start), length, dim)


@lowers("torch_xla.select")
def select(self: jax.Array, dim: int, index: Any) -> jax.Array:
    return lax.squeeze(slice_(self, dim, index, 1), [dim])


@lowers("torch_xla.slice_scatter")
def slice_scatter(self: jax.Array, src: jax.Array, dim: int, start: Any) -> jax.Array:
    return update_slice(self, src.astype(self.dtype), _start(start), dim)
