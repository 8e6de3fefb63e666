"""`python -m torch_xla.report` prints what an issue needs to say: versions, devices, environment, cache, last compiles.

`torch_xla.report.report()` gives the same text, with the compiles of the running process.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from torch_xla._src.compile import causes, compile_log

_PACKAGES = (
    "torch_xla",
    "torch",
    "jax",
    "jaxlib",
    "numpy",
    "libtpu",
    "ml_dtypes",
    "torchvision",
    "accelerate",
    "transformers",
)
_VARIABLES = (
    "XLA_",
    "PJRT_",
    "PT_XLA_",
    "TPU_",
    "LIBTPU_",
    "JAX_",
    "CUDA_VISIBLE",
    "NVIDIA_VISIBLE",
    "TF_CPP_",
    "TORCH_",
)
_SINGLE = (
    "CPU_NUM_DEVICES",
    "USE_TORCH_XLA",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMP_NUM_THREADS",
)
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY")
_NUM_COMPILES = 10


def report() -> str:
    """The text, in sections. Starts the client; a device that cannot start is part of the report, not an error."""
    sections = {
        "Versions": _versions(),
        "Devices": _devices(),
        "Plugins": _plugins(),
        "Environment": _environment(),
        "Compilation cache": _cache(),
        "Last compiles": _compiles(),
    }
    lines = []
    for title, found in sections.items():
        lines += [title, *(f"  {line}" for line in found), ""]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    if package == "torch":
        return str(torch.__version__)  # with the kind of its build, which the metadata of some releases leave out
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()} on {platform.platform()}"
    for package in _PACKAGES:
        if (found := _version(package)) is not None:
            yield f"{package} {found}"


def _devices() -> Iterator[str]:
    from torch_xla._src.runtime import client, memory

    try:
        for number, device in enumerate(client.devices()):
            yield f"xla:{number} {device.platform} {device.device_kind}"
        info = memory.info()
        yield f"memory in use {info['bytes_used']:,} of {info['bytes_limit']:,} bytes"
    except Exception as error:
        yield f"none could be started: {type(error).__name__}: {error}"


def _plugins() -> Iterator[str]:
    found = list(importlib.metadata.entry_points(group="jax_plugins"))
    for entry in found:
        yield f"{entry.name} ({entry.value})"
    if not found:
        yield "none beside what JAX itself brings"


def _environment() -> Iterator[str]:
    found = sorted(name for name in os.environ if name.startswith(_VARIABLES) or name in _SINGLE)
    for name in found:
        hidden = any(word in name for word in _SECRET)
        yield f"{name}={'(hidden)' if hidden else os.environ[name]}"
    if not found:
        yield "none of the variables that matter is set"


def _cache() -> Iterator[str]:
    from torch_xla._src.compile import disk_cache, program_cache

    directory = disk_cache.directory()
    if directory is None:
        yield "on disk: off"
    else:
        sizes = [file.stat().st_size for file in _files(directory)]
        yield f"on disk: {directory}, {len(sizes)} programs, {sum(sizes):,} bytes"
    yield f"in this process: {program_cache.size()} of at most {program_cache.capacity()} programs"


def _files(directory: Path) -> list[Path]:
    return [file for file in directory.iterdir() if not file.name.startswith(".")] if directory.is_dir() else []


def _compiles() -> Iterator[str]:
    own = list(causes.history)
    found: Iterable[causes.Compile] = own or compile_log.read()
    shown = list(found)[-_NUM_COMPILES:]
    yield "of this process" if own else "of earlier processes, from the cache directory" if shown else "none known"
    for one in shown:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.when))
        yield (
            f"{when} {one.seconds:.2f} s, {one.num_rows} ops, {one.num_inputs} inputs, {one.num_outputs} outputs: "
            f"{one.cause}, at {one.line or 'an unknown line'}"
        )
        yield from (f"  {line}" for line in one.why.splitlines())


if __name__ == "__main__":
    sys.stdout.write(report())
