"""Memory of mapped files: let go once its contents are on the device.

Note [Mapped checkpoints]
A checkpoint that is mapped (safetensors, `torch.load(mmap=True)`) is read as its tensors are copied, and what has been read
counts as memory of the process until the file is unmapped: after the last tensor, the whole file. So an upload takes the
pages that it has read out of the process again. They stay in the page cache, and come back if they are touched.

Only pages that still are the file's may go: one that has been written to under a private mapping exists nowhere else. Linux
says of each page whether it is (`/proc/self/pagemap`, bit 61: file page or shared memory; bit 62: swapped out). Elsewhere
nothing is let go.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache
from typing import Any

import numpy as np

_SMALLEST = 1 << 16  # bytes; asking about less is not worth its time
_DONTNEED = 4  # MADV_DONTNEED of Linux
_OF_FILE, _SWAPPED = np.uint64(1 << 61), np.uint64(1 << 62)
_PRESENT = np.uint64(1 << 63)


@cache
def _pagemap() -> int | None:
    """A descriptor of the table of this process's pages, or None where there is none."""
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC) if sys.platform == "linux" else None
    except OSError:
        return None


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


def _entries(first: int, count: int) -> Any:
    """The entries of pages in the table, uint64[count]; fewer if they cannot be read."""
    table = _pagemap()
    if table is None:
        return np.zeros(0, np.uint64)
    try:
        return np.frombuffer(os.pread(table, 8 * count, 8 * first), np.uint64)
    except OSError:
        return np.zeros(0, np.uint64)


def let_go(address: int, num_bytes: int) -> None:
    """Takes whole pages of `[address, address + num_bytes)` out of the process, if all of them are an unchanged file's."""
    first, end = -(-address // mmap.PAGESIZE), (address + num_bytes) // mmap.PAGESIZE
    if num_bytes < _SMALLEST or not _is_of_file(_entries(first, 1)):
        return
    entries = _entries(first, end - first)
    if len(entries) == end - first and _is_of_file(entries):
        _madvise()(first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE, _DONTNEED)


def _is_of_file(entries: Any) -> bool:
    of_file = (entries & _OF_FILE) != 0
    absent = (entries & (_PRESENT | _SWAPPED)) == 0
    return len(entries) > 0 and bool((of_file | absent).all()) and bool(of_file.any())


def after_fork() -> None:
    """In a forked child: the table of pages is its own."""
    _pagemap.cache_clear()


os.register_at_fork(after_in_child=after_fork)
