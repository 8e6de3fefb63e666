"""How the C library's allocator treats the buffers of programs on CPU.

Note [Memory that programs use again]
XLA on CPU takes the memory for the temporaries and outputs of each run from malloc and frees it afterwards. glibc gets
blocks of that size from the operating system and gives them back at once, so a training step writes to pages that the
system has to map and clear anew: 18,000 a step for the GPT of benchmarks/, a tenth of its time. Told to keep freed memory,
and to take it for all threads from one arena (others are too small for such blocks), it maps none.

What stays with the process is bounded: blocks above `_LARGEST` are still returned, and so is what lies free at the end
of the heap once it is more than `_KEPT`. A process that has set one of glibc's own variables, or
`TORCH_XLA_KEEP_FREED_MEMORY=0`, is left alone, and so is any other C library.

Parameters of mallopt: https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST = 1 << 27  # bytes
_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Has glibc keep freed memory for the next program; whether it does. See Note [Memory that programs use again]."""
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or os.environ.get("TORCH_XLA_KEEP_FREED_MEMORY", "1").lower() in ("0", "false"):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_TRIM_THRESHOLD, _KEPT), (_MMAP_THRESHOLD, _LARGEST), (_ARENA_MAX, 1))
    return all(mallopt(parameter, value) for parameter, value in settings)


def give_back() -> None:
    """Returns what glibc keeps of freed memory to the operating system, holes between live blocks too."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
