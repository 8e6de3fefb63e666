"""What is known to differ from the CPU, as data, each with its reason. An entry that agrees after all fails the run."""

from __future__ import annotations

_DRAWS = "draws random numbers, from another generator than the CPU's"
_MEMORY = "gives memory that nobody wrote"

# Entries whose numbers mean nothing to another device: shape and dtype are compared.
RANDOM: dict[str, str] = dict.fromkeys(
    (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal.in_place",
        "normal.number_mean", "uniform", "rand_like", "randint", "randint_like", "randn", "randn_like", "pca_lowrank",
        "svd_lowrank", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
        "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout.with_train", "nn.functional.rrelu",
        "nn.functional.multi_head_attention_forward",  # its sample asks for dropout
        "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
        "nn.AlphaDropout", "nn.Dropout", "nn.Dropout1d", "nn.Dropout2d", "nn.Dropout3d", "nn.FeatureAlphaDropout",
        "nn.RReLU", "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d",
    ),
    _DRAWS,
) | dict.fromkeys(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"),
    _MEMORY,
)  # fmt: skip

# Entries whose arguments after the first have to be on the CPU, whatever the device.
ON_HOST: dict[str, str] = {"tensor_split": "PyTorch wants the places to split at on the CPU"}

# Entries whose results are unique up to a sign, a phase, a basis or an order only. What is compared is what PyTorch's own
# tests compare: the sample's `output_process_fn_grad` of the results.
NOT_UNIQUE: dict[str, str] = dict.fromkeys(
    ("linalg.eig", "linalg.eigh", "linalg.svd", "svd"), "vectors are unique up to a sign or phase"
)

# Entries that also give indices, of which several may be right: the numbers found there are compared instead.
TIES: dict[str, str] = dict.fromkeys(("kthvalue", "topk"), "any of several equal numbers may be the one chosen")

_ORDER = "sums of many products, taken in another order"
_POWER = "exp(b log(a)) in complex numbers"
_BESSEL = "ours agree with mpmath to 4e-16, the CPU's to 1e-6"
_EXPONENTIAL = "the CPU's own error is 2e-3, measured against float64; ours is 3e-4"
_EDGE = "1 / (1 - x * x) close to where it is infinite"

# (entry, dtype, variant) -> rtol, atol, reason; all else is compared with the tolerances of torch.testing, or with those
# of the database.
TOLERANCES: dict[tuple[str, str, str], tuple[float, float, str]] = {
    ("atanh", "float32", "gradient"): (2e-5, 1e-5, _EDGE),
    ("erfinv", "float32", "gradient"): (2e-5, 1e-5, _EDGE),
    ("erfinv", "float32", "inplace"): (2e-5, 1e-5, _EDGE),
    ("grid_sampler_3d", "float32", "gradient"): (5e-5, 1e-4, _ORDER),
    ("nn.functional.conv_transpose3d", "float32", "gradient"): (1e-5, 5e-5, _ORDER),
    ("nn.functional.ctc_loss", "float32", "gradient"): (1e-5, 5e-5, _ORDER),
    ("linalg.householder_product", "float32", "gradient"): (1e-5, 1e-5, _ORDER),
    ("linalg.lstsq", "float32", "gradient"): (1e-5, 1e-5, _ORDER),
    ("linalg.lstsq.grad_oriented", "float32", "gradient"): (1e-5, 1e-5, _ORDER),
    ("linalg.pinv.hermitian", "float32", "gradient"): (1e-5, 1e-5, _ORDER),
    ("nn.functional.conv_transpose3d", "float32", "forward"): (1e-5, 5e-5, _ORDER),
    ("nn.ConvTranspose3d", "float32", "gradient"): (1e-5, 5e-5, _ORDER),
    ("nn.LazyConvTranspose3d", "float32", "gradient"): (1e-5, 5e-5, _ORDER),
    ("nn.functional.layer_norm", "float32", "gradient"): (
        1e-5, 1e-3, "a gradient of exactly nothing, of which the CPU leaves a rounding error times 1 / sqrt(eps)",
    ),
    ("matrix_exp", "float32", "forward"): (5e-3, 5e-4, _EXPONENTIAL),
    ("matrix_exp", "float32", "gradient"): (5e-3, 5e-4, _EXPONENTIAL),
    ("matrix_exp", "complex64", "forward"): (1e-4, 1e-4, _EXPONENTIAL),
    ("logcumsumexp", "float32", "gradient"): (2e-3, 1e-2, "the CPU's own error is as large, measured against float64"),
    ("baddbmm", "complex64", "forward"): (1e-5, 1e-4, _ORDER),
    ("baddbmm", "complex64", "inplace"): (1e-5, 1e-4, _ORDER),
    ("baddbmm", "complex64", "out"): (1e-5, 1e-4, _ORDER),
    ("_foreach_mm", "complex64", "forward"): (1e-5, 1e-4, _ORDER),
    ("_foreach_pow", "complex64", "forward"): (1e-5, 1e-4, _POWER),
    ("_foreach_pow", "complex64", "inplace"): (1e-5, 1e-4, _POWER),
    ("linalg.cond", "complex64", "forward"): (1e-4, 1e-4, "a quotient of singular values"),
    ("linalg.cond", "complex64", "out"): (1e-4, 1e-4, "a quotient of singular values"),
    ("special.bessel_j0", "float64", "forward"): (1e-5, 1e-5, _BESSEL),
    ("special.bessel_j0", "float64", "out"): (1e-5, 1e-5, _BESSEL),
    ("special.bessel_y1", "float64", "forward"): (1e-5, 1e-5, _BESSEL),
    ("special.bessel_y1", "float64", "out"): (1e-5, 1e-5, _BESSEL),
    ("optim.LBFGS", "float32", "forward"): (
        1e-3, 1e-3, "a curvature is the quotient of differences of nearly equal numbers",
    ),
}  # fmt: skip

