"""The whole table of the public surface: see Note [Public surface]."""

from __future__ import annotations

from torch_xla._src.surface.entry import Entry, parse
from torch_xla._src.surface.tables import bindings, core, distributed, experimental, own, tools

ENTRIES: list[Entry] = [
    entry
    for text in (core.TABLE, distributed.TABLE, experimental.TABLE, tools.TABLE, bindings.TABLE, own.TABLE)
    for entry in parse(text)
]
_BY_NAME = {(entry.module, entry.name): entry for entry in ENTRIES}
MODULES = frozenset(entry.module for entry in ENTRIES)


def find(module: str, name: str) -> Entry | None:
    """The entry of a name, or None if PyTorch/XLA has never had it."""
    return _BY_NAME.get((module, name))
