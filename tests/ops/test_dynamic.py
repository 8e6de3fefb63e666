"""Ops on device xla whose results have a size, or raise an error, that depends on the data: unique, lstsq, eig."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.database import entries
from torch_xla._src.graph.fallback import FallbackWarning

NAN = float("nan")


def outcome(fn: Callable[..., Any], tensors: tuple[torch.Tensor, ...], device: str) -> Any:
    """The results on the CPU, or the class of the error. No op may run on the CPU for device xla."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        try:
            results = fn(*(t.to(device) for t in tensors))
        except (RuntimeError, IndexError) as error:
            return type(error)
    results = [results] if isinstance(results, torch.Tensor) else results
    return [r.cpu() for r in results]


def same(fn: Callable[..., Any], *tensors: torch.Tensor) -> None:
    expected, actual = (outcome(fn, tensors, device) for device in ("cpu", "xla"))
    if isinstance(expected, type) or isinstance(actual, type):
        assert actual == expected
        return
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False)


INPUTS = {
    "few columns": torch.tensor([[2, 1], [0, 2], [2, 1], [0, 2], [0, 1]]),
    "many columns": torch.arange(200).reshape(20, 10) % 3,
    "NaN and zeros": torch.tensor([[1.0, NAN], [1.0, NAN], [0.0, 2.0], [-0.0, 2.0], [0.0, 2.0]]),
    "three dims": torch.arange(48).reshape(4, 4, 3) % 5 % 2,
    "bool": torch.tensor([[True, False], [True, True], [True, False]]),
    "nothing": torch.zeros(0, 3),
    "empty rows": torch.zeros(3, 0),
    "0-d": torch.tensor(3.0),
    "complex": torch.zeros(2, 2, dtype=torch.complex64),
}


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
@pytest.mark.parametrize("name", INPUTS)
def test_unique(name: str, dim: int | None) -> None:
    same(lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=dim), INPUTS[name])
    same(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=dim), INPUTS[name])
    same(lambda x: torch.unique(x, sorted=False, dim=dim), INPUTS[name])


def test_unique_by_its_old_name() -> None:
    same(lambda x: torch.ops.aten._unique(x, True, True), torch.tensor([3, 1, 3]))
    same(lambda x: x.index_fill(0, torch.tensor([0, 0], device=x.device), 2.0), torch.ones(3, 3))


DRIVERS = [None, "gels", "gelsy", "gelsd", "gelss"]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("a", "b"), [((2, 5, 3), (2, 5, 2)), ((2, 3, 5), (2, 3, 2)), ((2, 5, 3), (2, 5)), ((5, 3), (5,))]
)
def test_least_squares(a: tuple[int, ...], b: tuple[int, ...], driver: str | None) -> None:
    left, right = torch.randn(a, dtype=torch.float64), torch.randn(b, dtype=torch.float64)
    same(lambda x, y: torch.linalg.lstsq(x, y, driver=driver), left, right)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_least_squares_of_deficient_rank(driver: str) -> None:
    a, b = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    a[1, :, 2] = a[1, :, 0]
    same(lambda x, y: torch.linalg.lstsq(x, y, driver=driver), a, b)
    if driver != "gelsy":  # whose rank is that of a triangular factor, not of the singular values
        same(lambda x, y: torch.linalg.lstsq(x, y, rcond=0.9, driver=driver), a, b)


@pytest.mark.parametrize("a", [torch.zeros(0, 0), torch.diag(torch.arange(3.0)), torch.ones(3, 2)], ids=str)
def test_eigenvalues(a: torch.Tensor) -> None:
    same(torch.linalg.eigvals, a)
    same(torch.linalg.eig, a)


def test_eigenvalues_of_what_ends_the_process_on_the_cpu() -> None:
    a = torch.tensor([[1.0, NAN], [2.0, 3.0]], device="xla")
    assert torch.linalg.eigvals(a).isnan().all()


@pytest.mark.parametrize(
    ("op", "dtype"), entries(["linalg.eig", "linalg.ldl_factor", "unique", "_segment_reduce"], torch.float32)
)
def test_nothing_runs_on_the_cpu(op: Any, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for sample in list(op.sample_inputs("cpu", dtype))[:3]:
            moved = sample.transform(lambda t: t.to("xla") if isinstance(t, torch.Tensor) else t)
            op(moved.input, *moved.args, **moved.kwargs)
