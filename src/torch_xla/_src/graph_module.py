"""Graphs that torch.compile has captured, run on device xla."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src.runtime import metrics


def run_as_program(graph: torch.fx.GraphModule) -> Callable[..., Any]:
    """A function that records the ops of `graph` when it is called."""
    metrics.count("DynamoExtractCompiledGraph")

    def run(*args: Any) -> Any:
        return graph(*args)

    return run
