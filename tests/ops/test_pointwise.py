"""Elementwise ops: op_db entries forward and backward, and the corners that its samples leave out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo, to_jax
from torch_xla._src.ops.lower import lower, specs_of

UNARY = (
    "abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad exp exp2 expm1 floor frac log log10 log1p log2"
)
UNARY += " nan_to_num neg rad2deg reciprocal round rsqrt sgn sign sin sinh sqrt square tan trunc"
BINARY = "add atan2 copysign div floor_divide fmax fmin fmod heaviside hypot ldexp logaddexp logaddexp2 maximum minimum"
BINARY += " mul nextafter pow remainder rsub special.xlog1py sub xlogy __rpow__ __rdiv__"
OTHER = "addcdiv addcmul clamp clamp_max clamp_min clone complex conj frexp imag isclose isfinite isinf isnan lerp"
OTHER += " masked_fill polar real signbit to view_as_complex view_as_real where"
COMPARE = "eq ge gt le lt ne logical_and logical_not logical_or logical_xor"
INTEGER = "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor gcd lcm"
INTEGER += " abs add clamp div floor_divide fmod mul pow remainder sgn sub addcmul sin float_power eq to byte where"
ENTRIES: dict[str, list[Any]] = {}
for _op in op_db:
    ENTRIES.setdefault(_op.name, []).append(_op)

CASES = [(name, torch.float32) for name in f"{UNARY} {BINARY} {OTHER} {COMPARE}".split()]
CASES += [(name, torch.int64) for name in INTEGER.split()]
OTHER_DTYPES = {
    torch.bool: "add mul logical_not bitwise_and bitwise_not eq where sgn to",
    torch.uint8: "add sub floor_divide remainder bitwise_not bitwise_right_shift neg",
    torch.bfloat16: "add mul div sub pow lerp addcmul clamp exp nextafter remainder lt",
    torch.complex64: "abs add mul div exp log1p sgn sqrt pow conj angle logaddexp",
}
CASES += [(name, dtype) for dtype, names in OTHER_DTYPES.items() for name in names.split()]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda x: str(x).removeprefix("torch."))
def test_op_db(name: str, dtype: torch.dtype) -> None:
    backward = dtype in (torch.float32, torch.complex64)
    for op in ENTRIES[name]:
        if dtype in op.supported_dtypes("cpu"):
            assert not check_opinfo(op, dtype, samples=1, backward=backward)


def failures(fn: Any, *args: Any, exact: bool = False, **kwargs: Any) -> list[str]:
    mode = CheckLowerings(rtol=0, atol=0) if exact else CheckLowerings()
    with mode:
        fn(*args, **kwargs)
    return mode.failures


INF, NAN = float("inf"), float("nan")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 7.0, INF, -INF, NAN])


@pytest.mark.parametrize(
    "fn",
    [torch.sign, torch.sgn, torch.abs, torch.round, torch.frac, torch.signbit, torch.isposinf, torch.isneginf]
    + [torch.nan_to_num, torch.rsqrt, torch.log1p, torch.logical_not, torch.trunc, torch.sqrt, torch.exp2],
    ids=lambda fn: fn.__name__,
)
def test_edges(fn: Any) -> None:
    assert not failures(fn, EDGES)


@pytest.mark.parametrize(
    "fn",
    [torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.remainder, torch.fmod, torch.floor_divide, torch.atan2]
    + [torch.copysign, torch.xlogy, torch.heaviside, torch.hypot, torch.logaddexp, torch.logaddexp2, torch.nextafter]
    + [torch.pow, torch.eq, torch.ne, torch.lt, torch.logical_xor, torch.special.xlog1py],
    ids=lambda fn: fn.__name__,
)
def test_pairs_of_edges(fn: Any) -> None:
    """NaN propagates or yields as on the CPU, zeros keep their sign, division rounds as Python's."""
    assert not failures(fn, EDGES[:, None], EDGES)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, -0.0, NAN])
def test_powers_with_their_own_formula(exponent: float) -> None:
    assert not failures(torch.pow, EDGES, exponent)


def test_integer_powers_wrap_and_negative_exponents_truncate() -> None:
    base = torch.tensor([-3, -2, -1, 0, 1, 2, 3])
    assert not failures(torch.pow, base, torch.tensor([[0], [1], [5], [40], [70]]))
    assert not failures(torch.pow, torch.tensor([-1, 1, 2, -1]), torch.tensor([-1, -2, -1, -2]))
    assert not failures(torch.pow, base, 41)


def test_integers_wrap() -> None:
    top = torch.tensor([torch.iinfo(torch.int32).max, torch.iinfo(torch.int32).min], dtype=torch.int32)
    for fn in (torch.add, torch.sub, torch.mul):
        assert not failures(fn, top, 7)
    assert not failures(torch.neg, top)
    assert not failures(torch.abs, top)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division(mode: str | None) -> None:
    ints = torch.tensor([7, -7, 6, -6, 0])
    divisors = torch.tensor([[2], [-2], [3], [-3]])
    assert not failures(torch.div, ints, divisors, rounding_mode=mode)
    assert not failures(torch.div, ints.float() / 10, divisors.float() / 10, rounding_mode=mode)
    assert not failures(torch.div, EDGES[:, None], EDGES, rounding_mode=mode)


