"""Names of PyTorch/XLA's `torch_xla.utils.buffer_donor_context`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla._src import donors, surface

__all__ = ["alias_with_buffer_donor_config"]


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """A block in which launches take notice of declared buffer donors, or do not; afterwards it is as before."""
    before = donors.set_alias_with_buffer_donor_config(should_alias)
    try:
        yield
    finally:
        donors.set_alias_with_buffer_donor_config(before)


__getattr__ = surface.missing(__name__)
