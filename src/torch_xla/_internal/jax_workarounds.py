"""Names of PyTorch/XLA's `torch_xla._internal.jax_workarounds`, which are needless here: device xla is JAX's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_xla._src import surface


def jax_import_guard() -> None:
    """Nothing: JAX may be imported and used at any time beside xla tensors."""


@contextmanager
def jax_env_context() -> Iterator[None]:
    """A context that changes nothing."""
    yield


def requires_jax(func: Callable[..., Any]) -> Callable[..., Any]:
    """`func` itself: JAX is always there."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def maybe_get_jax(log: bool = True) -> Any:
    """The module jax."""
    import jax

    return jax


def maybe_get_torchax() -> Any:
    """The module torchax, or None if it is not installed."""
    try:
        import torchax  # type: ignore[import-not-found, unused-ignore]  # installed or not
    except ImportError:
        return None
    return torchax


__getattr__ = surface.missing(__name__)
