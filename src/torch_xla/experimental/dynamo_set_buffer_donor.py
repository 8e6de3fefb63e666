"""Names of PyTorch/XLA's `torch_xla.experimental.dynamo_set_buffer_donor`."""

from __future__ import annotations

import torch

from torch_xla._src import donors, surface


def dynamo_set_buffer_donor_(t: torch.Tensor, should_donoate: bool) -> torch.Tensor:
    """Allows the next program that reads `t` to consume its buffer, or takes that back; returns `t`."""
    donors.set_buffer_donation(t, should_donoate)
    return t


__getattr__ = surface.missing(__name__)
