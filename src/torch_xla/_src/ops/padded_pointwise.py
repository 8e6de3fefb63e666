"""Rules for pointwise ops on padded tensors: each element of the result depends on those in its place, padding included."""

from __future__ import annotations

from typing import Any

from torch_xla._src.ops.padded import Call, Padded, pads

# Ops without PyTorch's tag: gradients, casts, factories like a tensor, random numbers in the shape of a tensor.
_UNTAGGED = (
    "_to_copy", "bernoulli", "copy", "elu_backward", "empty_like", "exponential", "fill", "full_like",
    "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh_backward", "isin.Tensor_Scalar",
    "leaky_relu_backward", "lift_fresh_copy", "log_sigmoid_backward", "log_sigmoid_forward", "log_normal",
    "mish_backward", "native_dropout", "normal_functional", "normal.Tensor_Tensor", "normal.Tensor_float",
    "normal.float_Tensor", "ones_like", "poisson", "rand_like", "randn_like", "silu_backward", "softplus_backward",
    "softshrink_backward", "hardshrink_backward", "uniform", "zeros_like", "isclose", "polar", "complex", "real",
    "imag", "conj_physical", "sgn", "_conj_physical", "floor_divide", "logical_xor", "special_expit", "cauchy",
    "geometric", "celu", "alias_copy", "detach_copy",
)  # fmt: skip


@pads("pointwise", *(f"aten.{name}" for name in _UNTAGGED))
def pointwise(call: Call) -> Any:
    places = [i for i, a in enumerate(call.args) if type(a) is Padded]
    if not places or any(type(a) is Padded for a in call.kwargs.values()):
        raise call.refuse()
    tensors, dims = call.aligned([call.args[i] for i in places])
    args = list(call.args)
    for place, tensor in zip(places, tensors):
        args[place] = tensor
    vectors = [call.scope.vector(dim) for dim in dims]
    # An output that is not what is asked for, such as the buffer of log_sigmoid, is empty.
    outs = [dims if call.out_sizes(i) == vectors else call.out_dims(i) for i in range(len(call.specs))]
    return call.run(args, *outs)
