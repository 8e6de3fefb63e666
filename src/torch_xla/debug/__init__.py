"""Tools to look into programs on device xla. `check()` finds indices out of range; `metrics` counts what happens."""

from __future__ import annotations

from contextlib import AbstractContextManager

__all__ = ["check"]


def check() -> AbstractContextManager[None]:
    """A context in which an index out of range is an IndexError that names the op and the user's line.

    XLA clamps such an index silently, so without this an embedding looks up a wrong row. Slow: indices are read back.
    """
    from torch_xla._src.graph import checks

    return checks.check()
