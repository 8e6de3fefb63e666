"""TorchDynamo must not trace this package or JAX: recording an op is no part of the user's program.

Dynamo looks at every Python frame that runs after a graph break, also those that C++ calls back into. It keeps a list of
packages to leave alone; torch_xla and JAX are added to it when dynamo is imported, which this module does not do itself.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_RULES = "torch._dynamo.trace_rules"
_SKIPPED = ("torch_xla", "jax", "jaxlib")


def _skip(rules: Any) -> None:
    for name in _SKIPPED:
        rules.add(name)


class _Loader(importlib.abc.Loader):
    """The loader of trace_rules, which adds to its list once it has been loaded."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.original.exec_module(module)
        _skip(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds trace_rules as usual, once, and wraps its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Adds to dynamo's list now, or when dynamo is imported."""
    if _RULES in sys.modules:
        _skip(sys.modules[_RULES])
    else:
        sys.meta_path.insert(0, _Finder())
