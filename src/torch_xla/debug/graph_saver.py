"""Names of PyTorch/XLA's `torch_xla.debug.graph_saver`."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import torch

from torch_xla._src import surface

_numbers: dict[str, int] = {}
_lock = threading.Lock()


def save_tensors_graph(save_dir: str, name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Writes what is pending for `tensors` to `save_dir`, in the form `SAVE_GRAPH_FMT`: text, dot or hlo."""
    from torch_xla._src.graph import inspect

    wanted = os.environ.get("SAVE_GRAPH_FMT", "text")
    texts = {"text": inspect.text, "hlo": inspect.hlo, "dot": inspect.dot}
    if wanted not in texts:
        raise ValueError(f"SAVE_GRAPH_FMT={wanted} is none of {', '.join(texts)}")
    with _lock:
        number = _numbers[name] = _numbers.get(name, -1) + 1
    os.makedirs(save_dir, exist_ok=True)
    with open(os.path.join(save_dir, f"{name}-{number}.{wanted}"), "w") as file:
        file.write(texts[wanted](tensors))


__getattr__ = surface.missing(__name__)
