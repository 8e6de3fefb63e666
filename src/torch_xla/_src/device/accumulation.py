"""Loops that accumulate gradients are cut after each backward pass.

Note [The cut after a backward pass]
A loop over parts of a batch that is on the device makes several backward passes for one step of the optimizer, and reads and
uploads nothing: as one recording it would grow with the number of parts. So when a place in the user's code makes a second
backward pass with no step of an optimizer in between, the recording is cut, and from then on after every backward pass made
there. Not in a block of `torch_xla.compile` or `torch_xla.step`, which is one recording because the user says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch

from torch_xla._src.step import block

Place = tuple[CodeType, int]  # the code that called backward, and the instruction in it
_passed: set[Place] = set()  # places that made a backward pass since the last step
_accumulating: set[Place] = set()  # places that made two
_held = False
_TORCH = {torch._tensor.__file__, torch.autograd.__file__}


@contextmanager
def uncut() -> Iterator[None]:
    """A block whose backward passes are not followed by a cut."""
    global _held
    before, _held = _held, True
    try:
        yield
    finally:
        _held = before


def step_taken() -> None:
    """An optimizer has used the gradients."""
    _passed.clear()


def _after_backward(frame: FrameType) -> None:
    module = sys.modules.get("torch_xla._src.graph.recorder")  # backward passes of CPU tensors must not load it
    if module is None or module.RECORDER.node is module.RECORDER.root or _held or block.active:
        return
    if torch._C._current_graph_task_id() != -1:  # within another backward pass
        return
    while frame.f_code.co_filename in _TORCH and frame.f_back is not None:
        frame = frame.f_back
    place = frame.f_code, frame.f_lasti
    if place in _passed:
        _accumulating.add(place)
    _passed.add(place)
    if place in _accumulating:
        module.RECORDER.cut()


def _cutting(original: Any) -> Any:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        _after_backward(sys._getframe(1))

    return backward


def install() -> None:
    """Wraps `torch.autograd.backward`, which `Tensor.backward` calls."""
    torch.autograd.backward = _cutting(torch.autograd.backward)
