"""Names of PyTorch/XLA's `torch_xla._internal.tpu`: the TPU chips of this machine, without starting a client."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path

from torch_xla._src import surface

_GOOGLE = "0x1ae0"  # vendor in PCI's numbering
# PCI device number -> TPU version and devices that a chip counts as.
_CHIPS = {
    "0x0027": (3, 2), "0x005e": (4, 1), "0x0062": (5, 1), "0x0063": (5, 1), "0x006f": (6, 1), "0x0076": (7, 2),
}  # fmt: skip


def _chips() -> list[tuple[int, int]]:
    found = []
    for directory in glob.glob("/sys/bus/pci/devices/*"):
        try:
            vendor = Path(directory, "vendor").read_text().strip()
            device = Path(directory, "device").read_text().strip()
        except OSError:
            continue
        if vendor == _GOOGLE and device in _CHIPS:
            found.append(_CHIPS[device])
    return found


def num_available_chips() -> int:
    """The number of TPU chips in this machine."""
    return len(_chips())


def num_available_devices() -> int:
    """The number of TPU devices of this machine: chips times devices of each; 0 without a TPU."""
    return sum(devices for _, devices in _chips())


def num_logical_cores_per_chip() -> int:
    """How many devices each chip is. RuntimeError without a TPU."""
    return _first_chip()[1]


def version() -> int:
    """The generation of the TPU (3 for 2 too). RuntimeError without a TPU."""
    return _first_chip()[0]


def _first_chip() -> tuple[int, int]:
    chips = _chips()
    if not chips:
        raise RuntimeError("there is no TPU in this machine")
    return chips[0]


def get_tpu_env() -> Mapping[str, str]:
    """What the environment says about the TPU: `ACCELERATOR_TYPE`, `TYPE` and all variables that start with TPU_."""
    found = {name: value for name, value in os.environ.items() if name.startswith("TPU_")}
    kind = os.environ.get("TPU_ACCELERATOR_TYPE") or os.environ.get("ACCELERATOR_TYPE")
    if kind is not None:
        found |= {"ACCELERATOR_TYPE": kind, "TYPE": kind}
    return found


def get_tpu_type() -> str:
    """The accelerator type, such as "v5litepod-8". RuntimeError where the environment does not say it."""
    kind = get_tpu_env().get("ACCELERATOR_TYPE")
    if kind is None:
        raise RuntimeError("the type of the TPU is not known: set TPU_ACCELERATOR_TYPE")
    return kind


def task_id() -> int | None:
    """The number of this process on its machine, from `CLOUD_TPU_TASK_ID`, or None."""
    text = os.environ.get("CLOUD_TPU_TASK_ID")
    return int(text) if text else None


def worker_id() -> int:
    """The number of this machine in its slice, from `TPU_WORKER_ID`; 0 if it is not set."""
    return int(os.environ.get("TPU_WORKER_ID") or os.environ.get("WORKER_ID") or 0)


__getattr__ = surface.missing(__name__)
