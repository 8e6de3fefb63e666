"""Names of PyTorch/XLA's `torch_xla.utils.serialization`, usually imported as `xser`: one file a tensor.

Tensors are copied to the host one after the other, so saving takes no more host memory than the largest of them. On
disk there are `path`, with the structure, and `path.tensors/tensor_N.pt`, which stock torch reads.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch

from torch_xla._src import surface
from torch_xla._src.nested import for_each_instance_rewrite
from torch_xla.core import xla_model as xm


class TensorReference:
    """Stands for a tensor in the saved structure; `tid` is the number of its file."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


def _folder(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) + ".tensors"


def save(data: Any, path: str | os.PathLike[str], master_only: bool = True, global_master: bool = False) -> None:
    """Saves nested `data` with its tensors, on whatever device, as CPU tensors. All processes have to call it.

    master_only: only the first process writes, of each machine or (global_master) of all.
    """
    writes = not master_only or xm.is_master_ordinal(local=not global_master)
    folder = _folder(path)
    if writes:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    numbers: dict[int, int] = {}
    kept = []  # so that no id is used twice

    def to_file(tensor: torch.Tensor) -> TensorReference:
        if id(tensor) not in numbers:
            kept.append(tensor)
            numbers[id(tensor)] = number = len(numbers)
            if writes:
                torch.save(tensor.cpu(), os.path.join(folder, f"tensor_{number}.pt"))
        return TensorReference(numbers[id(tensor)])

    structure = for_each_instance_rewrite(data, lambda x: isinstance(x, torch.Tensor), to_file)
    if writes:
        torch.save(structure, path)
    xm.rendezvous("torch_xla.utils.serialization.save")


def load(path: str | os.PathLike[str]) -> Any:
    """What `save` was given, with CPU tensors. Files may hold any pickled object: load only what you trust."""
    folder = _folder(path)
    loaded: dict[int, torch.Tensor] = {}

    def from_file(reference: TensorReference) -> torch.Tensor:
        if reference.tid not in loaded:
            file = os.path.join(folder, f"tensor_{reference.tid}.pt")
            loaded[reference.tid] = torch.load(file, weights_only=False)
        return loaded[reference.tid]

    structure = torch.load(path, weights_only=False)
    return for_each_instance_rewrite(structure, lambda x: isinstance(x, TensorReference), from_file)


__getattr__ = surface.missing(__name__)
