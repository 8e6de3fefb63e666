"""The table of lowerings: aten op name -> function over JAX arrays. Families of ops live in the sibling files.

    @lowers("aten.native_layer_norm")
    def native_layer_norm(x, normalized_shape, weight, bias, eps): ...

A name is a packet ("aten.add": every overload) or one overload ("aten.add.Tensor", which goes first). Names are looked
up late, so one that a torch release lacks never breaks import. In-place and `out=` variants follow from the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_xla._src.runtime import client


@dataclass(frozen=True, slots=True)
class OutSpec:
    """Shape and dtype that PyTorch's meta kernel gives one output of an op."""

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Lowering:
    """How one aten op is expressed in JAX.

    fn: called with the arguments of the schema, tensors as JAX arrays (see Note [Scalars in lowerings]); returns one
        array, or a tuple/list shaped like the schema's returns. Results are cast to the dtypes of the meta kernel.
    random: `fn` takes a JAX PRNG key first.
    specs: `fn` takes, next, the OutSpec of its output (or the list of them if the op has several).
    static: names of Scalar and float arguments that must stay constants of the program.
    cpu_only: XLA has what `fn` needs on CPU only; on other devices the op counts as not lowered.
    """

    name: str
    fn: Callable[..., Any]
    random: bool = False
    specs: bool = False
    static: frozenset[str] = frozenset()
    cpu_only: bool = False


_TABLE: dict[str, Lowering] = {}


def lowers(
    *names: str, random: bool = False, specs: bool = False, static: tuple[str, ...] = (), cpu_only: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as the lowering of the named ops. ValueError if one already has one."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            # The same module may register again: its first import was interrupted.
            if name in _TABLE and _TABLE[name].fn.__module__ != fn.__module__:
                raise ValueError(
                    f"{name} is already lowered by {_TABLE[name].fn.__module__}.{_TABLE[name].fn.__name__}"
                )
            _TABLE[name] = Lowering(name, fn, random, specs, frozenset(static), cpu_only)
        return fn

    return register


def lookup(overload: Any) -> Lowering | None:
    """The lowering of a torch OpOverload: its own, else its packet's, else None."""
    namespace, _, name = overload._schema.name.partition("::")
    packet = f"{namespace}.{name}"
    lowering = _TABLE.get(f"{packet}.{overload._overloadname}") or _TABLE.get(packet)
    if lowering is not None and lowering.cpu_only and client.device_type() != "CPU":
        return None
    return lowering


def all_lowerings() -> list[Lowering]:
    """Every registered lowering."""
    return list(_TABLE.values())


def lowered_names() -> list[str]:
    """Every registered name, sorted."""
    return sorted(_TABLE)
