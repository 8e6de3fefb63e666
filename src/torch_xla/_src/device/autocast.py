"""`torch.autocast("xla")`: a kernel per op of the cast lists under key AutocastXLA."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree

# What is safe and fast in 16 bits: products that hardware accumulates in float32.
LOWER = (
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "bmm", "mm", "baddbmm",
    "addmm", "addbmm", "linear", "matmul", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "prelu", "relu", "max_pool2d", "einsum", "mv", "addmv", "_convolution",
    "scaled_dot_product_attention", "gru_cell", "lstm_cell",
)  # fmt: skip
# What loses digits in 16 bits: large sums, logarithms, decompositions.
FLOAT32 = (
    "batch_norm", "softmax.int", "log_softmax.int", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "pow.Tensor_Scalar", "prod", "prod.dim_int", "cdist", "trace", "cholesky", "cholesky_inverse",
    "cholesky_solve", "inverse", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "mse_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "smooth_l1_loss", "cross_entropy_loss", "l1_loss", "margin_ranking_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "ctc_loss.IntList", "ctc_loss.Tensor",
    "kl_div", "multilabel_margin_loss", "qr", "svd", "triangular_solve", "linalg_svd", "linalg_inv_ex",
    "layer_norm", "group_norm", "cumsum", "cumprod", "exp", "log", "log1p", "expm1", "norm.Scalar",
)  # fmt: skip
PROMOTE = (
    "stack", "cat", "index_copy",
)  # fmt: skip

_library = torch.library.Library("aten", "IMPL", "AutocastXLA")
_any = torch.library.Library("_", "IMPL", "AutocastXLA")
_KEY = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastXLA"))


def _castable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.device.type == "xla" and x.dtype != torch.float64


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if _castable(x) and x.dtype != dtype else x


def _widest(args: Any) -> torch.dtype:
    found = [x.dtype for x in pytree.tree_leaves(args) if _castable(x)]
    return torch.float32 if torch.float32 in found else torch.get_autocast_dtype("xla")


def _kernel(op: Any, choose: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            dtype = choose((args, kwargs))
            args, kwargs = pytree.tree_map(lambda x: _cast(x, dtype), (args, kwargs))
            return op(*args, **kwargs)

    return kernel


def install() -> None:
    """Registers the kernels; an op that is in no list falls through, one that this torch lacks is passed over."""
    _any.fallback(torch.library.fallthrough_kernel)
    lists = (
        (LOWER, lambda _: torch.get_autocast_dtype("xla")),
        (FLOAT32, lambda _: torch.float32),
        (PROMOTE, _widest),
    )
    for names, choose in lists:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:
                _library.impl(name, _kernel(op, choose))
