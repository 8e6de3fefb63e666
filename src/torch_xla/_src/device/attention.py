"""`scaled_dot_product_attention` on device xla is one op, with a lowering and a closed-form backward.

PyTorch has an op for backends with an attention of their own, with its derivative declared. It is called here in place
of the composition of matmuls and softmax that stock torch would send. Under inference_mode, which has no autograd key to
register for, the composition is what is recorded.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "AutogradXLA")
_aten = torch.ops.aten


def _bias(mask: Any, query: torch.Tensor) -> Any:
    """An additive mask: -inf where a boolean mask is false."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(mask, zero, zero - math.inf)


def _grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values repeated to the number of query heads."""
    heads = query.size(-3)
    return tuple(t.repeat_interleave(heads // t.size(-3), -3) if t.size(-3) != heads else t for t in (key, value))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel: inputs [batch, heads, length, width], as torch.nn.functional.scaled_dot_product_attention."""
    if not query.ndim == key.ndim == value.ndim == 4 or not query.is_floating_point():
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return _aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, **options)[
            0
        ]
    if query.size(-1) != key.size(-1) or key.size(-2) != value.size(-2):
        shapes = ", ".join(str(list(t.shape)) for t in (query, key, value))
        raise RuntimeError(
            f"scaled_dot_product_attention: query, key and value of shapes {shapes} do not fit each other"
        )
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: attn_mask must not be given when is_causal=True")
    if enable_gqa:
        key, value = _grouped(query, key, value)
    bias = _bias(attn_mask, query)
    op = _aten._scaled_dot_product_fused_attention_overrideable
    return op(query, key, value, bias, dropout_p, is_causal, False, scale=scale)[0]


def install() -> None:
    """Registers the kernel."""
    _library.impl("scaled_dot_product_attention", _attention)
