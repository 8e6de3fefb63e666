"""Tensors whose buffers a program may consume although they are there still. See Note [Buffer donors].

The functions behind PyTorch/XLA's `_set_buffer_donation`, `_get_buffer_donation` and
`_xla_set_enable_alias_with_buffer_donor_config`, and the op `torch.ops.xla.dynamo_set_buffer_donor_`.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("xla", "FRAGMENT")


def set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Declares that the next program which reads an xla tensor may consume its buffer, or takes that back.

    Returns whether the tensor has a buffer to donate: one that is yet to be computed has none, and nothing is declared.
    Once the buffer is consumed, every use of the tensor is a RuntimeError. TypeError for a tensor of another device.
    """
    from torch_xla._src.compile import donation
    from torch_xla._src.graph.tensor import value_of
    from torch_xla._src.runtime import metrics

    value = value_of(tensor)
    if value.buffer is None:
        return False
    donation.set_donor(value, should_donate)
    metrics.count("XlaSetBufferDonation")
    return True


def get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether an xla tensor has been declared a donor, and holds its buffer still."""
    from torch_xla._src.compile import donation
    from torch_xla._src.graph.tensor import value_of

    return donation.is_donor(value_of(tensor))


def set_alias_with_buffer_donor_config(enabled: bool) -> bool:
    """Whether launches take notice of donors (they do at first). Returns what it was."""
    from torch_xla._src.compile import donation

    return donation.honour_donors(enabled)


def _dynamo_set_buffer_donor(tensor: torch.Tensor, should_donate: bool) -> torch.Tensor:
    set_buffer_donation(tensor, should_donate)
    return tensor


def install() -> None:
    """Defines the op. `torch.ops.xla.dynamo_set_buffer_donor_(t, True)` returns `t`."""
    _library.define("dynamo_set_buffer_donor_(Tensor t, bool should_donate) -> Tensor")
    _library.impl("dynamo_set_buffer_donor_", _dynamo_set_buffer_donor, "CompositeImplicitAutograd")
