"""How many programs a whole training run compiles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.debug.metrics as met
from tests.models import MODELS


@pytest.mark.parametrize("foreach", [None, True, False], ids=["default", "foreach", "for-loop"])
def test_a_training_loop_compiles_two_programs_for_training_one_for_evaluation_one_for_logging(foreach):
    """100 steps with a schedule, bias correction, changing seeds, dropout, and evaluation every ten steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    ).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    x, y = torch.randn(32, 8).to("xla"), torch.randint(0, 3, (32,)).to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    accuracies, logged = [], []
    for step in range(100):
        torch.manual_seed(step)
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                accuracies.append((model(x).argmax(1) == y).float().mean().item())
            logged.append((loss * 1).item())
    assert (met.counter_value("UncachedCompile") or 0) <= 4  # none at all if an equal loop ran before
    assert logged[-1] < logged[0]


@pytest.mark.parametrize("name", MODELS)
def test_steps_after_the_second_replay_entirely(name):
    kind, make_batch, loss_function = MODELS[name]
    torch.manual_seed(0)
    model = kind().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = [[t.to("xla") for t in make_batch()] for _ in range(5)]
    torch_xla.sync(wait=True)
    for step, (x, y) in enumerate(batches):
        met.clear_all()
        optimizer.zero_grad()
        loss_function(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        if step >= 2:
            assert (met.counter_value("UncachedCompile"), met.counter_value("RowsRebuilt")) == (None, None)
            assert met.counter_value("MetaKernelCalls") is None
            assert met.counter_value("ExecuteComputation") == 1


def test_a_short_last_batch_compiles_once():
    model = torch.nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(10, 4)
    torch_xla.sync(wait=True)
    compiles = []
    for _ in range(3):
        met.clear_all()
        for batch in data.split(4):
            optimizer.zero_grad()
            model(batch.to("xla")).sum().backward()
            optimizer.step()
        compiles.append(met.counter_value("UncachedCompile"))
    assert compiles == [2, None, None]


def test_explicit_syncs_change_nothing():
    """A loop with explicit calls, as written for PyTorch/XLA, runs the same programs as one without."""
    import torch_xla.core.xla_model as xm

    def run(explicit):
        model = torch.nn.Linear(4, 2)
        torch.nn.init.ones_(model.weight)
        model = model.to(torch_xla.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(3, 4).to("xla")
        torch_xla.sync(wait=True)
        met.clear_all()
        for _ in range(4):
            optimizer.zero_grad()
            model(x).sum().backward()
            if explicit:
                xm.optimizer_step(optimizer)
                torch_xla.sync()
            else:
                optimizer.step()
        return met.counter_value("ExecuteComputation"), model.weight.tolist()

    assert run(True) == run(False)


def test_full_graph_refuses_an_early_run():
    x = torch.ones(3, device="xla")

    @torch_xla.compile(full_graph=True)
    def reads(x):
        return x * 2 if (x.sum() > 0).item() else x

    @torch_xla.compile(full_graph=True)
    def does_not(x):
        return x * 2

    assert does_not(x).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="Unexpected execution happens inside the compiled function"):
        reads(x)


def test_max_different_graphs():
    @torch_xla.compile(max_different_graphs=1)
    def double(x):
        return x * 2

    for _ in range(3):
        assert double(torch.ones(3, device="xla")).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="Maximum number of different graphs allowed per function exceeded: 1"):
        double(torch.ones(4, device="xla"))


def _windows(x):
    return [(x[i : i + 2] * 1).cpu() for i in range(0, 10, 2)]  # a program per round


def _elements(x):
    return [(x[i] * 1).cpu() for i in range(-3, 8)]


def _written(x):
    y = torch.zeros_like(x)
    for i in range(0, 10, 2):
        y[i : i + 2] = x[i : i + 2] + i
        y[i + 1] = i
        y.sum().item()
    return [y]


@pytest.mark.parametrize("loop", [_windows, _elements, _written], ids=lambda f: f.__name__.strip("_"))
def test_a_window_that_moves_is_one_program(loop):
    """`x[i : i + n]` and `x[i]` in a loop, read or written: the start is an input from the second round on."""
    data = torch.arange(40.0).reshape(10, 4)
    x = data.to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    actual = loop(x)
    assert met.counter_value("UncachedCompile") <= 3
    for got, want in zip(actual, loop(data), strict=True):
        assert got.tolist() == want.tolist()


def test_minibatches_sliced_from_a_tensor_on_the_device():
    x, y = torch.randn(64, 4).to("xla"), torch.randn(64, 1).to("xla")
    model = torch.nn.Linear(4, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch_xla.sync(wait=True)
    met.clear_all()
    for i in range(0, 64, 8):
        optimizer.zero_grad()
        (model(x[i : i + 8]) - y[i : i + 8]).square().mean().backward()
        optimizer.step()
    assert met.counter_value("UncachedCompile") <= 2
