"""Random ops: distributions against scipy, ranges, shapes and dtypes. Keys are fixed, so every number is too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.harness import check_opinfo, to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of
from torch_xla._src.ops.random import PRNG_IMPLEMENTATION

aten = torch.ops.aten
COUNT = 20_000
NAMES = (
    "bernoulli cauchy exponential geometric log_normal multinomial native_dropout_backward normal uniform randn "
    "rand_like randint randint_like randn_like nn.functional.alpha_dropout nn.functional.dropout "
    "nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout nn.functional.rrelu"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_shapes_and_dtypes(name: str) -> None:
    for op in (o for o in op_db if o.name == name):
        assert not check_opinfo(op, torch.float32, samples=2)


def draw(overload: Any, *args: Any, seed: int = 0, **named: Any) -> Any:
    """One draw of `overload`, arguments on CPU."""
    expected = overload(*args, **named)
    with jax.enable_x64(True):
        key = jax.random.key(seed, impl=PRNG_IMPLEMENTATION)
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        got = [to_torch(a) for a in lower(overload, arrays, named, specs_of(expected), key)]
    return got[0] if len(got) == 1 else got


def like(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(COUNT, dtype=dtype)


stats = scipy.stats
CONTINUOUS: dict[str, tuple[Callable[[], torch.Tensor], Any]] = {
    "rand": (lambda: draw(aten.rand.default, [COUNT]), stats.uniform()),
    "randn": (lambda: draw(aten.randn.default, [COUNT]), stats.norm()),
    "uniform": (lambda: draw(aten.uniform.default, like(), -3.0, 2.5), stats.uniform(-3, 5.5)),
    "normal": (lambda: draw(aten.normal_functional.default, like(), 2.0, 3.0), stats.norm(2, 3)),
    "normal of tensor": (lambda: draw(aten.normal.Tensor_float, like() + 1, 0.5), stats.norm(1, 0.5)),
    "normal of std": (lambda: draw(aten.normal.float_Tensor, -1.0, like() + 2), stats.norm(-1, 2)),
    "normal of numbers": (lambda: draw(aten.normal.float_float, -1.0, 2.0, [COUNT]), stats.norm(-1, 2)),
    "exponential": (lambda: draw(aten.exponential.default, like(), 2.5), stats.expon(scale=1 / 2.5)),
    "cauchy": (lambda: draw(aten.cauchy.default, like(), 1.0, 2.0), stats.cauchy(1, 2)),
    "log_normal": (lambda: draw(aten.log_normal.default, like(), 1.0, 0.5), stats.lognorm(0.5, scale=math.e)),
    "gamma": (lambda: draw(aten._standard_gamma.default, like() + 2.5), stats.gamma(2.5)),
    "gamma below one": (lambda: draw(aten._standard_gamma.default, like() + 0.4), stats.gamma(0.4)),
    "dirichlet": (lambda: draw(aten._sample_dirichlet.default, torch.ones(COUNT, 3))[:, 0], stats.beta(1, 2)),
    "double": (lambda: draw(aten.uniform.default, like(torch.float64)), stats.uniform()),
    "complex": (lambda: draw(aten.randn.default, [COUNT], dtype=torch.complex64).real, stats.norm(0, math.sqrt(0.5))),
    "rrelu": (
        lambda: draw(aten.rrelu_with_noise_functional.default, like() - 1, like(), 0.1, 0.3, True)[1],
        stats.uniform(0.1, 0.2),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distribution(name: str) -> None:
    sample, distribution = CONTINUOUS[name]
    assert stats.kstest(sample().double().numpy(), distribution.cdf).pvalue > 1e-3


def weights() -> torch.Tensor:
    return torch.tensor([0.0, 1.0, 0.0, 3.0, 6.0, 0.0])


DISCRETE: dict[str, tuple[Callable[[], torch.Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "bernoulli.p": (lambda: draw(aten.bernoulli.p, like(), 0.3), stats.bernoulli(0.3).pmf),
    "bernoulli": (lambda: draw(aten.bernoulli.default, like() + 0.3), stats.bernoulli(0.3).pmf),
    "bernoulli.Tensor": (
        lambda: draw(aten.bernoulli.Tensor, like(torch.int64), torch.tensor(0.3, dtype=torch.float64)),
        stats.bernoulli(0.3).pmf,
    ),
    "dropout mask": (lambda: draw(aten.native_dropout.default, like(), 0.3, True)[1], stats.bernoulli(0.7).pmf),
    "geometric": (lambda: draw(aten.geometric.default, like(), 0.4), stats.geom(0.4).pmf),
    "geometric of integers": (lambda: draw(aten.geometric.default, like(torch.int32), 0.4), stats.geom(0.4).pmf),
    "poisson": (lambda: draw(aten.poisson.default, like() + 3.5), stats.poisson(3.5).pmf),
    "binomial": (lambda: draw(aten.binomial.default, like() + 9, like() + 0.3), stats.binom(9, 0.3).pmf),
    "randint": (lambda: draw(aten.randint.low, -3, 4, [COUNT]), stats.randint(-3, 4).pmf),
    "random.from": (lambda: draw(getattr(aten.random, "from"), like(), -3, 4), stats.randint(-3, 4).pmf),
    "random bool": (lambda: draw(aten.random.default, like(torch.bool)), stats.bernoulli(0.5).pmf),
    "random uint8": (lambda: draw(aten.random.default, like(torch.uint8)), stats.randint(0, 256).pmf),
    "multinomial": (
        lambda: draw(aten.multinomial.default, weights(), COUNT, True),
        lambda k: weights().numpy()[k.astype(int)] / 10,
    ),
    "multinomial, one of each row": (
        lambda: draw(aten.multinomial.default, weights().expand(COUNT, 6), 1)[:, 0],
        lambda k: weights().numpy()[k.astype(int)] / 10,
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distribution(name: str) -> None:
    sample, probability = DISCRETE[name]
    values, counts = np.unique(sample().double().numpy(), return_counts=True)
    expected = probability(values) * COUNT
    assert expected.sum() == pytest.approx(COUNT, rel=2e-2)  # nothing outside of the support, hardly anything missing
    common = expected > 5
    rest = [counts[~common].sum() + 1e-9], [COUNT - expected[common].sum() + 1e-9]
    observed, wanted = np.append(counts[common], rest[0]), np.append(expected[common], rest[1])
    assert scipy.stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_ranges(dtype: torch.dtype) -> None:
    x = like(dtype)
    unit = draw(aten.uniform.default, x)
    assert unit.min() >= 0
    assert unit.max() < 1
    high = draw(aten.uniform.default, x, 1000.0, 1001.0)  # the scaled sample rounds to the open end most easily here
    assert high.min() >= 1000
    assert high.max() < 1001 or dtype is torch.bfloat16  # which has no number between 1000 and 1001
    rare = draw(aten.exponential.default, x, 1e4)
    assert rare.min() > 0
    assert rare.isfinite().all()


def test_integers_of_64_bits() -> None:
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    everything = draw(getattr(aten.random, "from"), like(torch.int64), low, None).double() / 2.0**63
    assert scipy.stats.kstest(everything.numpy(), scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
    positive = draw(aten.random.default, like(torch.int64))
    assert positive.min() >= 0
    assert positive.max() > high // 2
    large = draw(aten.randint.low, high - 10, high, [COUNT])
    assert (large.min(), large.max()) == (high - 10, high - 1)


def test_randperm_is_a_permutation() -> None:
    assert draw(aten.randperm.default, 1000).sort().values.equal(torch.arange(1000))
    assert draw(aten.randperm.default, 0).shape == (0,)


def test_multinomial_without_replacement() -> None:
    rows = draw(aten.multinomial.default, weights().expand(500, 6), 3)
    assert set(map(tuple, rows.sort(1).values.tolist())) == {(1, 3, 4)}


def test_dropout_at_the_ends() -> None:
    x = torch.randn(10)
    for probability, expected in ((0.0, x), (1.0, torch.zeros(10))):
        assert draw(aten.native_dropout.default, x, probability, True)[0].equal(expected)
    assert draw(aten.native_dropout.default, x, 0.5, False)[0].equal(x)


def test_keys_decide() -> None:
    same, other = (draw(aten.rand.default, [8], seed=s) for s in (0, 1))
    assert same.equal(draw(aten.rand.default, [8], seed=0))
    assert not same.equal(other)
