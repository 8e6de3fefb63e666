"""Reads and writes at index tensors, embeddings, searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import agrees, assert_agrees, assert_slot_agrees, entries
from tests.ops.harness import to_jax, to_torch
from torch_xla._src.ops.lower import lower, specs_of

aten = torch.ops.aten
NAMES = [
    "gather",
    "index_copy",
    "index_select",
    "index_add",
    "index_reduce",
    "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate",
    "__getitem__",
    "index_put",
    "take",
    "put",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "masked_scatter",
    "nn.functional.embedding",
    "nonzero_static",
    "bucketize",
    "searchsorted",
    "take_along_dim",
    "nn.functional.one_hot",
]
FEW = {
    "searchsorted",
    "scatter",
    "__getitem__",
    "masked_scatter",
    "take",
    "index_reduce",
    "index_put",
    "index_add",
    "scatter_add",
    "gather",
}
# (name, dtype) -> why the results differ from the CPU kernel's
EXPECTED: dict[tuple[str, str], str] = {}


@pytest.mark.parametrize(
    ("op", "dtype"),
    entries(NAMES, torch.float32) + entries(FEW, torch.int64, torch.bool, torch.bfloat16, torch.complex64),
)
def test_op_db(op: Any, dtype: torch.dtype) -> None:
    assert_agrees(op, dtype, EXPECTED)


# Points that op_db leaves out: each is compared with the CPU kernel.
CASES: dict[str, Callable[[], Any]] = {
    "index none mid": lambda: torch.randn(3, 4, 5)[:, torch.tensor([[0, -1], [2, 1]])],
    "index nonadj": lambda: torch.randn(3, 4, 5)[torch.tensor([0, -1]), :, torch.tensor([1, 2])],
    "index 0d": lambda: torch.randn(3, 4)[torch.tensor(-2)],
    "mask": lambda: torch.randn(3, 4)[torch.tensor([True, False, True])],
    "mask2d": lambda: torch.randn(3, 4, 2)[torch.rand(3, 4) > 0.5],
    "mask mid": lambda: torch.randn(3, 4, 2)[:, torch.tensor([True, False, True, True])],
    "mask+int": lambda: torch.randn(3, 4, 2)[torch.tensor([True, False, True]), torch.tensor([1, 2])],
    "mask+slice+int": lambda: torch.randn(3, 4, 2)[torch.tensor([True, False, True]), :, torch.tensor([1, 0])],
    "mask put scalar": lambda: aten.index_put(torch.randn(3, 4), [torch.rand(3, 4) > 0.5], torch.tensor(2.0)),
    "mask put row": lambda: aten.index_put(torch.randn(3, 4), [torch.tensor([True, False, True])], torch.randn(4)),
    "mask put k": lambda: aten.index_put(torch.randn(3, 4), [torch.tensor([True, False, True])], torch.randn(2, 4)),
    "mask put k acc": lambda: aten.index_put(
        torch.randn(3, 4), [torch.tensor([True, False, True])], torch.randn(2, 4), True
    ),
    "mask put mid": lambda: aten.index_put(
        torch.randn(5, 3, 4), [None, torch.tensor([True, False, True])], torch.randn(5, 2, 4)
    ),
    "mask put mid1": lambda: aten.index_put(
        torch.randn(5, 3, 4), [None, torch.tensor([True, False, True])], torch.randn(5, 1, 4)
    ),
    "mask put mid k": lambda: aten.index_put(
        torch.randn(5, 3, 4), [None, torch.tensor([True, False, True])], torch.randn(2, 4)
    ),
    "mask put 2d": lambda: aten.index_put(
        torch.randn(3, 4, 2), [torch.tensor([[True, False, True, False]] * 3)], torch.randn(6, 2)
    ),
    "mask put 2d 1": lambda: aten.index_put(
        torch.randn(3, 4, 2), [torch.tensor([[True, False, True, False]] * 3)], torch.randn(1)
    ),
    "mask+int put": lambda: aten.index_put(
        torch.randn(3, 4, 2), [torch.tensor([True, False, True]), torch.tensor([1, 2])], torch.randn(2, 2)
    ),
    "mask+int put scalar": lambda: aten.index_put(
        torch.randn(3, 4, 2), [torch.tensor([True, False, True]), torch.tensor([1, 2])], torch.tensor(1.0)
    ),
    "put acc dup": lambda: aten.index_put(torch.zeros(3), [torch.tensor([0, 0, -1])], torch.ones(3), True),
    "put bf16 acc": lambda: aten.index_put(
        torch.zeros(3).bfloat16(), [torch.tensor([0, 0, -1])], torch.ones(3).bfloat16(), True
    ),
    "put empty": lambda: aten.index_put(torch.zeros(3), [torch.zeros(0, dtype=torch.long)], torch.ones(0), True),
    "scatter bool add": lambda: torch.zeros(3, dtype=torch.bool).scatter_add(
        0, torch.tensor([0, 0]), torch.tensor([True, True])
    ),
    "scatter amax nan": lambda: torch.zeros(3).scatter_reduce(
        0, torch.tensor([0, 1]), torch.tensor([float("nan"), -1]), "amax"
    ),
    "scatter mean int": lambda: torch.tensor([5, -7, 3]).scatter_reduce(
        0, torch.tensor([0, 1, 1]), torch.tensor([2, -4, -9]), "mean"
    ),
    "scatter mean excl": lambda: torch.tensor([5, -7, 3]).scatter_reduce(
        0, torch.tensor([0, 1, 1]), torch.tensor([2, -4, -9]), "mean", include_self=False
    ),
    "scatter bool amax": lambda: torch.tensor([True, False]).scatter_reduce(
        0, torch.tensor([0, 1]), torch.tensor([False, True]), "amax", include_self=False
    ),
    "scatter 0d": lambda: torch.tensor(1.0).scatter(0, torch.tensor(0), torch.tensor(2.0)),
    "scatter smaller": lambda: torch.zeros(4, 5).scatter(1, torch.tensor([[0, 1], [2, 3]]), torch.randn(3, 4)),
    "gather 0d": lambda: (
        torch.tensor(1.0).gather(0, torch.tensor([0])) if False else torch.gather(torch.tensor(1.0), 0, torch.tensor(0))
    ),
    "gather empty": lambda: torch.gather(torch.randn(3, 4), 1, torch.zeros(3, 0, dtype=torch.long)),
    "index_select empty": lambda: torch.index_select(torch.randn(3, 4), 1, torch.zeros(0, dtype=torch.long)),
    "index_add alpha": lambda: torch.ones(3, 4).index_add(1, torch.tensor([0, 0]), torch.ones(3, 2), alpha=-2.5),
    "index_add bool": lambda: torch.zeros(3, dtype=torch.bool).index_add(
        0, torch.tensor([0, 0]), torch.tensor([True, True])
    ),
    "index_fill neg": lambda: torch.zeros(3).index_fill(0, torch.tensor([-1]), 1.0),
    "embedding pad": lambda: aten.embedding_dense_backward(
        torch.randn(2, 3, 4), torch.tensor([[0, 1, 1], [2, 1, 0]]), 5, 1, True
    ),
    "embedding": lambda: aten.embedding(torch.randn(5, 4), torch.tensor(3)),
    "renorm": lambda: aten.embedding_renorm(torch.randn(5, 4), torch.tensor([0, 3, 0]), 0.5, 2.0),
    "ss": lambda: torch.searchsorted(torch.tensor([[1.0, 3, 5], [2, 4, 6]]), torch.randn(2, 4) * 5, right=True),
    "ss nan": lambda: torch.searchsorted(torch.tensor([1.0, 3, 5]), torch.tensor([float("nan"), 3.0])),
    "bkt scalar": lambda: torch.bucketize(3, torch.tensor([1.0, 3, 5]), out_int32=True),
    "bkt prom": lambda: torch.bucketize(torch.tensor([2, 3]), torch.tensor([1.5, 2.5, 5])),
    "ss sorter": lambda: torch.searchsorted(
        torch.tensor([3.0, 1, 5]), torch.tensor([2.0, 4]), sorter=torch.tensor([1, 0, 2])
    ),
    "bag": lambda: F.embedding_bag(torch.tensor([0, 2, 2, 1]), torch.randn(4, 3), torch.tensor([0, 0, 3]), mode="max"),
    "nz static": lambda: torch.nonzero_static(torch.tensor([[0, 1], [1, 1]]), size=5, fill_value=-7),
    "masked_scatter": lambda: torch.zeros(3, 4).masked_scatter(torch.rand(4) > 0.5, torch.randn(12)),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    agrees(CASES[case], rtol=None, atol=None)


def test_scalar_slots() -> None:
    """Numbers that have become inputs of the program: 0-d weakly typed arrays under jit."""
    for op, args, number in SLOTS:
        assert_slot_agrees(op, args, number)


SLOTS = [
    (aten.index_fill.int_Scalar, (torch.zeros(3, 2), 1, torch.tensor([-1])), 2.5),
    (aten.scatter.value, (torch.zeros(3), 0, torch.tensor([1])), 2.5),
    (aten.searchsorted.Scalar, (torch.tensor([1.0, 3.0]),), 2),
]


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding_bag(mode: int, padding_idx: int) -> None:
    """Output and gradient alone: what the CPU kernel leaves in the other outputs depends on the path it takes."""
    weight, indices, offsets = torch.randn(4, 3), torch.tensor([0, 2, 2, 1]), torch.tensor([0, 0, 3])
    args = (weight, indices, offsets, False, mode, False, None, False, padding_idx)
    expected = aten._embedding_bag(*args)
    grad = torch.randn(3, 3)
    tail = (4, False, mode, None, padding_idx)
    expected_grad = aten._embedding_bag_backward(
        grad, indices, offsets, *expected[1:], 4, False, mode, False, *tail[3:]
    )
    with jax.enable_x64(True):
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        meta = specs_of(aten._embedding_bag(weight.to("meta"), indices.to("meta"), offsets.to("meta"), *args[3:]))
        out, *rest = lower(aten._embedding_bag.default, arrays, {}, meta)
        backward = aten._embedding_bag_dense_backward.default
        (got,) = lower(backward, [to_jax(grad), arrays[1], *rest, *tail], {}, specs_of(expected_grad))
    torch.testing.assert_close(to_torch(out), expected[0])
    torch.testing.assert_close(to_torch(got), expected_grad)


@pytest.mark.parametrize("at", [0, 3, -1, 4, -5])
def test_a_single_index_writes_one_slice_or_nothing(at):
    x, one = torch.arange(12.0).reshape(3, 4), torch.full((3, 1), 9.0)
    expected = x.clone()
    if -4 <= at < 4:
        expected[:, at] = 9.0
    for op, arguments in (
        (aten.index_copy.default, (1, torch.tensor([at]), one)),
        (aten.index_put.default, ([None, torch.tensor([at])], one)),
        (aten.index_put.default, ([None, torch.tensor(at)], torch.tensor(9.0))),
    ):
        arrays = torch.utils._pytree.tree_map(
            lambda a: to_jax(a) if isinstance(a, torch.Tensor) else a, (x, *arguments)
        )
        with jax.enable_x64(True):
            [result] = lower(op, arrays, {}, specs_of(x))
        assert to_torch(result).equal(expected)
