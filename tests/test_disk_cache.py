"""Files of the disk cache: whole or not there at all, whatever happens to a process that writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_xla._src.compile.disk_cache import ProgramFiles

SCRIPT = """
import jax, torch, torch_xla

hits = []
jax.monitoring.register_event_listener(lambda name, **kwargs: hits.append(name) if name.endswith("/cache_hits") else None)
x = torch.arange(6.0, device="xla")
print((x * x + 1).sum().item(), len(hits))
"""


def run(directory: Path) -> tuple[float, int]:
    """Runs a small program in a process of its own; its result and the number of programs found in `directory`."""
    environment = os.environ | {"XLA_PERSISTENT_CACHE_PATH": str(directory)}
    command = [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    value, hits = done.stdout.split()
    return float(value), int(hits)


def test_second_process_compiles_nothing_and_damaged_files_are_replaced(tmp_path: Path) -> None:
    value, hits = run(tmp_path)
    assert (value, hits) == (61.0, 0)
    files = sorted(tmp_path.glob("*.program"))
    assert files
    assert sorted(f for f in tmp_path.iterdir() if f.name != ".compiles") == files  # and nothing half written
    assert run(tmp_path) == (61.0, len(files))
    whole = [file.read_bytes() for file in files]
    for file, data in zip(files, whole, strict=True):
        file.write_bytes(data[: len(data) // 2])
    assert run(tmp_path) == (61.0, 0)
    assert sorted(f for f in tmp_path.iterdir() if f.name != ".compiles") == files  # and nothing half written
    assert all(len(file.read_bytes()) > len(data) // 2 for file, data in zip(files, whole))
    assert run(tmp_path) == (61.0, len(files))


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:40] + b"\0" + data[41:]]
)
def test_a_damaged_file_is_no_entry(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    files = ProgramFiles(tmp_path)
    assert files.get("key") is None
    files.put("key", b"contents" * 10)
    assert files.get("key") == b"contents" * 10
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert files.get("key") is None
    assert not file.exists()
    files.put("key", b"other")
    assert files.get("key") == b"other"


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path: Path) -> None:
    files = ProgramFiles(tmp_path / "missing")
    files.put("key", b"contents")
    assert files.get("key") is None
