"""Settings of PyTorch that change what a function does, beside its arguments and what it reaches."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers

from torch_xla._src.compile.launch import compile_flags

_HOOKS = (
    *(vars(modules)[n] for n in vars(modules) if n.startswith("_global_") and isinstance(vars(modules)[n], dict)),
    *(vars(optimizers)[n] for n in vars(optimizers) if n.startswith("_global_optimizer_")),
)


def intercepted() -> bool:
    """Whether somebody looks at each op: a dispatch mode, a function mode, a transform of torch.func, or forward-mode AD."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def current() -> Any:
    """The settings, to be compared with what they were."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.is_autocast_cache_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.is_anomaly_enabled(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        [tuple(hooks) for hooks in _HOOKS],
        compile_flags(),
    )


def random_states() -> Any:
    """The random states of the host: a function that changes one of them draws from it."""
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state(legacy=False)["state"] if numpy is not None else None
    numbers = {k: v.tobytes() if hasattr(v, "tobytes") else v for k, v in state.items()} if state is not None else None
    return random.getstate(), numbers, bytes(torch.get_rng_state().numpy())
