"""Dtypes that PyTorch's CPU kernels refuse. XLA could compute with most of them; a program that runs here runs there too.

For each op the kinds of dtype that the CPU has a kernel for: b bool, u uint8, i other integers, f floating, c complex.
The kind that counts is that of the first tensor; for binary ops the highest of both operands, numbers included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_ORDER = "buifc"

_NOT_IMPLEMENTED = {
    "uifc": """abs addmm addmv baddbmm bmm mm mv dot vdot addcmul convolution reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d trace addbmm _trilinear
        pow""",
    "buif": """clamp_min clamp_max cummax cummin ge gt le lt atan2 glu hardtanh mode sign signbit polygamma
        hash_tensor _prelu_kernel rrelu_with_noise
        rrelu_with_noise_functional _safe_softmax xlogy logit amax amin special_xlog1py special_entr special_erfcx
        special_bessel_j0 special_bessel_y0 special_bessel_y1 special_spherical_bessel_j0
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
        special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w""",
    "uif": """ceil floor clamp kthvalue median nanmedian lcm gcd floor_divide avg_pool2d avg_pool3d geometric threshold
        index_reduce bucketize relu round trunc mvlgamma""",
    "uf": """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa""",
    "bfc": "im2col max_unpool2d max_unpool3d max_pool2d_with_indices_backward",
    "fc": "logaddexp lerp normal normal_functional hypot grid_sampler_2d grid_sampler_3d soft_margin_loss",
    "f": """frac logaddexp2 igamma igammac nextafter _softmax _log_softmax native_group_norm native_layer_norm
        native_batch_norm _native_batch_norm_legit _batch_norm_with_update _native_batch_norm_legit_no_training
        _native_batch_norm_legit_functional _batch_norm_with_update_functional hardshrink softshrink gelu
        binary_cross_entropy binary_cross_entropy_with_logits histogram
        _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d log_sigmoid_forward hardswish
        leaky_relu elu celu hardsigmoid mish softplus smooth_l1_loss mse_loss huber_loss nll_loss_forward nll_loss2d_forward
        histc _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors segment_reduce
        multi_margin_loss multilabel_margin_loss_forward poisson log_normal""",
}
_RUNTIME_ERROR = {
    "uifc": "sub rsub",
    "buif": "maximum minimum fmax fmin heaviside sort nansum",
    "uif": "topk argmax argmin",
    "fc": "var std var_mean std_mean",
}
# Overloads that differ from the other ones of their op.
_OVERLOADS: dict[str, tuple[str, type[Exception]]] = {
    "max.default": ("buif", NotImplementedError),
    "min.default": ("buif", NotImplementedError),
    "aminmax.default": ("buif", NotImplementedError),
    "max.dim": ("buif", RuntimeError),
    "min.dim": ("buif", RuntimeError),
    "round.decimals": ("f", NotImplementedError),
    "bernoulli.default": ("f", NotImplementedError),
    "div.Tensor_mode": ("uif", NotImplementedError),
    "div.Scalar_mode": ("uif", NotImplementedError),
}
_OPERANDS = {"other", "exponent", "min", "end", "self", "values", "target", "tensor1", "n"}  # names of second operands
_WITH_FIRST_KIND = {"sub", "rsub"}  # a boolean is refused beside an integer too


def _kind(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return {bool: "b", int: "i", float: "f", complex: "c"}.get(type(x), "")
    dtype = x.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return "f" if dtype.is_floating_point else "c"
    return {torch.bool: "b", torch.uint8: "u"}.get(dtype, "i")


def _check(kinds: str, error: type[Exception], op: Any) -> Callable[..., None]:
    arguments = op._schema.arguments
    binary = len(arguments) > 1 and arguments[1].name in _OPERANDS
    name = op._schema.name.partition("::")[2]

    def check(*args: Any, **kwargs: Any) -> None:
        counted = args[:2] if binary else [a for a in args if isinstance(a, torch.Tensor)][:1]
        found = [k for a in counted if (k := _kind(a))]
        if not found or (kwargs.get("rounding_mode", "") is None):
            return
        refused = [k for k in found if k not in kinds]
        wrong = bool(refused) if name in _WITH_FIRST_KIND else max(found, key=_ORDER.index) not in kinds
        if wrong:
            dtypes = " and ".join(str(getattr(a, "dtype", type(a).__name__)) for a in counted)
            raise error(f"{name} is not implemented for {dtypes}")

    return check


def checks() -> dict[Any, Callable[..., None]]:
    """The check of each overload that has one, to be called with the arguments of the op."""
    found: dict[Any, Callable[..., None]] = {}
    error: type[Exception]
    for table, error in ((_NOT_IMPLEMENTED, NotImplementedError), (_RUNTIME_ERROR, RuntimeError)):
        for kinds, names in table.items():
            for name in names.split():
                packet = getattr(aten, name, None)  # not every release of torch has all of them
                for overload in packet.overloads() if packet is not None else ():
                    found |= {(op := getattr(packet, overload)): _check(kinds, error, op)}
    for name, (kinds, error) in _OVERLOADS.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload)
        found[op] = _check(kinds, error, op)
    return found
