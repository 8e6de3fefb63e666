"""Names of PyTorch/XLA's `torch_xla._dynamo.dynamo_backend2`: a backend to pass to torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src import surface


def dynamo_backend(fx: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
    """The backend `openxla` as a function: `torch.compile(f, backend=dynamo_backend)`."""
    backend: Any = torch._dynamo.lookup_backend("openxla")
    result: Callable[..., Any] = backend(fx, args)
    return result


__getattr__ = surface.missing(__name__)
