"""Names of PyTorch/XLA's C++ bindings that user code calls: `torch_xla._XLAC`. Use the public modules where you can."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

import torch_xla.debug.metrics as met
from torch_xla import version
from torch_xla._src import api, donors, eager, surface
from torch_xla._src.runtime import client, memory, metrics, rng
from torch_xla.core import xla_model as xm

# ---- tensors --------------------------------------------------------------------------------------------------------


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that all references to an xla tensor have in common, and no other live tensor has.

    `detach()` and `.data` give references to the same tensor; a view of other elements is another tensor.
    """
    _check(tensor)
    place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return hash(place) & (2**63 - 1)


def _check(tensor: torch.Tensor) -> None:
    if tensor.device.type != "xla":
        raise RuntimeError(f"Input tensor is not an XLA tensor: it is on {tensor.device}")


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """The IR text of what is pending for the tensors."""
    from torch_xla._src.graph import inspect

    return inspect.text(tensors)


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The HLO text of what is pending for the tensors."""
    from torch_xla._src.graph import inspect

    return inspect.hlo(tensors)


def _get_xla_tensors_dot(tensors: Sequence[torch.Tensor]) -> str:
    """What is pending for the tensors in the language of graphviz."""
    from torch_xla._src.graph import inspect

    return inspect.dot(tensors)


def _get_stablehlo(tensors: Sequence[torch.Tensor], device: Any, devices: Any, bytecode: bool) -> bytes:
    """The StableHLO text, or the bytecode, of what is pending for the tensors (for all if there are none)."""
    chosen = list(tensors) or None
    return xm.get_stablehlo_bytecode(chosen) if bytecode else xm.get_stablehlo(chosen).encode()


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Number, device, shape and pending op of a tensor."""
    from torch_xla._src.graph import inspect

    return inspect.debug_info(tensor, _xla_get_tensor_id(tensor))


def _get_graph_hash(tensors: Sequence[torch.Tensor]) -> bytes:
    """16 bytes that tell whether what is pending is the same computation."""
    from torch_xla._src.graph import inspect

    return bytes.fromhex(inspect.pending(tensors).graph().digest())


