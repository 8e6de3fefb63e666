"""debug.check(): the first op at fault is found, with its line, and nothing is lost."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
from torch_xla import debug
from torch_xla._src.ops import registry
from torch_xla._src.ops.lower import load_families


def _nan():
    x = torch.tensor([1.0, -4.0, 9.0], device="xla")
    return x.sqrt().sum()


def _nan_of_inf():
    x = torch.tensor([1.0, 2.0], device="xla") + float("inf")
    return (x - x) * 2


def _overflow():
    x = torch.full((2,), 300.0, dtype=torch.float16, device="xla")
    return (x * x).relu()


def _zero_dimensional():
    return torch.zeros((), device="xla").log() + 1


def _backward():
    w = torch.zeros(3, device="xla", requires_grad=True)
    w.sqrt().sum().backward()
    return w.grad


# What makes NaN or Inf: (statements, the op that does, what is made, index of the first).
NONFINITE = {
    "nan": (_nan, "aten::sqrt", "NaN", (1,)),
    "nan of inf": (_nan_of_inf, "aten::sub", "NaN", (0,)),
    "float16 overflows": (_overflow, "aten::mul", "Inf", (0,)),
    "0-d": (_zero_dimensional, "aten::log", "Inf", ()),
    "backward": (_backward, "aten::div", "Inf", (0,)),
}


@pytest.mark.parametrize(("run", "op", "kind", "element"), NONFINITE.values(), ids=NONFINITE.keys())
def test_the_first_that_is_not_finite(run, op, kind, element):
    with pytest.raises(debug.CheckError, match=f"makes the first {kind}") as caught:
        debug.check(run)
    finding = caught.value.finding
    assert (finding.kind, finding.op, finding.element) == ("nonfinite", op, element)
    assert __file__ in finding.line
    debug.check(run, nonfinite=False)


def _masked():
    scores = torch.randn(4, 4, device="xla")
    mask = torch.ones(4, 4, dtype=torch.bool, device="xla").triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1)


def _sorted():
    x = torch.ones(8, device="xla")
    return x.topk(3), x.sort(), torch.linalg.svd(torch.eye(3, device="xla")), torch.empty(3, device="xla")


def _model(dtype=None):
    def train():
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3)).to("xla")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("xla", dtype, enabled=dtype is not None):
                loss = F.cross_entropy(net(torch.randn(4, 4, device="xla")), torch.tensor([0, 1, 2, 0], device="xla"))
            loss.backward()
            optimizer.step()
        return loss

    return train


RIGHT = {
    "nothing": lambda: None,
    "no tensors": lambda: torch.zeros(0, device="xla") / 0,
    "a mask of -inf": _masked,
    "inf on purpose": lambda: torch.full((2,), float("inf"), device="xla") * 2,
    "what is not determined": _sorted,
    "random numbers": lambda: torch.randn(3, device="xla").exp() + torch.rand(3, device="xla"),
    "bool, integers": lambda: (torch.arange(5, device="xla") > 2).long().cumsum(0),
    "complex": lambda: torch.fft.fft(torch.arange(8.0, device="xla")).abs(),
    "a sum that cancels": lambda: torch.linspace(-3, 3, 81, device="xla").sin().sum(),
    "training": _model(),
    "autocast": _model(torch.bfloat16),
    "a convolution": lambda: F.conv2d(torch.randn(1, 2, 5, 5, device="xla"), torch.randn(3, 2, 3, 3, device="xla")),
    "no_grad": torch.no_grad()(lambda: torch.ones(3, device="xla").add_(1).div_(2)),
}  # fmt: skip


@pytest.mark.parametrize("run", RIGHT.values(), ids=RIGHT.keys())
def test_nothing_is_found_where_nothing_is_wrong(run):
    debug.check(run)


def _replace(monkeypatch, name, change):
    """The lowering of an op with what it returns changed."""
    load_families()
    good = registry._TABLE[name]
    monkeypatch.setitem(registry._TABLE, name, dataclasses.replace(good, fn=lambda *a, **k: change(good.fn(*a, **k))))


def _chain():
    x = torch.linspace(0.1, 1, 12, device="xla").reshape(3, 4)
    for _ in range(90):
        x = x * 0.99 + 0.01
    x = x.tanh()  # the line at fault
    x = x.tanh()
    for _ in range(90):
        x = x * 0.99 + 0.01
    return x.relu() * 0


def _line_of(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_the_first_that_departs_from_the_cpu(monkeypatch):
    _replace(monkeypatch, "aten.tanh", lambda x: x.at[1, 2].mul(1.01))
    with pytest.raises(debug.CheckError, match="departs from the CPU in 1 of 12") as caught:
        debug.check(_chain)
    finding = caught.value.finding
    assert (finding.kind, finding.op, finding.element) == ("departs", "aten::tanh", (1, 2))
    assert f"{__file__}:{_line_of('# the line ' + 'at fault')} (_chain)" == finding.line
    debug.check(_chain, against_cpu=False)
    debug.check(_chain, rtol=0.1)
    debug.check(_chain, atol=0.1)


def test_nan_of_the_device_alone(monkeypatch):
    _replace(monkeypatch, "aten.tanh", lambda x: x / 0)
    for against_cpu in (True, False):
        with pytest.raises(debug.CheckError, match="inf on device xla") as caught:
            debug.check(lambda: torch.ones(3, device="xla").tanh(), against_cpu=against_cpu)
        assert caught.value.finding.op == "aten::tanh"


def test_what_does_not_compile_is_noted(monkeypatch):
    _replace(monkeypatch, "aten.tanh", lambda x: 1 / 0)
    with debug.check() as check:
        _ = (torch.ones(3, device="xla") * 2).tanh() + 1
    assert any("aten::tanh" in note and "does not compile" in note for note in check.notes)


def test_random_rows_are_noted():
    with debug.check() as check:
        _ = torch.rand(3, device="xla") * 2
    assert any("random" in note for note in check.notes)
    assert check.num_rows >= 2


def test_an_index_out_of_range_that_is_computed():
    def look_up():
        index = torch.arange(3, device="xla") + 2
        return torch.ones(3, device="xla")[index]

    with pytest.raises(IndexError, match=r"aten::index at .*test_check.py"):
        debug.check(look_up)


def test_nothing_is_lost_and_nothing_is_reported_twice():
    torch_xla.sync()
    kept = torch.arange(3.0, device="xla")
    with debug.check():
        bad = kept.log()
        with pytest.raises(debug.CheckError):
            bad.tolist()
        assert bad.tolist()[1] == 0
        assert (kept + 1).tolist() == [1, 2, 3]
    with debug.check():
        pass
    assert kept.tolist() == [0, 1, 2]


def test_what_was_pending_before_is_not_examined():
    torch_xla.sync()
    bad = torch.zeros(2, device="xla").log()
    with debug.check():
        assert (torch.ones(2, device="xla") * 2).tolist() == [2, 2]
    assert bad.tolist() == [float("-inf")] * 2


def test_an_exception_of_the_block_goes_first():
    def fail():
        _ = torch.zeros(2, device="xla").log()
        raise ValueError("from the block")

    with pytest.raises(ValueError, match="from the block"):
        debug.check(fail)
    torch_xla.sync()


@pytest.mark.parametrize("full_graph", [False, True])
def test_inside_a_compiled_function(full_graph):
    x = torch.ones(3, device="xla")

    @torch_xla.compile(full_graph=full_graph)
    def step(y):
        return (y - 1).log()

    for _ in range(4):
        step(x + 1)
    with debug.check():
        step(x + 1)
        with pytest.raises(debug.CheckError) as caught:
            step(x)
    assert caught.value.finding.op == "aten::log"
    assert step(x + 1).tolist() == [0, 0, 0]


def test_nested_and_left():
    with debug.check(nonfinite=False), pytest.raises(debug.CheckError):
        debug.check(_nan)
    _nan().item()  # outside, nothing is checked


def test_slices_and_selections_are_compared_too():
    x = torch.arange(12.0).view(3, 4).to("xla")
    with debug.check() as found:
        y = x.clone()
        y[1:, 2] += x[0, 1:3]
        assert y.tolist() == [[0, 1, 2, 3], [4, 5, 7, 7], [8, 9, 12, 11]]
    assert found.num_rows
    assert not found.notes
