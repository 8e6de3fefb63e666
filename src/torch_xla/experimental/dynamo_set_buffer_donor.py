"""Names of PyTorch/XLA's `torch_xla.experimental.dynamo_set_buffer_donor`."""

from __future__ import annotations

import torch

from torch_xla._src import donors, surface


def dynamo_set_buffer_donor_(t: torch.Tensor, should_donoate: bool) -> torch.Tensor:
    """`t` itself, declared a tensor whose buffer the next program that reads it may consume, or not any more.

    A buffer that nobody holds is always donated. Once that of `t` is consumed, every use of `t` is a RuntimeError.
    """
    donors.set_buffer_donation(t, should_donoate)
    return t


__getattr__ = surface.missing(__name__)
