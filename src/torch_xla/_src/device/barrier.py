"""The optimisation barrier on user tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Lets each xla tensor hold its own value behind one barrier; nothing that autograd sees changes."""
    from torch_xla._src.graph.recorder import RECORDER
    from torch_xla._src.graph.tensor import inner_of
    from torch_xla._src.ops import jax_call as _defines_the_op  # noqa: F401  (for its effect on torch.ops)

    inner = [inner_of(tensor) for tensor in tensors]
    if not inner:
        return
    outs = RECORDER.record(torch.ops.torch_xla.optimization_barrier.default, [inner], {})
    for tensor, out in zip(inner, outs, strict=True):
        tensor.value = out.value
