"""Names of PyTorch/XLA's `torch_xla.core.xla_model`, usually imported as `xm`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import torch

from torch_xla._src import api, collectives, nested, surface
from torch_xla._src.api import wait_device_ops
from torch_xla._src.deprecation import alias
from torch_xla._src.graph.tensor import check_device
from torch_xla._src.nested import ToXlaTensorArena
from torch_xla._src.rate import RateTracker
from torch_xla._src.runtime import client, memory, rng
from torch_xla._src.step_closures import add_step_closure
from torch_xla._src.step_closures import run_step_closures as _run_step_closures
from torch_xla.core import xla_env_vars

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"
XLA_LIB = torch.library.Library("xla", "FRAGMENT")  # where user code registers ops of namespace xla

# ---- devices --------------------------------------------------------------------------------------------------------


def _xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    return api.device(n)


def _mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    api.sync(wait, reset_scope)


xla_device = alias("torch_xla.core.xla_model.xla_device", "torch_xla.device", _xla_device)
mark_step = alias("torch_xla.core.xla_model.mark_step", "torch_xla.sync", _mark_step)


def get_xla_supported_devices(max_devices: int | None = None) -> list[str]:
    """Names of the xla devices, as `xla:0`."""
    return [str(d) for d in api.devices()][:max_devices]


def xla_device_hw(device: Any) -> str:
    """The hardware behind an xla device: `CPU`, `CUDA` or `TPU`; for another device its type in capitals."""
    kind = torch.device(device).type
    return client.device_type() if kind == "xla" else kind.upper()


def xla_device_kind(device: Any = None) -> str:
    """The vendor's name for the hardware, as `cpu` or `TPU v5 lite`."""
    return str(client.default_device().device_kind)


def xla_real_devices(devices: Iterable[Any] | None = None) -> list[str]:
    """The hardware device behind each xla device (all of them by default), as `CPU:0`."""
    real = api.real_devices()
    if devices is None:
        return real
    return [real[torch.device(device).index or 0] for device in devices]


def xla_replication_devices(local_devices: Sequence[Any] | None = None) -> list[str]:
    """The hardware devices that replicate one another. RuntimeError unless all local devices are given."""
    local = api.devices() if local_devices is None else local_devices
    if len(local) != api.device_count():
        raise RuntimeError(
            f"Cannot replicate if number of devices ({len(local)}) is different from {api.device_count()}"
        )
    return xla_real_devices(local)


def set_replication(device: Any, devices: Sequence[Any] | None) -> None:
    """Says which devices replicate `device`. Nothing to do: a process computes on one device or shards over all."""
    for one in [device, *(devices or ())]:
        if torch.device(one).type != "xla":
            raise ValueError(f"{one} is no xla device")


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on device xla."""
    return tensor.device.type == "xla"


# ---- processes ------------------------------------------------------------------------------------------------------


def get_local_ordinal() -> int:
    """The number of this process among those of this machine."""
    return collectives.ordinal()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is the first process, of this machine if `local`."""
    return collectives.ordinal() == 0


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Prints on the first process, to `fd` or standard output."""
    if is_master_ordinal(local):
        print(*args, file=fd or sys.stdout, flush=flush)


def _ordinal_or(defval: int = 0) -> int:
    return collectives.ordinal()


def _world_size_or(defval: int = 1) -> int:
    return collectives.world_size()


def _parse_xla_device(device: Any) -> tuple[str, int]:
    device = torch.device(device)
    return device.type.upper(), device.index or 0


get_ordinal = alias("torch_xla.core.xla_model.get_ordinal", "torch_xla.runtime.global_ordinal", _ordinal_or)
xrt_world_size = alias("torch_xla.core.xla_model.xrt_world_size", "torch_xla.runtime.world_size", _world_size_or)
parse_xla_device = alias("torch_xla.core.xla_model.parse_xla_device", "torch.device", _parse_xla_device)


def all_reduce(
    reduce_type: str, inputs: Any, scale: float = 1.0, groups: collectives.Groups = None, pin_layout: bool = True
) -> Any:
    """Reduces over all processes, or those of each group; then multiplies by `scale`.

    A tensor gives a new one; the tensors of a list are changed in place, and the list is returned. For a process that is
    alone this is a copy, not scaled, unless XLA_ALWAYS_ALLREDUCE is set.
    """
    return collectives.all_reduce(reduce_type, inputs, scale, groups)


def all_gather(
    value: Any,
    dim: int = 0,
    groups: collectives.Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """The tensors of all processes, concatenated along `dim`, into `output` if given.

    A list of tensors gives a list and needs pin_layout=False.
    """
    return collectives.all_gather(value, groups, output, pin_layout)


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: collectives.Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduces over all processes, multiplies by `scale`, and keeps this process's part of `shard_count` along a dim."""
    return collectives.reduce_scatter(reduce_type, input, scale, scatter_dim, shard_count, groups, output)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: collectives.Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Sends part i along `split_dimension` to process i; concatenates what arrives along `concat_dimension`."""
    return collectives.all_to_all(value, split_count, groups)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What process a sends to process b for each pair [a, b]; zeros where nothing is sent."""
    return collectives.collective_permute(value, pairs)


