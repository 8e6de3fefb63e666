"""The public surface of PyTorch/XLA, as one table, and what public modules do with a name they do not define.

Note [Public surface]
`table.py` and `tables/` list every public name of PyTorch/XLA 1.9 to 2.9: its module, how much user code needs it (must,
should, rare), its signature, and what became of it here; and those that this package adds (new):

    works         it is there, with that signature
    deprecated    the same; it warns once and names its successor
    waits:ISSUE   calling it is a NotImplementedError that says what is missing: it stands in for a part not built yet
    absent        an AttributeError that says so

A module's `__getattr__` is `missing(__name__)`: names that wait are made from the table, and those that are absent get a
message; what works is ordinary code. tests/test_api_surface.py compares the table with the modules.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch_xla._src.surface.entry import Entry

# What an entry in state waits:ISSUE waits for, in words.
MISSING = {
    "sharding": "sharding over several devices",
    "processes": "several processes",
    "export": "export of models",
    "kernels": "custom kernels",
    "partitions": "loops that are split into forward and backward pass by hand",
}


def missing(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a public module: submodules come when asked for; see Note [Public surface] for the rest."""

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):  # Python asks for these itself
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if hasattr(sys.modules[module], "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None:
            return importlib.import_module(f"{module}.{name}")
        from torch_xla._src.surface import table

        entry = table.find(module, name)
        if entry is not None and entry.waits_for is not None:
            made = stand_in(entry)
            setattr(sys.modules[module], name, made)
            return made
        if entry is not None and entry.state == "absent":
            raise AttributeError(f"{module}.{name} of PyTorch/XLA is not offered{entry.reason}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def stand_in(entry: Entry) -> Any:
    """A function or class with the entry's name and signature that raises NotImplementedError when it is called."""
    assert entry.waits_for is not None
    what = MISSING[entry.waits_for]
    message = f"{entry.module}.{entry.name} needs {what}, which this version of torch_xla does not have yet"

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(message)

    made: Any = refuse
    if entry.is_class:

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(message)

        made = type(entry.name, (), {"__init__": __init__, "apply": staticmethod(refuse)})
    made.__name__ = made.__qualname__ = entry.name
    made.__module__, made.__doc__ = entry.module, f"Not there yet: {message}."
    made.__signature__ = entry.signature or inspect.Signature()
    return made
