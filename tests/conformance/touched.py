"""Which entries a change of lowerings concerns."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance.entries import entries
from torch_xla._src.ops import registry
from torch_xla._src.ops.lower import load_families

_FAMILIES = "src/torch_xla/_src/ops"


def touched(revision: str, known: Mapping[tuple[str, str], dict[str, Any]]) -> set[str]:
    """Names of the entries that call an op lowered in a file that differs from git's `revision`.

    known: results of an earlier run, which tell what an entry calls. Of an entry without one, only its own name is known.
    """
    command = ["git", "diff", "--name-only", revision, "--", _FAMILIES]
    paths = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    modules = {f"torch_xla._src.ops.{Path(path).stem}" for path in paths}
    load_families()
    lowered = {name for name in registry.lowered_names() if registry._TABLE[name].fn.__module__ in modules}
    packets = {".".join(name.split(".")[:2]) for name in lowered}
    called: dict[str, set[str]] = {name: {f"aten.{name.partition('.')[0]}"} for name in entries()}
    for (name, _), result in known.items():
        called.setdefault(name, set()).update(result.get("ops", []))
    return {name for name, ops in called.items() if name in entries() and ops & packets}
