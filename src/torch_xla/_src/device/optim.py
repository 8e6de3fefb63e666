"""torch.optim on device xla: foreach and fused implementations by default lists, and a cut after every step.

Note [The cut after an optimizer step]
Loops written for eager PyTorch have no call that ends a step. Every optimizer's `step()` does: its post hook cuts the
recording, so an unmodified loop runs one program per step. With an explicit `torch_xla.sync()` too, nothing is left to
cut there. In a block of `torch_xla.step` or `torch_xla.compile` the end of the block is the cut.

Note [Steps are counted on the device]
PyTorch keeps the step count of Adam on the host unless `fused` or `capturable` is set, and computes bias corrections from
it there: numbers that differ at each step. On device xla the fused form is the default for Adam and AdamW, as if the user
had passed `fused=True`: one row for a step, which counts on the device; and `capturable=True` for optimizers that count
steps and make no use of it. Who passes one of `foreach`, `fused` and `capturable` decides.

Note [State is there before the first step]
Optimizers make their state in their first step. Were that recorded, the first step would be one program and all that follow
another. So the zeros that a first step asks for are buffers at once, and momentum buffers of SGD, which it makes copies of
the gradients, are made of zeros before it: 0 * momentum + gradient is the gradient. The second step replays the first.

Note [State that a failed step made]
Writes after a failed check are undone (Note [Writes undone]), but a momentum buffer that the failed step made was not
there before: every use of it raises. On the CPU that step would not have been taken, so the state of such a parameter
is taken out before the next step.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.optim.optimizer as optimizers
import torch.utils._foreach_utils as foreach_utils
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torch_xla._src.device import accumulation
from torch_xla._src.step import block

_LISTS = (
    (foreach_utils, "_get_foreach_kernels_supported_devices"),
    (foreach_utils, "_get_fused_kernels_supported_devices"),
    (optimizers, "_get_capturable_supported_devices"),
)


def _with_xla(original: Any) -> Any:
    @functools.wraps(original)
    def devices(*args: Any, **kwargs: Any) -> list[str]:
        return [*original(*args, **kwargs), "xla"]

    return devices


def _teach_lists() -> None:
    """Adds xla to the device lists, wherever torch's modules have imported the functions that give them."""
    for home, name in _LISTS:
        original = getattr(home, name)
        taught = _with_xla(original)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("torch") and module.__dict__.get(name) is original:
                setattr(module, name, taught)


def _recorder() -> Any:
    """The recorder if it has been loaded: an optimizer of CPU tensors must not load it."""
    module = sys.modules.get("torch_xla._src.graph.recorder")
    return None if module is None else module.RECORDER


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if (recorder := _recorder()) is not None:
        recorder.in_optimizer = True
        _drop_failed_state(optimizer)
        if type(optimizer) in _COUNTING:
            _count_on_device(optimizer, _COUNTING[type(optimizer)])
        if optimizer not in _stepped:
            _stepped.add(optimizer)
            recorder.makes_state = True
            if type(optimizer) is torch.optim.SGD:
                _make_momentum(optimizer)


_stepped: weakref.WeakSet[Any] = weakref.WeakSet()


@torch.no_grad()
def _make_momentum(optimizer: torch.optim.SGD) -> None:
    """See Note [State is there before the first step]."""
    for group in optimizer.param_groups:
        if not group["momentum"] or group["dampening"]:
            continue
        for p in group["params"]:
            if p.grad is not None and p.is_xla and p.layout == p.grad.layout == torch.strided:
                state = optimizer.state[p]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)


_COUNTING = {
    torch.optim.Adam: "fused", torch.optim.AdamW: "fused", torch.optim.RMSprop: "capturable", torch.optim.Rprop: "capturable",
    torch.optim.Adadelta: "capturable",
}  # fmt: skip
_CHOICES = ("fused", "foreach", "capturable", "differentiable")


def _count_on_device(optimizer: Any, choice: str) -> None:
    """See Note [Steps are counted on the device]."""
    for group in optimizer.param_groups:
        params = group["params"]
        chosen = any(group.get(name) for name in _CHOICES) or any(group.get(name) is False for name in _CHOICES[:2])
        if chosen or isinstance(group["lr"], torch.Tensor) or not params:
            continue
        if all(p.is_xla and p.is_floating_point() for p in params):
            group[choice] = True
            for state in (optimizer.state[p] for p in params if p in optimizer.state):
                if "step" in state:
                    state["step"] = torch.as_tensor(state["step"], dtype=torch.float32).to(params[0].device)


_failures_seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _drop_failed_state(optimizer: Any) -> None:
    """See Note [State that a failed step made]."""
    from torch_xla._src.compile import poison  # loaded with the recorder
    from torch_xla._src.graph.tensor import value_of

    if _failures_seen.get(optimizer, 0) == poison.num_failed:
        return
    _failures_seen[optimizer] = poison.num_failed
    for parameter, state in list(optimizer.state.items()):
        tensors = [x for x in state.values() if isinstance(x, torch.Tensor) and x.is_xla]
        if any(value_of(x).error is not None for x in tensors):
            del optimizer.state[parameter]


_held = False


@contextmanager
def without_cut() -> Iterator[None]:
    """A block in which an optimizer's step does not end the recording; its end does."""
    global _held
    _held = True
    try:
        yield
    finally:
        _held = False
    if (recorder := _recorder()) is not None and not block.active:
        recorder.cut()


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if (recorder := _recorder()) is not None:
        from torch_xla._src.compile import causes

        recorder.in_optimizer = recorder.makes_state = False
        accumulation.step_taken()
        if not (block.active or _held):
            before = causes.current
            if before is causes.READ:
                causes.current = causes.OPTIMIZER  # as causes.because, without its calls
            try:
                recorder.cut()
            finally:
                causes.current = before


def _forgetting_failures(original: Any) -> Any:
    """`Optimizer.profile_hook_step`, which wraps every `step()`: hooks after the step do not run if it raises."""

    @functools.wraps(original)
    def profile_hook_step(func: Any) -> Any:
        hooked = original(func)

        @functools.wraps(func)
        def step(*args: Any, **kwargs: Any) -> Any:
            try:
                return hooked(*args, **kwargs)
            except BaseException:
                if (recorder := _recorder()) is not None:
                    recorder.in_optimizer = recorder.makes_state = False
                raise

        return step

    return staticmethod(profile_hook_step)


def install() -> None:
    """Teaches torch.optim the device."""
    _teach_lists()
    optimizers.Optimizer.profile_hook_step = _forgetting_failures(optimizers.Optimizer.profile_hook_step)
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
