"""`torch.autocast("xla")`: a kernel per op of the cast lists under key AutocastXLA.

Note [Autocast lists]
First come the lists of PyTorch/XLA, then, for ops that those leave out, what current PyTorch does on CUDA. They differ in
`relu` and `max_pool2d` (16 bits; on CUDA as the input is), `batch_norm` and `binary_cross_entropy` (float32; as the input
is, and refused), and attention (16 bits as on CUDA; PyTorch/XLA leaves it as the input is). An op in no list runs in the
dtype that its inputs promote to. float64 is never cast.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

# What is safe and fast in 16 bits: products that hardware accumulates in float32.
LOWER = (
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "bmm", "mm", "baddbmm",
    "addmm", "addbmm", "linear", "matmul", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "prelu", "relu", "max_pool2d", "einsum",
    # As on CUDA.
    "_convolution", "_convolution.deprecated", "convolution", "addmv", "addr", "mv", "linalg_vecdot", "chain_matmul",
    "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
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
    # As on CUDA.
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm",
    "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "huber_loss",
    "dist", "pdist", "renorm", "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
# What takes several tensors of one dtype: the widest of them.
PROMOTE = (
    "stack", "cat", "index_copy",
    # As on CUDA.
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip

_library = torch.library.Library("aten", "IMPL", "AutocastXLA")
_any = torch.library.Library("_", "IMPL", "AutocastXLA")
_KEY = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastXLA"))


def _castable(x: Any) -> bool:
    """Whether a cast applies to `x`. On device meta are what stands for xla tensors while a function is traced."""
    ours = isinstance(x, torch.Tensor) and (x.is_xla or x.is_meta)
    return ours and x.is_floating_point() and x.dtype is not torch.float64


# Note [Cached casts]
# A weight that several ops of a region use is cast once: the program reads it once, and its gradient is summed in 16 bits
# and cast once. PyTorch's own cache is out of reach of Python kernels. Ours keeps a cast until PyTorch drops its own (the
# end of the outermost region), until the weight is written to, and for one grad mode: a cast made under no_grad, as in
# the forward pass of reentrant checkpointing, has no gradient to offer.
_casts: dict[tuple[int, torch.dtype, bool], tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` in `dtype`, from the cache if it is a float32 weight. See Note [Cached casts]."""
    if x.dtype is dtype:
        return x
    weight = x.dtype is torch.float32 and x.requires_grad and x.is_leaf and not x._is_view()
    if not weight or not torch.is_autocast_cache_enabled():
        return x.to(dtype)
    key = (id(x), dtype, torch.is_grad_enabled())
    known, version = _casts.get(key), x._version
    if known is None or known[0]() is not x or known[1] != version:
        known = _casts[key] = (weakref.ref(x), version, x.to(dtype))
    return known[2]


def _clearing(original: Any) -> Any:
    """`torch.clear_autocast_cache`, which the end of the outermost region calls."""

    @functools.wraps(original)
    def clear_autocast_cache() -> None:
        _casts.clear()
        original()

    return clear_autocast_cache


def _cast_all(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, torch.Tensor):
        return cast(x, dtype) if _castable(x) else x
    return type(x)([_cast_all(y, dtype) for y in x]) if type(x) in (list, tuple) else x


def _dtypes(x: Any) -> Iterator[torch.dtype]:
    if type(x) in (list, tuple):
        for y in x:
            yield from _dtypes(y)
    elif _castable(x):
        yield x.dtype


def _lower(_: Iterable[Any]) -> torch.dtype:
    dtype: torch.dtype = torch.get_autocast_dtype("xla")
    return dtype


def _float32(_: Iterable[Any]) -> torch.dtype:
    return torch.float32


def _widest(args: Iterable[Any]) -> torch.dtype:
    lower = _lower(args)
    return lower if all(dtype is lower for dtype in _dtypes(args)) else torch.float32


def _kernel(op: Any, choose: Callable[[Iterable[Any]], torch.dtype]) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            dtype = choose([*args, *kwargs.values()])
            cast_args = [_cast_all(a, dtype) for a in args]
            return op(*cast_args, **{name: _cast_all(a, dtype) for name, a in kwargs.items()})

    return kernel


def install() -> None:
    """Registers the kernels; an op that is in no list falls through, one that this torch lacks is passed over."""
    _any.fallback(torch.library.fallthrough_kernel)
    for names, choose in ((LOWER, _lower), (FLOAT32, _float32), (PROMOTE, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:
                _library.impl(name, _kernel(op, choose))
    torch.clear_autocast_cache = _clearing(torch.clear_autocast_cache)