def test_shifts_beyond_the_width() -> None:
    values, shifts = torch.tensor([[5], [-5]]), torch.tensor([0, 1, 63, 64, 100, -1])
    assert not failures(torch.bitwise_left_shift, values, shifts)
    assert not failures(torch.bitwise_right_shift, values, shifts)


def test_clamp_with_crossed_and_nan_bounds() -> None:
    for bounds in ((1.0, -1.0), (NAN, 1.0), (None, 0.5), (-0.5, None)):
        assert not failures(torch.clamp, EDGES, *bounds)
    assert not failures(torch.clamp, torch.arange(5), 1, 3)
    assert not failures(torch.clamp, EDGES, torch.tensor(-1.0), EDGES)


def test_promotion() -> None:
    small, wide = torch.arange(3, dtype=torch.int8), torch.ones(3, dtype=torch.bfloat16)
    for other in (2.5, 3, True, torch.tensor(2.5, dtype=torch.float64), torch.tensor(300), wide):
        for fn in (torch.add, torch.mul, torch.eq, torch.lt, torch.div):
            assert not failures(fn, small, other)
    assert not failures(torch.where, torch.tensor([True, False, True]), small, 1.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", [torch.add, torch.sub, torch.mul, torch.div, torch.remainder, torch.fmod, torch.lt])
def test_scalars_with_16_bit_floats(fn: Any, dtype: torch.dtype) -> None:
    """x + 0.7 sees 0.7 rounded to 16 bits, x * 0.7 does not."""
    assert not failures(fn, torch.linspace(-3, 3, 100).to(dtype), 0.7, exact=True)


def test_casts() -> None:
    floats = torch.tensor([-1.0, -1.9, 0.9, 255.0, 256.0, 300.0, -129.0])
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64):
        assert not failures(floats.to, dtype)
    assert not failures(torch.tensor([300, -1, 70000]).to, torch.uint8)
    assert not failures(torch.zeros(2, 3, dtype=torch.uint8).copy_, torch.tensor([-1.0, 2.0, 300.0]))


def test_lerp_from_either_end() -> None:
    a, b = torch.tensor([1e8, 1.0]), torch.tensor([1.0, 1e8])
    for weight in (0.0, 1.0, torch.tensor([0.0, 1.0])):
        assert not failures(torch.lerp, a, b, weight, exact=True)


def test_zero_dims_and_empty() -> None:
    for x in (torch.tensor(2.0), torch.zeros(0, 3)):
        assert not failures(torch.add, x, torch.ones(1, 3), alpha=2)
        assert not failures(torch.where, x > 0, x, 0.0)
        assert not failures(torch.masked_fill, x, x > 0, 5.0)


@pytest.mark.parametrize(
    ("call", "number"),
    [("add.Tensor", 0.3), ("mul.Tensor", 3), ("pow.Tensor_Scalar", 2.0), ("pow.Tensor_Scalar", 3), ("div.Tensor", 0.7)]
    + [("clamp_min", 0.2), ("lt.Scalar", 0.5), ("remainder.Scalar", 0.7), ("masked_fill.Scalar", 2.5)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_numbers_may_be_scalar_slots(call: str, number: float, dtype: torch.dtype) -> None:
    packet, _, name = call.partition(".")
    overload = getattr(getattr(torch.ops.aten, packet), name or "default")
    if dtype == torch.int32 and call == "masked_fill.Scalar":
        number = 2
    x = (torch.rand(8) * 4 + 1).to(dtype)
    args = [x, x > 2] if "masked" in call else [x]
    spec, arrays = specs_of(overload(*args, number)), [to_jax(arg) for arg in args]
    with jax.enable_x64(True):
        constant = lower(overload, (*arrays, number), {}, spec)
        slotted = jax.jit(lambda slot: lower(overload, (*arrays, slot), {}, spec))(number)
        tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
        assert jnp.allclose(constant[0].astype(float), slotted[0].astype(float), rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("divisor", [3, 49.0, -7.0, 0.1, 41, 8, float("inf"), 0.0])
def test_division_by_a_constant_is_correctly_rounded(divisor, dtype):
    """XLA alone would multiply by the reciprocal, and 49 / 49 would not be 1."""
    x = torch.cat([torch.arange(-500.0, 500.0), torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0])]).to(
        dtype
    )
    y = x.to("xla")
    for op in (torch.div, torch.floor_divide, lambda a, b: torch.div(a, b, rounding_mode="trunc")):
        torch.testing.assert_close(op(y, divisor).cpu(), op(x, divisor), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [3, 49, 41, 1000])
def test_the_mean_of_ones_is_one(size):
    x = torch.ones(size, device="xla")
    assert (x.mean().item(), x.var(correction=0).item(), torch.nn.functional.mse_loss(x, x - 1).item()) == (
        1.0,
        0.0,
        1.0,
    )
