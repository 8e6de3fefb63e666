"""What a compiled program depends on, as one digest: recordings with equal digests compile to the same, in any process.

Note [Fingerprints]
A program that is found on disk by its recording needs no tracing, no lowering and no compilation. So the digest has to
hold everything that these three read: ops, arguments, shapes and dtypes of all rows; what `Program` is told beside them;
this package's sources; versions of torch, JAX and the plugin; settings of JAX and of the environment; device and, on CPU,
what the processor can do. Lines and module paths of user code are left out: they are metadata.

Where something cannot be put into bytes that mean the same elsewhere, there is no digest, and the program is built. That
goes for functions traced in this process (`call_jax`), for ops of other libraries, and for all programs once an op's
lowering or a decomposition of PyTorch's has been exchanged.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
import torch

from torch_xla._src.graph import contents
from torch_xla._src.graph.value import Ref, Row, Slot
from torch_xla._src.ops import registry
from torch_xla._src.ops.lower import decomposition
from torch_xla._src.runtime import client, precision

_NAMESPACES = ("aten::", "prims::", "torch_xla::")
_OF_THIS_PROCESS = ("torch_xla::call_jax",)  # takes a function by its number
_ENVIRONMENT = ("XLA_", "JAX_", "LIBTPU_", "TPU_", "PJRT_", "TORCH_XLA_", "CUDA_", "NVIDIA_")
_NOT_READ = (
    "XLA_PERSISTENT_CACHE",
    "XLA_METRICS",
    "XLA_SAVE_TENSORS",
    "XLA_COMPILATION_CACHE_SIZE",
)  # by a compilation
_PLAIN = (bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unknown(Exception):
    """Something of which nobody knows what it is in another process."""


def of(rows: Sequence[Row], leaf_buffers: Sequence[Any], also: Any) -> str | None:
    """The digest of a recording on these leaves, as hexadecimal text; None if there is none.

    also: what the program depends on beside them: numbers, and texts, in tuples and lists.
    """
    digest = hashlib.sha256()
    try:
        parts: list[str] = [_process(), _settings(), _text(also)]
        parts += map(_leaf, leaf_buffers)
        if len(set().union(*(buffer.devices() for buffer in leaf_buffers))) > 1:
            raise Unknown("several devices")
        parts += map(_row, rows)
    except Unknown:
        return None
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _row(row: Row) -> str:
    name = row.op._schema.name
    if not name.startswith(_NAMESPACES) or name in _OF_THIS_PROCESS:
        raise Unknown(name)
    if registry.lookup(row.op) is None and not _is_of_torch(row.op):
        raise Unknown(name)
    arguments = _text((row.args, row.names, row.kwargs))
    outs = ";".join(map(repr, row.outs))
    return f"{name}.{row.op._overloadname}|{arguments}|{outs}|{row.view is not None}|{row.random}|{row.checked}"


@cache
def _is_of_torch(overload: Any) -> bool:
    return str(getattr(decomposition(overload), "__module__", "")).startswith("torch.")


def _text(x: Any) -> str:
    """What stands for an argument: different for different values and types."""
    kind = type(x)
    if kind is Ref:
        return f"r{int(x)}"
    if kind is float:
        return x.hex()  # to the last bit; tells -0.0 and nan, too
    if kind is Slot:
        return f"slot {x.kind.__name__}"
    if kind is complex:
        return f"complex {x.real.hex()} {x.imag.hex()}"
    if kind in (tuple, list, frozenset, torch.Size):
        items: Iterable[Any] = sorted(x) if kind is frozenset else x
        return f"{kind.__name__}({','.join(map(_text, items))})"
    if kind in _PLAIN:
        return f"{kind.__name__} {x!r}"
    raise Unknown(kind)


def _leaf(buffer: Any) -> str:
    sharding = buffer.sharding
    if type(sharding) is not jax.sharding.SingleDeviceSharding:
        raise Unknown(sharding)
    (device,) = sharding.device_set
    return f"{buffer.shape} {buffer.dtype} {device.id} {sharding.memory_kind}"


@cache
def _process() -> str:
    """What does not change while this process runs."""
    device = client.default_device()
    versions = [sys.version, torch.__version__, jax.__version__, jaxlib.__version__, device.client.platform_version]
    where = [device.platform, device.device_kind, str(device.id), str(jax.process_count()), str(len(jax.devices()))]
    return "|".join([*versions, *where, _host() if device.platform == "cpu" else "", _sources()])


def _host() -> str:
    """What XLA compiles for on CPU: kind of processor, its features, its cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else [platform.processor()]
    kept = {line for line in lines if line.lower().startswith(("flags", "features", "model name"))}
    return "|".join([platform.machine(), str(os.cpu_count()), *sorted(kept)])


def _sources() -> str:
    """A digest of this package's code."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _settings() -> str:
    """What may change: settings of JAX, environment, the table of lowerings."""
    for lowering in registry.all_lowerings():
        if not lowering.fn.__module__.startswith("torch_xla."):
            raise Unknown(lowering.name)
    values = {
        n: v for n, v in jax.config.values.items() if "compilation_cache" not in n and "persistent_cache" not in n
    }
    variables = {n: v for n, v in os.environ.items() if n.startswith(_ENVIRONMENT) and not n.startswith(_NOT_READ)}
    mine = (precision.get(), contents.in_programs())
    return repr((sorted(values.items()), _context(), sorted(variables.items()), mine))


def _context() -> Any:
    """Settings of JAX that hold in this thread only; not every release has a name for them."""
    try:
        from jax._src import config
    except ImportError:
        return None
    settings: tuple[Any, ...] = getattr(config, "trace_context", tuple)()
    return [type(x).__name__ if type(x).__repr__ is object.__repr__ else repr(x) for x in settings]
