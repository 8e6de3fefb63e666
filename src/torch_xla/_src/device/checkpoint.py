"""Gradient checkpointing on device xla: `torch.utils.checkpoint` tells the recorder what is a recomputation.

See Note [Recomputation]. Stock code runs unchanged, since both ways to checkpoint, reentrant and not, end in classes of
torch.utils.checkpoint that are looked up when they are used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint as checkpoints


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Makes a module keep its inputs only, and compute the rest again in the backward pass. Returns the module itself.

    The name is that of PyTorch/XLA, which wraps a module before its FSDP does.
    """
    original = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoints.checkpoint(original, *args, use_reentrant=False, **kwargs)

    module.forward = forward
    return module


def _recorder() -> Any:
    """The recorder if it has been loaded: a checkpoint of CPU tensors must not load it."""
    module = sys.modules.get("torch_xla._src.graph.recorder")
    return None if module is None else module.RECORDER


@contextmanager
def recomputing(inputs: Any) -> Iterator[None]:
    """What is recorded in the block is a recomputation. inputs: tensors, nested, by which to tell whether it is on xla."""
    tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    recorder = _recorder()
    if recorder is None or (tensors and not any(x.is_xla for x in tensors)):
        yield
        return
    from torch_xla._src.graph.tensor import inner_of_value
    from torch_xla._src.ops.recompute import BEGIN, END

    recorder.record_values(BEGIN, [[inner_of_value(value) for value in recorder.latest()]], {})
    recorder.mark[3].append((recorder.pending, torch._C._autograd._get_sequence_nr()))
    try:
        yield
    finally:
        recorder.record_values(END, [], {})


def _marking_backward(original: Any) -> Any:
    """`CheckpointFunction.backward`, which runs the function again and then the backward pass of that."""

    @functools.wraps(original)
    def backward(ctx: Any, *grads: Any) -> Any:
        function = ctx.run_function

        def run_function(*args: Any) -> Any:
            with recomputing(args):
                return function(*args)

        ctx.run_function = run_function
        try:
            return original(ctx, *grads)
        finally:
            ctx.run_function = function

    return staticmethod(backward)


def _marking_frame(original: Any) -> Any:
    """`_CheckpointFrame.__init__`: a frame holds the function that runs again, in the middle of a backward pass."""

    @functools.wraps(original)
    def init(frame: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
        @functools.wraps(recompute_fn)
        def recompute(*inputs: Any) -> None:
            with recomputing(inputs):
                recompute_fn(*inputs)

        original(frame, recompute, *args, **kwargs)

    return init


def _inferring_xla(original: Any) -> Any:
    """`_infer_device_type`: a function that takes its tensors from a closure, or by keyword, says nothing of a device."""

    @functools.wraps(original)
    def infer_device_type(*args: Any) -> str:
        found: str = original(*args)
        unsaid = found == checkpoints.DefaultDeviceType.get_device_type() and not torch.cuda.is_initialized()
        return "xla" if unsaid and _recorder() is not None else found

    return infer_device_type


def _saving_state(original: Any) -> Any:
    """`get_device_states`, which asks the devices of the arguments only."""

    @functools.wraps(original)
    def get_device_states(*args: Any) -> Any:
        devices, states = original(*args)
        if not devices and checkpoints._infer_device_type(*args) == "xla":
            return [0], [torch.get_device_module("xla").get_rng_state()]
        return devices, states

    return get_device_states


def install() -> None:
    """Wraps what torch.utils.checkpoint recomputes with."""
    # Policies pass over detach, of which functionalization makes this: forward and recomputation differ in them.
    checkpoints.SAC_IGNORED_OPS.add(torch.ops.aten.detach_copy.default)
    function, frame = checkpoints.CheckpointFunction, checkpoints._CheckpointFrame
    function.backward = _marking_backward(function.backward)
    frame.__init__ = _marking_frame(frame.__init__)
    checkpoints._infer_device_type = _inferring_xla(checkpoints._infer_device_type)
    checkpoints.get_device_states = _saving_state(checkpoints.get_device_states)