def _check_tensor_need_materialization(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """For each tensor whether it is an xla tensor that has yet to be computed."""
    from torch_xla._src.graph import inspect

    return [tensor.device.type == "xla" and inspect.is_pending(tensor) for tensor in tensors]


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """How a tensor is sharded; an empty string, since none is."""
    _check(tensor)
    return ""


def _get_xla_sharding_specs(tensors: Sequence[torch.Tensor]) -> list[str]:
    """The same for several tensors."""
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _get_xla_sharding_type(tensor: torch.Tensor) -> None:
    """The kind of its sharding; None, since none is sharded."""
    _check(tensor)


def _xla_clear_sharding(tensor: torch.Tensor) -> None:
    """Nothing to do: no tensor is sharded."""
    _check(tensor)


# ---- steps ----------------------------------------------------------------------------------------------------------


def _xla_step_marker(
    device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True
) -> None:
    """Launches what is pending, as `torch_xla.sync`, without step closures."""
    _launch(wait)
    metrics.count("MarkStep")


def _xla_sync_multi(
    tensors: Sequence[torch.Tensor], devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True
) -> None:
    """Computes the tensors."""
    from torch_xla._src.graph import inspect

    inspect.materialize([tensor for tensor in tensors if tensor.device.type == "xla"])
    if wait:
        api.wait_device_ops()


def _xla_sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """Launches what is pending."""
    _launch(wait)


def _launch(wait: bool) -> None:
    if (recorder := api.recorder()) is not None:
        recorder.cut()
        if wait:
            api.wait_device_ops()


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Blocks until the device has finished what was launched."""
    api.wait_device_ops()


# ---- devices --------------------------------------------------------------------------------------------------------


def _xla_get_default_device() -> str:
    """The name of the default device."""
    return str(api.device())


def _xla_set_default_device(device: str) -> str:
    """Chooses the default device; returns the one before."""
    before = _xla_get_default_device()
    api.device(torch.device(device).index or 0)
    return before


def _xla_real_devices(devices: Sequence[str] | None = None) -> list[str]:
    """The hardware device behind each of the xla devices."""
    return xm.xla_real_devices(devices)


def _xla_get_devices() -> list[str]:
    """The hardware devices of this process, as `CPU:0`."""
    return api.real_devices()


_xla_get_all_devices = _xla_get_all_runtime_devices = _xla_get_devices


def _xla_num_devices() -> int:
    """How many devices this process computes on."""
    return api.device_count()


def _xla_num_runtime_devices() -> int:
    """How many hardware devices this process has."""
    return len(client.devices())


def _xla_runtime_is_initialized() -> bool:
    """Whether the client is up."""
    return client.is_initialized()


def _init_computation_client() -> None:
    """Starts the client."""
    client.devices()


def _xla_device_kind(device: str = "") -> str:
    """The vendor's name for the hardware."""
    return xm.xla_device_kind(device or None)


def _xla_get_device_hw_type(tensor: torch.Tensor) -> str:
    """The hardware behind a tensor, as `CPU`."""
    return xm.xla_device_hw(tensor.device)


def _xla_get_process_index() -> int:
    """The number of this process."""
    return xm.get_local_ordinal()


def _xla_get_num_processes() -> int:
    """How many processes work together."""
    return 1


def _xla_memory_info(device: str = "") -> dict[str, int]:
    """Bytes on the device, as `xm.get_memory_info`."""
    return memory.info()


def _xla_set_rng_seed(seed: int, device: str = "") -> None:
    """Sets the random state."""
    rng.seed(seed)


def _xla_get_rng_seed(device: str = "") -> int:
    """The random state."""
    return rng.get_state()


# ---- metrics --------------------------------------------------------------------------------------------------------

_xla_counter_names, _xla_counter_value = met.counter_names, met.counter_value
_xla_metric_names, _xla_metric_data = met.metric_names, met.metric_data
_xla_metrics_report, _short_xla_metrics_report = met.metrics_report, met.short_metrics_report
_clear_xla_counters, _clear_xla_metrics = met.clear_counters, met.clear_metrics
_get_executed_fallback_ops = met.executed_fallback_ops


def _xla_increment_counter(name: str, by: int) -> None:
    """Adds to a counter."""
    metrics.count(name, by)


# ---- settings -------------------------------------------------------------------------------------------------------


def _set_use_eager_mode(enable: bool) -> None:
    """Turns eager mode on or off."""
    eager.set_enabled(enable)


def _get_use_eager_mode() -> bool:
    """Whether eager mode is on."""
    return eager.enabled


def _set_ir_debug(enable: bool) -> None:
    """Whether IR texts name the user's lines."""
    from torch_xla._src.graph import printing

    printing.ir_debug = enable


def _get_ir_debug() -> bool:
    """Whether IR texts name the user's lines."""
    from torch_xla._src.graph import printing

    return printing.shows_places()


def _xla_set_mat_mul_precision(precision: str) -> None:
    """As `torch_xla.backends.set_mat_mul_precision`."""
    backends: Any = importlib.import_module("torch_xla.backends")
    backends.set_mat_mul_precision(precision)


def _xla_get_mat_mul_precision() -> str:
    """As `torch_xla.backends.get_mat_mul_precision`."""
    backends: Any = importlib.import_module("torch_xla.backends")
    return str(backends.get_mat_mul_precision())


def _xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision: bool = True) -> None:
    """The precision "highest", or "default"."""
    _xla_set_mat_mul_precision("highest" if use_full_mat_mul_precision else "default")


_set_buffer_donation, _get_buffer_donation = donors.set_buffer_donation, donors.get_buffer_donation
_xla_set_enable_alias_with_buffer_donor_config = donors.set_alias_with_buffer_donor_config


def _get_git_revs() -> dict[str, str]:
    """The versions of this package and of torch."""
    return {"xla": version.__version__, "torch": str(torch.version.git_version)}


__getattr__ = surface.missing(__name__)
