"""Bytes on the device: what is live, what the device has."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from torch_xla._src.runtime import client


def live_bytes(device: Any = None) -> int:
    """Bytes of all live buffers on a device (the default one), counted from the buffers themselves."""
    device = device or client.default_device()
    live = [b for b in device.client.live_arrays() if not b.is_deleted() and device in b.devices()]
    return sum({_place(b): b.nbytes for b in live}.values())


def _place(buffer: Any) -> int:
    """Where a buffer is: several objects may stand for one, such as that by which `executions` watches it."""
    try:
        return int(buffer.unsafe_buffer_pointer())
    except Exception:  # on several devices, or on one that tells no addresses
        return id(buffer)


@cache  # asked before every launch
def host_limit() -> int:
    """Bytes of memory that this process may use: the machine's, or the control group's where that is less."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return limit
    return min(limit, int(text)) if text.isdigit() else limit


def info() -> dict[str, int]:
    """`bytes_used`, `bytes_limit`, `peak_bytes_used`, `kb_total`, `kb_free`; on CPU the limit is the machine's memory."""
    device = client.default_device()
    stats = device.memory_stats() or {}
    used = stats.get("bytes_in_use", live_bytes(device) if not stats else 0)
    limit = stats.get("bytes_limit", host_limit())
    return {
        "bytes_used": used,
        "bytes_limit": limit,
        "peak_bytes_used": stats.get("peak_bytes_in_use", used),
        "kb_total": limit // 1024,
        "kb_free": (limit - used) // 1024,
    }
