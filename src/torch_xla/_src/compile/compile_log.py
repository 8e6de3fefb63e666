"""The last compiles, kept beside the compilation cache for `python -m torch_xla.report`, which is a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

from torch_xla._src.compile.causes import Compile

_NAME = ".compiles"
_LIMIT = 64 << 10  # bytes; then the older half goes


def _file() -> Path | None:
    from torch_xla._src.compile import disk_cache

    directory = disk_cache.directory()
    return None if directory is None else directory / _NAME


def add(one: Compile) -> None:
    """Appends one compile. Without a cache directory, or when it cannot be written, nothing is kept."""
    file = _file()
    if file is None:
        return
    with contextlib.suppress(OSError):
        if file.exists() and file.stat().st_size > _LIMIT:
            kept = file.read_text().splitlines(keepends=True)
            file.write_text("".join(kept[len(kept) // 2 :]))
        with file.open("a") as opened:
            opened.write(json.dumps(dataclasses.asdict(one)) + "\n")


def read() -> list[Compile]:
    """The compiles that are kept, oldest first; lines that another process has half written are passed over."""
    file = _file()
    found: list[Compile] = []
    if file is not None and file.exists():
        for line in file.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                found.append(Compile(**json.loads(line)))
    return found
