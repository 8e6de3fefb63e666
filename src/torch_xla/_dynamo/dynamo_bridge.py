"""Runs the graphs that torch.compile captures with its backend `openxla`.

The graph's ops are recorded like any others, so there is nothing to extract beforehand: a second call replays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src import surface
from torch_xla._src.graph_module import run_as_program


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """A function that computes `xla_model` of arguments like `xla_args`, as one program."""
    return run_as_program(xla_model)


__getattr__ = surface.missing(__name__)
