"""Names of PyTorch/XLA's `torch_xla.experimental.scan_layers`: equal layers, one after the other, as one loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_xla._src import surface
from torch_xla.experimental.scan import default_partition, scan


def scan_layers(
    layers: Iterable[torch.nn.Module],
    input_data: Any,
    partition_fn: Any = default_partition,
    is_layer_pure: bool = False,
    remat: str | None = None,
) -> Any:
    """What the layers give one after the other, the output of each being the input of the next.

    They have to be of one structure: parameters of the same names, shapes and dtypes. The program holds one layer and a
    loop over stacked parameters, so compiling takes as long for a hundred layers as for one. remat: as for `scan`, by layer.
    ValueError if they differ.
    """
    found = list(layers)
    if not found:
        return input_data
    first = found[0]
    named = [dict([*layer.named_parameters(), *layer.named_buffers()]) for layer in found]
    for number, other in enumerate(named[1:], 1):
        if {n: (t.shape, t.dtype) for n, t in other.items()} != {n: (t.shape, t.dtype) for n, t in named[0].items()}:
            raise ValueError(f"layer {number} differs from layer 0 in the names, shapes or dtypes of its parameters")
    stacked = {name: torch.stack([layer[name] for layer in named]) for name in named[0]}
    if not stacked:  # nothing to loop over
        for layer in found:
            input_data = layer(input_data)
        return input_data
    carry, _ = scan(_one_layer(first), input_data, stacked, remat=remat)
    return carry


class _OneLayer:
    """A layer as a function of its input and its parameters; one object for each layer and mode, so that it is recognised."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer = layer

    def __call__(self, carry: Any, parameters: dict[str, torch.Tensor]) -> tuple[Any, None]:
        return torch.func.functional_call(self.layer, parameters, (carry,)), None


def _one_layer(layer: torch.nn.Module) -> _OneLayer:
    modes = tuple(part.training for part in layer.modules())
    known: dict[Any, _OneLayer] = layer.__dict__.setdefault("_torch_xla_as_function", {})
    return known.setdefault(modes, _OneLayer(layer))


__getattr__ = surface.missing(__name__)
