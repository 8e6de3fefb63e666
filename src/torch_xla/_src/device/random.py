"""`torch.manual_seed` seeds xla too; `torch.xla` is the device module that fork_rng and checkpointing ask for state."""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

import torch

from torch_xla._src.api import wait_device_ops
from torch_xla._src.runtime import rng


def get_rng_state(device: Any = "xla") -> torch.Tensor:
    """The random state of device xla as a uint8 tensor of 8 elements, on the CPU."""
    return torch.tensor(list(rng.get_state().to_bytes(8, "little")), dtype=torch.uint8, device="cpu")


def set_rng_state(new_state: torch.Tensor, device: Any = "xla") -> None:
    """Sets the random state to one that `get_rng_state` gave."""
    rng.set_state(int.from_bytes(bytes(new_state.cpu().tolist()), "little"))


def manual_seed_all(seed: int) -> None:
    """Seeds device xla. `torch.manual_seed` calls it."""
    rng.seed(seed)


def _module() -> types.ModuleType:
    """What `torch._register_device_module("xla", ...)` wants: the interface that torch.cuda has, as far as it applies."""
    module = types.ModuleType("torch.xla", "Device module of xla, provided by torch_xla.")

    def device_count() -> int:
        from torch_xla._src.runtime import client

        return len(client.devices())

    members = {
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "manual_seed": manual_seed_all,
        "manual_seed_all": manual_seed_all,
        "initial_seed": rng.get_state,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_initialized": True,  # checkpointing saves random state only then
        "device": lambda index: contextlib.nullcontext(),
        "synchronize": lambda device=None: wait_device_ops(),
        "_is_in_bad_fork": lambda: False,
        "device_count": device_count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    module.__dict__.update(members)
    return module


class _GeneratorType(type):
    """The type of `torch.Generator`: calls make the C++ object of that name, which is an instance of it as before."""

    def __call__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type == "xla":
            raise RuntimeError(
                "device xla keeps its random state itself, so there is no torch.Generator for it: seed it with torch.manual_seed "
                "or torch_xla.manual_seed, save its state with torch.xla.get_rng_state, or pass a torch.Generator of the CPU, "
                "which random functions on xla tensors accept"
            )
        return torch._C.Generator(device)

    def __getattr__(cls, name: str) -> Any:
        return getattr(torch._C.Generator, name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, torch._C.Generator)


def _generator_class() -> Any:
    # Stock torch's own message for device xla blames a missing library.
    members = {"__module__": "torch", "__doc__": torch._C.Generator.__doc__}
    return _GeneratorType("Generator", (), members)


def install() -> None:
    """Registers the device module, hooks into torch.manual_seed, and gives torch.Generator a message for device xla."""
    torch.Generator = _generator_class()
    if not hasattr(torch, "xla"):
        torch._register_device_module("xla", _module())
    original = torch.random._seed_custom_device

    # torch.manual_seed and torch.seed call this one by name, so those functions keep their identity.
    @functools.wraps(original)
    def seed_custom_device(seed: int) -> None:
        original(seed)
        manual_seed_all(int(seed))

    torch.random._seed_custom_device = seed_custom_device
