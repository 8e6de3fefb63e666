"""Names of PyTorch/XLA's `torch_xla.experimental.stablehlo_custom_call`: host offload. Others say that they are not there."""

import torch

from torch_xla._src import surface


def place_to_host(t: torch.Tensor) -> torch.Tensor:
    """A tensor like `t` in the host's memory, where the device can reach it: activations or optimizer state that wait.

    Before it is computed with it has to come back, with `place_to_device`. Gradients pass. On CPU it is a no-op, which is
    logged once. TypeError for a tensor of another device.
    """
    from torch_xla._src.placement import place

    return place(t, "host")


def place_to_device(t: torch.Tensor) -> torch.Tensor:
    """A tensor like `t`, which `place_to_host` gave, in the device's own memory again."""
    from torch_xla._src.placement import place

    return place(t, "device")


__getattr__ = surface.missing(__name__)
