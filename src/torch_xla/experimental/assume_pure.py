"""Names of PyTorch/XLA's `torch_xla.experimental.assume_pure`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_xla._src import surface


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function as a function of xla tensors, with gradients. It is traced once for each set of shapes."""

    @functools.wraps(fn)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        from torch_xla._src.jax_function import call

        return call(fn, args, kwargs)

    return on_tensors


__getattr__ = surface.missing(__name__)
