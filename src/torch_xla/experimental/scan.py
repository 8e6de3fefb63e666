"""Names of PyTorch/XLA's `torch_xla.experimental.scan`: a loop over the first dim as one loop of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_xla._src import surface


def default_partition(*args: Any, **kwargs: Any) -> Any:
    """Stands for the default of `partition_fn`: JAX splits forward and backward pass itself."""
    raise NotImplementedError(
        "JAX splits a loop into forward and backward pass: there is no partition function to call"
    )


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Any = default_partition,
    is_fn_pure: bool = False,
    remat: str | None = None,
) -> tuple[Any, Any]:
    """`carry, y = fn(carry, x)` for each x along dim 0 of the tensors in `xs`; gives the last carry and all y, stacked.

    All of them may be nested. `fn` is traced once, and the program holds one loop, whatever the length; it is
    differentiable. carry keeps its shapes and dtypes. Tensors that `fn` captures get gradients too; it must not write
    to what it captures. Each iteration draws random numbers of its own, from the state of the device.
    partition_fn, is_fn_pure: taken for compatibility; traces are always kept.

    remat: what the backward pass finds kept of an iteration, beside its inputs; it computes the rest again. "nothing"; "dots":
    results of matrix products without batch dims; "offload": these, in memory of the host (on CPU as "dots"); None: all
    that it needs. See docs/checkpointing.md.

    ValueError if remat is none of these, `fn` cannot be called, `xs` holds no tensors, or they differ in length.
    """
    if not callable(fn):
        raise ValueError(f"fn {fn} must be callable")
    if init is None:
        raise ValueError("init must not be None")
    tensors = [leaf for leaf in tree_leaves(xs) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise ValueError("xs holds no tensors: there is nothing to loop over")
    if not all(tensor.ndim for tensor in tensors):
        raise ValueError("xs holds a tensor without dims, and scan loops over the first")
    lengths = {tensor.shape[0] for tensor in tensors}
    if len(lengths) > 1:
        raise ValueError(f"the tensors in xs differ in length: {sorted(lengths)}")
    if not lengths - {0}:
        raise ValueError("the tensors in xs are empty along dim 0: fn would never be called")
    from torch_xla._src.loops import KEPT
    from torch_xla._src.loops import scan as run

    if remat is not None and remat not in KEPT:
        raise ValueError(f"remat is {remat!r}, and has to be one of {', '.join(KEPT)}, or None")
    return run(fn, init, xs, remat)


__getattr__ = surface.missing(__name__)
