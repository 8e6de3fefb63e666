"""Ops that only PyTorch's CPU kernels can compute: inputs come to the host, results go back.

Counted under the op's name (`aten::geqrf`), and announced once with the user's line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from torch_xla._src.graph.opinfo import host_leaf
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import XlaTensor
from torch_xla._src.runtime import frames, metrics, transfer


class FallbackWarning(UserWarning):
    """An op runs on the CPU because there is no lowering for it."""


_announced: set[Any] = set()
watcher: Callable[[], None] | None = None  # told of each op that runs here, while a time report is on


def run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a functional op on the CPU, between two cuts of the recording."""
    if "sparse" in op._schema.name:
        raise NotImplementedError(
            f"device xla has strided tensors only: {op} works with sparse ones; do that on the CPU"
        )
    metrics.count(op._schema.name)
    if watcher is not None:
        watcher()
    if op not in _announced:
        _announced.add(op)
        frame = frames.user_frame()
        place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("<unknown>", 0)
        warnings.warn_explicit(
            f"{op} has no lowering for device xla and runs on the CPU, with a copy there and back",
            FallbackWarning,
            *place,
        )
    args, kwargs = pytree.tree_map(_to_host, (list(args), kwargs))
    outputs = op(*args, **kwargs)
    return pytree.tree_map(lambda o: host_leaf(o) if isinstance(o, torch.Tensor) else o, outputs)


def _to_host(a: Any) -> Any:
    if type(a) is XlaTensor:
        return transfer.download(RECORDER.buffer(a.value), a.value.spec.dtype)
    return torch.device("cpu") if isinstance(a, torch.device) else a
