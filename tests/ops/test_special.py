"""Special functions: op_db entries, and the corners that its samples leave out."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import CheckLowerings, check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

NAMES = "erf erfc erfinv i0 igamma igammac lgamma mvlgamma logit sinc"
SPECIAL = "entr erfcx i0e i1 i1e log_ndtr ndtr ndtri zeta modified_bessel_i0 modified_bessel_i1 spherical_bessel_j0"
SPECIAL += " hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
SPECIAL += " " + " ".join(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw")
SPECIAL += " airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1"
SPECIAL += " " + " ".join(f"{scaled}modified_bessel_k{order}" for scaled in ("", "scaled_") for order in "01")
ALL = [*NAMES.split(), "digamma", "polygamma", *(f"special.{name}" for name in (*SPECIAL.split(), "polygamma"))]
DOUBLE = ["polygamma", "digamma", "special.polygamma"]


def entries(names: list[str]) -> list[Any]:
    return [op for op in op_db if op.name in names]


@pytest.mark.parametrize("op", entries(ALL), ids=lambda op: op.full_name)
def test_float32(op: Any) -> None:
    assert not check_opinfo(op, torch.float32, samples=1)


@pytest.mark.parametrize("op", entries(DOUBLE), ids=lambda op: op.full_name)
def test_float64(op: Any) -> None:
    assert not check_opinfo(op, torch.float64, samples=1)


@pytest.mark.parametrize("op", entries(["erf", "lgamma", "i0", "logit", "sinc"]), ids=lambda op: op.full_name)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
def test_other_dtypes(op: Any, dtype: torch.dtype) -> None:
    assert not check_opinfo(op, dtype, samples=1, backward=False)


INF, NAN = float("inf"), float("nan")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, INF, NAN])


@pytest.mark.parametrize(
    "name", ["digamma", "erf", "erfc", "erfinv", "entr", "i0e", "log_ndtr", "ndtri", "sinc", "gammaln"]
)
def test_edges(name: str) -> None:
    with CheckLowerings() as mode:
        # sinc of infinity is NaN or 0, depending on the torch release.
        getattr(torch.special, name)(EDGES[EDGES.isinf().logical_not()] if name == "sinc" else EDGES)
    assert not mode.failures


def test_zeta_at_and_between_its_poles() -> None:
    with CheckLowerings() as mode:
        torch.special.zeta(torch.tensor([[2.0], [3.0], [1.0]]), torch.tensor([0.0, -1.0, -1.5, -0.25, 2.0]))
    assert not mode.failures


@pytest.mark.parametrize("eps", [None, 1e-2])
def test_logit_outside_of_its_domain(eps: float | None) -> None:
    x = torch.tensor([-0.5, 0.0, 0.3, 1.0, 1.5], requires_grad=True)
    with CheckLowerings() as mode:
        torch.logit(x, eps).sum().backward()
    assert not mode.failures


def test_polynomials_of_many_degrees() -> None:
    x, n = torch.linspace(-1, 1, 7)[:, None], torch.tensor([-1, 0, 1, 2, 5, 9])
    with CheckLowerings(rtol=1e-4, atol=1e-4) as mode:
        torch.special.chebyshev_polynomial_t(x, n)
        torch.special.hermite_polynomial_he(x, n)
        torch.special.legendre_polynomial_p(x, n)
    assert not mode.failures


BESSEL = [f"bessel_{name}" for name in ("j0", "j1", "y0", "y1")]
BESSEL += [f"{scaled}modified_bessel_k{order}" for scaled in ("", "scaled_") for order in "01"]
# In float64 the CPU's J, Y and Ai are off by up to 1e-6 and 3e-6 about where their approximations join (mpmath agrees
# with ours to 4e-16), which is the tolerance that PyTorch's own tests have.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5}


@pytest.mark.parametrize("name", [*BESSEL, "airy_ai"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bessel_functions_far_and_wide(name: str, dtype: torch.dtype) -> None:
    corners = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-30, 2.0, 4.0, -4.0, 8.0, 200.0, 1e4], dtype=dtype)
    with CheckLowerings(rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]) as mode:
        getattr(torch.special, name)(torch.cat([corners, torch.linspace(-30, 30, 1201, dtype=dtype)]))
    assert not mode.failures


KNOWN = [  # Abramowitz and Stegun, tables 9.1, 9.8 and 10.11
    ("bessel_j0", 5.2, -0.11029043979098648),
    ("bessel_j1", 5.2, -0.34322300587192191),
    ("bessel_y0", 9.0, 0.24993669828502468),
    ("modified_bessel_k0", 2.0, 0.11389387274953344),
    ("airy_ai", -3.0, -0.37881429367765806),
]


@pytest.mark.parametrize(("name", "x", "value"), KNOWN)
def test_bessel_functions_to_the_last_digits(name: str, x: float, value: float) -> None:
    op = getattr(torch.ops.aten, f"special_{name}").default
    argument = torch.tensor(x, dtype=torch.float64)
    with jax.enable_x64(True):
        (out,) = lower(op, [to_jax(argument)], {}, specs_of(argument))
    torch.testing.assert_close(to_torch(out), torch.tensor(value, dtype=torch.float64), rtol=1e-14, atol=1e-15)
