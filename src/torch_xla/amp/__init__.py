"""Names of PyTorch/XLA's `torch_xla.amp`; `torch.autocast("xla")` and `torch.amp.GradScaler("xla")` do the same."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla.amp import syncfree

__all__ = ["GradScaler", "autocast", "syncfree"]


class autocast(torch.autocast):
    """`torch.autocast("xla")`, as a context or a decorator, with the device given as PyTorch/XLA has it.

    device: an xla device or its name; ValueError for another. dtype: torch.bfloat16 (the default) or torch.float16.
    """

    def __init__(
        self, device: Any, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = True
    ) -> None:
        if torch.device(device).type != "xla":
            raise ValueError(f"torch_xla.amp.autocast is for device xla, not {device}: use torch.autocast")
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("xla")`. use_zero_grad has no effect: a step is skipped on the device in any case."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