def collective_broadcast(
    tensors: Sequence[torch.Tensor], root_ordinal: int = 0, groups: collectives.Groups = None, pin_layout: bool = True
) -> None:
    """Writes to the tensors, in place, what they hold on process `root_ordinal`."""
    collectives.collective_broadcast(tensors, root_ordinal, groups)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives parameters and buffers what they are on the first process, then syncs."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    api.sync()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] | None = None) -> list[bytes]:
    """Waits for all processes; returns their payloads, by ordinal. TypeError if the payload is no bytes."""
    return collectives.rendezvous(payload, replicas)


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """The same as `rendezvous`."""
    return collectives.rendezvous(payload, ordinals)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the list of all processes' `data`, with xla tensors on the CPU. Any picklable data will do."""
    return collectives.mesh_reduce(data, reduce_fn)


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Any = (0,)) -> Any:
    """`target(*data)` on the processes in `ordinals`, with xla tensors in `data` on the CPU; None on the others."""
    chosen = {ordinals} if isinstance(ordinals, int) else set(ordinals)
    if collectives.ordinal() not in chosen:
        return None
    arguments = data if isinstance(data, tuple) else (data,)
    return target(*nested.to_cpu(list(arguments)))


# ---- training -------------------------------------------------------------------------------------------------------


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: collectives.Groups = None, pin_layout: bool = True
) -> None:
    """Averages the gradients of the optimizer's parameters over all processes, in place."""
    count = collectives.world_size() if groups is None else len(groups[0])
    if count > 1:
        all_reduce(REDUCE_SUM, _fetch_gradients(optimizer), scale=1.0 / count, groups=groups, pin_layout=pin_layout)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: collectives.Groups = None,
    pin_layout: bool = True,
) -> Any:
    """`reduce_gradients`, then `optimizer.step(**optimizer_args)`, whose value it returns. barrier: also sync."""
    reduce_gradients(optimizer, groups, pin_layout)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        api.sync()
    return result


# ---- random state, memory -------------------------------------------------------------------------------------------


def set_rng_state(seed: int, device: Any = None) -> None:
    """Sets the random state of device xla, an integer."""
    rng.set_state(seed)


def get_rng_state(device: Any = None) -> int:
    """The random state of device xla, an integer of 64 bits with a sign, which changes with use."""
    state = rng.get_state()
    return state - 2**64 if state >= 2**63 else state  # accelerate puts it into a tensor of int64


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """A context after which the random state is what it was before."""
    state = rng.get_state() if enabled else 0
    try:
        yield
    finally:
        if enabled:
            rng.set_state(state)


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Bytes on the device: `bytes_used`, `bytes_limit`, `peak_bytes_used`, and the older `kb_total`, `kb_free`.

    ValueError if `device` (None: the default) is no xla device, RuntimeError if it is not there.
    """
    asked = torch.device("xla", device) if isinstance(device, int) else torch.device(device or "xla")
    if asked.type != "xla":
        raise ValueError(f"memory of an xla device is known here, not that of {asked}")
    check_device(asked)
    return memory.info()


# ---- moving and saving ----------------------------------------------------------------------------------------------


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return nested.to_cpu(data) if convert else data


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """`torch.save` of `data` with its xla tensors moved to the CPU, by the first process unless `master_only` is False.

    All processes have to call it. global_master: the first of all, not of each machine.
    """
    converted = nested.to_cpu(data)
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(converted, file_or_path)


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """`datas` with all CPU tensors inside it moved to `device`. A bare tensor gives a list of one.

    input_sharding: has to be None, as this version does not shard.
    """
    if input_sharding is not None:
        raise NotImplementedError(
            "input_sharding needs sharding over several devices, which torch_xla does not have yet"
        )
    return nested.to_device(datas, torch.device(device))


def check_view_sharing(obj: Any) -> None:
    """Raises nothing: tensors that share a storage on device xla are written to together, as on the CPU."""


# ---- the pending recording ------------------------------------------------------------------------------------------


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Computes these tensors. What else is pending is launched in the same program, as that is no more work later."""
    from torch_xla._src.graph.inspect import materialize

    materialize(tensors)


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Gives the tensors, in place, their own values behind a barrier that XLA moves no computation across."""
    from torch_xla._src.device.barrier import optimization_barrier_

    optimization_barrier_(tensors)


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The StableHLO text of the pending recording that computes `tensors` (all that are pending by default)."""
    from torch_xla._src.graph import inspect

    return inspect.stablehlo(tensors)


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """The same as bytecode (MLIR bytecode of the StableHLO module)."""
    from torch_xla._src.graph import inspect

    return inspect.stablehlo_bytecode(tensors)


__all__ = [
    "REDUCE_AND", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_MUL", "REDUCE_OR", "REDUCE_SUM", "XLA_LIB", "RateTracker",
    "ToXlaTensorArena", "_run_step_closures", "add_step_closure", "all_gather", "all_reduce", "all_to_all",
    "broadcast_master_param", "check_view_sharing", "collective_broadcast", "collective_permute", "do_on_ordinals",
    "fork_rng", "get_local_ordinal", "get_memory_info", "get_ordinal", "get_rng_state", "get_stablehlo",
    "get_stablehlo_bytecode", "get_xla_supported_devices", "is_master_ordinal", "is_xla_tensor", "mark_step",
    "master_print", "mesh_reduce", "optimization_barrier_", "optimizer_step", "parse_xla_device", "reduce_gradients",
    "reduce_scatter", "rendezvous", "save", "send_cpu_data_to_device", "set_replication", "set_rng_state", "unlazy",
    "wait_device_ops", "xla_device", "xla_device_hw", "xla_device_kind", "xla_env_vars", "xla_real_devices",
    "xla_rendezvous", "xla_replication_devices", "xrt_world_size",
]  # fmt: skip

__getattr__ = surface.missing(__name__)
