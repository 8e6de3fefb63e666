"""Tools to look into programs on device xla. `check()` finds the op at fault; `metrics` counts what happens."""

from __future__ import annotations

from contextlib import AbstractContextManager

__all__ = ["check"]


def check() -> AbstractContextManager[None]:
    """A context in which an index out of range or an integer division by zero raises at the op, as on the CPU.

    On the CPU client it raises without this too, though for what the device has yet to compute only when that is read.
    Elsewhere XLA clamps such an index silently, so an embedding looks up a wrong row. Slow: arguments are read back.
    """
    from torch_xla._src.graph import contents

    return contents.check()
