"""Names of PyTorch/XLA's `torch_xla.utils`, `load_checkpoint` and `offload_optimizer_state`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src import surface

__all__ = ["load_checkpoint", "offload_optimizer_state"]


def load_checkpoint(
    model: torch.nn.Module,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dtype: torch.dtype | str | None = None,
    strict: bool = True,
    device: Any = "xla",
) -> Any:
    """Loads files into a model on device xla, one tensor at a time: the host never holds more than the largest of them.

    The model may be on device meta, on the CPU or on xla. On xla its parameters stay the objects they are; else they are
    replaced, so make the optimizer afterwards. Names that are one parameter stay so, and one of them in the file is enough.

    path: a safetensors file, one of torch.save (loaded with `weights_only`; a state dict, or one under "state_dict",
        "model" or "model_state_dict"), an index.json of several files, a directory with one of these, or a list of them.
    dtype: what floating point tensors become, by a cast on the device; None for what the model has, "auto" for what the
        file has. strict: as in `load_state_dict`, whose missing and unexpected keys are returned.

    RuntimeError for missing and unexpected names (if strict) and other shapes, as of `load_state_dict`, and for buffers on
    device meta that are not in checkpoints. FileNotFoundError; ValueError for files of another kind; ImportError without the
    package safetensors, if it is needed.
    """
    from torch_xla._src import checkpoint_files

    return checkpoint_files.load(model, path, dtype, strict, device)


def offload_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Keeps an optimizer's state in the host's memory between steps: each step brings it to the device and takes it back.

    Momenta, averages and what else has dims of an optimizer of torch.optim, or a subclass, on device xla; step counts stay
    on the device. The copies are part of the step's program, and the tensors in `optimizer.state` the same objects as ever.
    `state_dict()` and `load_state_dict()` work as without. To compute with a tensor of the state, bring it with
    `place_to_device`. A copied or unpickled optimizer has lost this, as it loses all hooks: call it again.

    On CPU, which has one memory, it does nothing, which is logged once. A second call does nothing. TypeError for what is no
    optimizer, ValueError for one with `differentiable=True`. Source: https://docs.jax.dev/en/latest/notebooks/host-offloading.html
    """
    from torch_xla._src import offload

    offload.offload(optimizer)


__getattr__ = surface.missing(__name__)
