"""Names of PyTorch/XLA's `torch_xla.experimental.dynamo_set_buffer_donor`."""

from __future__ import annotations

import torch

from torch_xla._src import surface


def dynamo_set_buffer_donor_(t: torch.Tensor, should_donoate: bool) -> torch.Tensor:
    """`t` itself: a buffer that nobody holds any more is always donated, and one that somebody holds never is."""
    return t


__getattr__ = surface.missing(__name__)
