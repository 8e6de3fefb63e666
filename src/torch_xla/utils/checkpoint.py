"""Names of PyTorch/XLA's `torch_xla.utils.checkpoint`. `torch.utils.checkpoint` saves as much on device xla."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint as _checkpoints
from torch.utils.checkpoint import CheckpointFunction

__all__ = ["CheckpointFunction", "checkpoint"]


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """`function(*args)`, of which only the arguments are kept; the rest is computed again in the backward pass.

    Options, and further `kwargs` of the function, as of `torch.utils.checkpoint.checkpoint`, which this calls; here
    `use_reentrant` has the default it once had there. ValueError for an option of the other kind.
    """
    return _checkpoints.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
