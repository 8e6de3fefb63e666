"""Eager mode: an op is a program, with the numbers of lazy mode and of the CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.graph.recorder import RECORDER
from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode


@pytest.fixture(autouse=True)
def _eager():
    torch_xla.sync(wait=True)
    met.clear_all()
    eager_mode(True)
    yield
    eager_mode(False)


def count(name):
    data = met.metric_data(name)
    return 0 if data is None else data[0]


def test_each_op_runs_at_once_and_compiles_the_first_time_only():
    x = torch.ones(11, device="xla")
    met.clear_all()
    for n in range(1, 4):
        y = x.mul(3).add(x)
        assert RECORDER.pending == 0
        assert count("EagerOpExecuteTime") == 2 * n
        assert count("EagerOpCompileTime") <= 2
    assert y.tolist() == [4.0] * 11


def test_the_metrics_of_lazy_programs_stay_untouched():
    (torch.ones(13, device="xla") * 2).sum().item()
    assert count("EagerOpExecuteTime") >= 3
    for name in ("CompileTime", "ExecuteTime"):
        assert met.metric_data(name) is None
    for name in ("UncachedCompile", "CachedCompile"):
        assert met.counter_value(name) is None


def test_views_and_writes_to_them_are_those_of_the_cpu():
    def run(device):
        base = torch.arange(60_000.0, device=device)  # large: a view of it has no program of its own
        view = base[10:50_000]
        view.add_(1)
        base.mul_(2)
        strided = view.view(-1, 2)[::3]
        strided.zero_()
        transposed = base.view(100, 600).t()
        transposed[3] += 5
        return base.cpu(), view.cpu(), (transposed @ transposed.t()).sum().cpu(), strided.cpu()

    for ours, theirs in zip(run("xla"), run("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_gives_the_numbers_of_the_cpu(optimizer):
    def run(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        )
        x = torch.randn(5, 6)
        model, x = model.to(device), x.to(device)
        steps = optimizer(model.parameters(), lr=0.1)
        for _ in range(4):
            steps.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            steps.step()
        return loss.item(), model[0].weight.detach().cpu()

    torch.testing.assert_close(run("xla"), run("cpu"), rtol=1e-4, atol=1e-5)


def test_turning_it_on_launches_what_is_pending_and_turning_it_off_records_again():
    eager_mode(False)
    x = torch.ones(3, device="xla") + 1
    assert RECORDER.pending
    eager_mode(True)
    assert not RECORDER.pending
    eager_mode(False)
    y = x + 1
    assert RECORDER.pending
    assert y.tolist() == [3, 3, 3]


def test_the_context_puts_the_mode_back_also_after_an_exception():
    def fail():
        with eager_mode_context(False):
            assert not is_eager_mode()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert is_eager_mode()


def test_errors_come_at_the_op():
    x = torch.ones(3, device="xla")
    with pytest.raises(RuntimeError, match="broadcast"):
        _ = x + torch.ones(4, device="xla")
    assert (x + 1).tolist() == [2, 2, 2]
    with pytest.raises(IndexError):
        torch.ones(3, device="xla")[torch.tensor([7], device="xla")].cpu()
    assert (x + 1).tolist() == [2, 2, 2]


def test_ops_that_only_the_cpu_has_and_random_ones():
    x = torch.randn(3, 3, device="xla")
    assert x.nonzero().shape == (9, 2)
    torch.manual_seed(3)
    first = torch.rand(4, device="xla")
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="xla"))


def test_the_environment_variable_turns_it_on():
    code = """
import torch, torch_xla
from torch_xla.experimental import is_eager_mode
import torch_xla.debug.metrics as met
x = torch.ones(3, device="xla") + 1
print(is_eager_mode(), met.metric_data("EagerOpExecuteTime")[0], met.metric_data("ExecuteTime"), x.tolist())
"""
    command = ["env", "XLA_USE_EAGER_DEBUG_MODE=true", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True 2 None [2.0, 2.0, 2.0]\n", "")
