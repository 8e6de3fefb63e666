"""The persistent compilation cache: a second process does not compile what an earlier one did.

On by default. Programs are kept by their recordings, if they can be (Note [Fingerprints]): a process that finds one there
neither traces nor lowers. Of others, and of what the user jits, JAX decides what is kept, keyed by the lowered program,
compile options and versions.

Note [Files of the disk cache]
JAX writes an entry in place: another process may read half of it, and after a crash the half stays, since an entry that
is there is never written again. So the files are ours: written beside their place, moved there in one step, and read
with a checksum; one that fails it is removed, and the program is compiled and kept again.

Note [Loaded programs are not kept]
On CPU an executable that was loaded from a file has let go of its machine code: written to a file again, it loads, and
misses its functions when it runs. So what JAX compiles to be kept by its recording (`compiling_to_keep`) must not come out
of JAX's own entries, where another release of this package may have left the same lowered program.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from torch_xla._src import environment
from torch_xla._src.runtime import metrics

_RECORDING = "recording-"  # begins the keys of programs that are kept by their recordings
_SUFFIX = ".program"
_LIBRARIES = (b"lapack", b"solver", b"blas")  # what calls of libraries have in their names
_DIGEST = hashlib.sha256().digest_size


class ProgramFiles:
    """Compiled programs by key, one file each: a SHA-256 digest of the contents, then the contents.

    What JAX calls its CacheInterface.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory

    def _file(self, key: str) -> Path:
        return self._path / (key + _SUFFIX)

    def get(self, key: str) -> bytes | None:
        """The contents kept under `key`; None if there are none, or if the file is not what was written."""
        file = self._file(key)
        try:
            data = file.read_bytes()
        except OSError:
            metrics.count("PersistentCacheMiss")
            return None
        digest, contents = data[:_DIGEST], data[_DIGEST:]
        if hashlib.sha256(contents).digest() == digest:
            metrics.count("PersistentCacheHit")
            return contents
        metrics.count("PersistentCacheDeserializeFailure")
        with contextlib.suppress(OSError):  # another process may have removed or replaced it
            file.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps `value` under `key`. A full or read-only disk keeps nothing, nor does XLA_PERSISTENT_CACHE_READ_ONLY."""
        if environment.flag("XLA_PERSISTENT_CACHE_READ_ONLY"):
            return
        with contextlib.suppress(OSError):
            descriptor, name = tempfile.mkstemp(dir=self._path, prefix=".unfinished-")
            try:
                with open(descriptor, "wb") as file:
                    file.write(hashlib.sha256(value).digest())
                    file.write(value)
                os.replace(name, self._file(key))
            except BaseException:
                os.unlink(name)
                raise


def default_directory() -> Path:
    """Where compiled programs are kept unless the user says otherwise."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "torch_xla" / "programs"


def directory() -> Path | None:
    """Where programs are kept: `XLA_PERSISTENT_CACHE_PATH`, or a directory of the user's; None if they are not."""
    path = os.environ.get("XLA_PERSISTENT_CACHE_PATH", str(default_directory()))
    return Path(path) if path else None


class _FilesOfJax(ProgramFiles):
    """The files as JAX sees them: none, in a block of `compiling_to_keep`."""

    def get(self, key: str) -> bytes | None:
        return None if _bypassed.get() else super().get(key)

    def put(self, key: str, value: bytes) -> None:
        if not _bypassed.get():
            super().put(key, value)


_bypassed: ContextVar[bool] = ContextVar("_bypassed", default=False)


@cache
def enable() -> ProgramFiles | None:
    """Turns JAX's cache on, once, unless the user configured it or set `XLA_PERSISTENT_CACHE_PATH` to an empty string.

    Returns the files that are used from now on, if any.
    """
    path = directory()
    if path is None or jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # a read-only home: compile each time
    jax.config.update("jax_compilation_cache_dir", str(path))
    # JAX keeps only what took over a second to compile; many small programs add up to a slow start too.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return ProgramFiles(path) if _use(_FilesOfJax(path)) else None


def _use(files: _FilesOfJax) -> bool:
    """Puts `files` where JAX keeps its cache of this process; JAX has no public call for that.

    False in a release of JAX that keeps it elsewhere: JAX's own files do, and programs are not kept by their recordings.
    """
    try:
        from jax._src import compilation_cache

        with compilation_cache._cache_initialized_mutex:
            compilation_cache._cache = cast(Any, files)
            compilation_cache._cache_initialized = True
    except (ImportError, AttributeError):
        return False
    return True


class Kept(NamedTuple):
    """A program as it is kept: the executable, and what else tracing has told. checks: numbers of rows, errors, texts."""

    executable: Any
    checks: list[tuple[int, type[Exception], str]]
    undone: dict[int, Any]


def is_used() -> bool:
    """Whether programs are kept by their recordings in this process."""
    return enable() is not None and directory() is not None


def load(fingerprint: str, num_inputs: tuple[int, int, int], num_live: int, device: Any) -> Kept | None:
    """The program kept under a fingerprint; None if there is none, or none that this machine can load.

    num_inputs: how many donated leaves, other leaves and flags of earlier checks it takes. num_live: outputs it
    returns, beside those about its checks.
    """
    files = enable()
    data = None if files is None else files.get(_RECORDING + fingerprint)
    if data is None:
        return None
    try:
        payload, checks, undone = pickle.loads(zlib.decompress(data))
        given, kept, watched = num_inputs
        if any(name in payload for name in _LIBRARIES):
            _find_libraries(device)
        inputs = jax.tree.structure((([0] * given, [0] * kept, 0, 0, 0, [0] * watched), {}))
        outputs = jax.tree.structure([0] * (num_live + 2 * bool(checks)))
        executable = deserialize_and_load(payload, inputs, outputs, backend=device.client, execution_devices=[device])
    except Exception:  # of whatever class the plugin raises: for another machine, of another release
        metrics.count("PersistentCacheDeserializeFailure")
        return None
    return Kept(executable, checks, undone)


@cache
def _find_libraries(device: Any) -> None:
    """Has JAX look up the functions of LAPACK and its like, which it does when it lowers a call of one.

    A program that was loaded without a lowering calls them all the same, and an address that is not there ends the process.
    """
    matrix = jax.ShapeDtypeStruct((2, 2), np.float32, sharding=jax.sharding.SingleDeviceSharding(device))
    for function in (jnp.linalg.cholesky, jnp.linalg.qr, jnp.linalg.eigh, jnp.linalg.svd, lax.linalg.lu):
        jax.jit(function).lower(matrix)


def keep(fingerprint: str, program: Kept) -> None:
    """Keeps a program under its fingerprint, unless it cannot be written to a file."""
    files = enable()
    if files is None:
        return
    try:
        payload, _, _ = serialize(program.executable)
        data = zlib.compress(pickle.dumps((payload, program.checks, program.undone)), 1)
    except Exception:  # not every plugin can, nor every program: it is compiled again next time
        metrics.count("PersistentCacheSerializeFailure")
        return
    files.put(_RECORDING + fingerprint, data)


@contextlib.contextmanager
def compiling_to_keep() -> Iterator[None]:
    """A block in which JAX neither reads nor writes entries of its own. See Note [Loaded programs are not kept]."""
    token = _bypassed.set(True)
    try:
        yield
    finally:
        _bypassed.reset(token)
