"""The persistent compilation cache: a second process does not compile what an earlier one did.

JAX's own cache is used, keyed by the program, compile options and versions. On by default.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import jax


def default_directory() -> Path:
    """Where compiled programs are kept unless the user says otherwise."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "torch_xla" / "programs"


@cache
def enable() -> None:
    """Turns JAX's cache on, once, unless the user configured it or set `XLA_PERSISTENT_CACHE_PATH` to an empty string."""
    path = os.environ.get("XLA_PERSISTENT_CACHE_PATH", str(default_directory()))
    if not path or jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home: compile each time
    jax.config.update("jax_compilation_cache_dir", path)
    # JAX keeps only what took over a second to compile; many small programs add up to a slow start too.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