_STRIDED = "device xla has strided tensors only"
_UNSTABLE = "the CPU does not keep the order of equal elements, ours does"
_STATISTICS = "the saved statistics are float32, as the meta kernel and CUDA have them"
_WIDER = "a wider `out` is accepted"
_COMPLEX32 = "XLA has no complex numbers with 16-bit parts"
_ALL = ("float32", "float64", "int64", "int32", "bool", "bfloat16", "float16", "complex64")
_GROUPS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str], ...] = (
    (("to_sparse",), _ALL, ("forward",), _STRIDED),
    (("sparse.mm.reduce",), ("float32", "float64", "bfloat16", "float16"), ("forward",), _STRIDED),
    (("sparse.sampled_addmm",), ("float32", "float64", "complex64"), ("forward",), _STRIDED),
    (("optim.SparseAdam",), ("float32",), ("forward",), _STRIDED),
    (("chalf",), _ALL, ("forward",), _COMPLEX32),
    (("matrix_exp",), ("bfloat16", "float16"), ("forward",), "the CPU's result is NaN (torch 2.13)"),
    (("complex",), ("float16",), ("forward", "out"), _COMPLEX32),
    (("view_as_complex",), ("float16",), ("forward",), _COMPLEX32),
    (("sort",), ("bool", "bfloat16", "float16"), ("forward", "out"), _UNSTABLE),
    (("argsort",), ("bool", "bfloat16", "float16"), ("forward",), _UNSTABLE),
    (("native_layer_norm", "_batch_norm_with_update"), ("bfloat16", "float16"), ("forward",), _STATISTICS),
    (("_foreach_pow",), ("bool",), ("forward", "inplace"), "a boolean exponent: the meta kernel promotes to int64"),
    (
        ("narrow_copy",),
        ("errors",),
        ("errors",),
        "IndexError, as `narrow` raises; the CPU fails an assertion of its own",
    ),
    (("softmax", "log_softmax"), ("float32",), ("cast",), _WIDER),
    (("softmax.with_dtype", "log_softmax.with_dtype"), ("int64",), ("cast",), "a narrower `out` is accepted"),
    (("bernoulli",), ("float32",), ("cast",), "draws of a float dtype are not cast to an integer `out`"),
)

# (entry, dtype, variant) -> reason.
FAILURES: dict[tuple[str, str, str], str] = {
    (entry, dtype, variant): reason
    for names, dtypes, variants, reason in _GROUPS
    for entry in names
    for dtype in dtypes
    for variant in variants
}

# aten op that runs on the CPU -> reason.
FALLBACKS: dict[str, str] = {}
