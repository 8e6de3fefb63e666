"""Names of PyTorch/XLA's `torch_xla.experimental.eager`: every op is compiled and launched by itself, at once."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch_xla._src import eager, surface


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off; what is pending is launched first. `torch_xla.compile` records lazily all the same."""
    eager.set_enabled(enable)


def is_eager_mode() -> bool:
    """Whether eager mode is on."""
    return eager.enabled


def eager_mode_context(enable: bool) -> AbstractContextManager[None]:
    """A context in which eager mode is on or off."""
    return eager.mode(enable)


__getattr__ = surface.missing(__name__)
