"""Fused optimizer steps and loss scaling against the CPU kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.harness import CheckLowerings, to_jax
from torch_xla._src.ops.lower import lower, specs_of

SHAPES = ((2, 3), (4,), ())
ADAM = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
SGD = {"weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0, "nesterov": False, "maximize": False}
ADAGRAD = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}


def lists(count: int, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    return [[torch.rand(s).to(dtype) for s in SHAPES] for _ in range(count)]


def steps(value: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for _ in SHAPES]


def check(name: str, *args: Any, **kwargs: Any) -> None:
    with CheckLowerings() as mode:
        getattr(torch.ops.aten, name)(*args, **kwargs)
    assert any("[native]" in call for call in mode.calls)
    assert mode.failures == []


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True, "weight_decay": 0.1}], ids=str
)
def test_adam(name: str, options: dict[str, Any]) -> None:
    args = lists(5) if options.get("amsgrad") else [*lists(4), []]
    for step in (1.0, 1000.0):
        check(name, *args, steps(step), lr=1e-2, **(ADAM | options))
    check(name, *args, steps(3.0), lr=torch.tensor(1e-2), **(ADAM | options))


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_gradient_scaling(found: float) -> None:
    scaling = {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(found)}
    check("_fused_adamw_", *lists(4), [], steps(2.0), lr=1e-2, **ADAM, **scaling)
    check("_fused_sgd_", *lists(3), lr=0.1, is_first_step=False, **SGD, **scaling)
    check("_fused_adagrad_", *lists(3), steps(2.0), **ADAGRAD, **scaling)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"nesterov": True}, {"dampening": 0.5, "weight_decay": 0.1, "maximize": True}], ids=str
)
def test_sgd(first: bool, options: dict[str, Any]) -> None:
    check("_fused_sgd_", *lists(3), lr=0.1, is_first_step=first, **(SGD | options))
    check(
        "_fused_sgd_", *lists(2), [], lr=torch.tensor(0.1), is_first_step=first, **(SGD | options | {"momentum": 0.0})
    )


def test_adagrad() -> None:
    for step in (1.0, 5.0):
        check("_fused_adagrad_", *lists(3), steps(step), **ADAGRAD)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
def test_unscale(bad: float | None) -> None:
    (grads,) = lists(1)
    if bad is not None:
        grads[1][2] = bad
    check("_amp_foreach_non_finite_check_and_unscale_", grads, torch.tensor(0.0), torch.tensor(0.125))


@pytest.mark.parametrize(("tracker", "found", "scale"), [(0, 0.0, 4.0), (2, 0.0, 4.0), (1, 1.0, 4.0), (2, 0.0, 3e38)])
def test_update_scale(tracker: int, found: float, scale: float) -> None:
    state = (torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found))
    check("_amp_update_scale_", *state, 2.0, 0.5, 3)


def test_hyperparameters_may_be_scalar_slots() -> None:
    """A changing lr or beta is a weakly typed input of the program: the same numbers, without recompiling."""
    args = (*lists(4), [], steps(3.0))
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    options = {"amsgrad": False, "maximize": False}
    op = torch.ops.aten._fused_adamw.default
    expected = op(*args, **numbers, **options)
    arrays = jax.tree.map(to_jax, args)

    def step(slots: dict[str, Any]) -> list[jax.Array]:
        return lower(op, arrays, {**slots, **options}, specs_of(expected))

    with jax.enable_x64(True):
        slotted, constant = jax.jit(step)(numbers), step(numbers)
        for got, want in zip(slotted, constant, strict=True):
            assert jnp.allclose(got, want, rtol=1e-6)
