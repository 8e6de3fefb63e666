"""Writes after a failed check: tensors hold what they held, as on the CPU, where the check raises before the write."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.same import same
from torch_xla._src.compile import poison
from torch_xla._src.graph import contents
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, capturable=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "adam for": lambda p: torch.optim.Adam(p, 1e-2, foreach=False, capturable=True),
}


def _step(model, optimizer, x, shift):
    optimizer.zero_grad()
    loss = model(x + shift).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_training_step_with_a_computed_index_out_of_range(make):
    """As if the step had not been taken, the first one too; no further programs; then training goes on."""
    reference = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(12, 3), nn.BatchNorm1d(3))
    model = copy.deepcopy(reference).to("xla")
    steps = (model, make(model.parameters()), "xla"), (reference, OPTIMIZERS["sgd"](reference.parameters()), "cpu")
    if make is not OPTIMIZERS["sgd"]:  # the others count steps on the device, which PyTorch allows only there
        steps = steps[:1]
    for number in range(7):
        x, shift = torch.randint(0, 8, (5, 3)), torch.tensor(100 if number in (0, 4) else 0)
        if number == 4:
            met.clear_all()
        for trained, optimizer, device in steps:
            before = {name: t.cpu().clone() for name, t in trained.state_dict().items()}
            if shift:
                with pytest.raises(IndexError):
                    _step(trained, optimizer, x.to(device), shift.to(device))
                assert all(torch.equal(t.cpu(), before[name]) for name, t in trained.state_dict().items())
            else:
                _step(trained, optimizer, x.to(device), shift.to(device))
                assert not torch.equal(trained[2].weight.cpu(), before["2.weight"])
    assert met.counter_value("UncachedCompile") is None
    if len(steps) == 2:
        for (name, ours), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5, msg=name)


def _wrong():
    return torch.arange(1, 3, device="xla") + torch.full((2,), 9, device="xla")


def test_writes_before_the_check_stay_and_those_after_it_do_not():
    cache, rows = torch.zeros(4, 3, device="xla"), torch.ones(8, 3, device="xla")
    other, read = torch.zeros(3, device="xla"), torch.full((2, 3), 7.0, device="xla")
    alias = other.detach()
    torch_xla.sync()
    cache[:, 0] = 1
    other += 1
    read.copy_(read + 1)
    found = rows[_wrong()]
    cache[1:3] = found
    cache[0] += 1
    other.mul_(5)  # depends on nothing wrong, but comes after it
    read.copy_(found)
    with pytest.raises(IndexError, match="out of range"):
        cache.sum().item()
    assert cache.tolist() == [[1, 0, 0]] * 4
    assert other.tolist() == alias.tolist() == [1, 1, 1]
    assert read.tolist() == [[8] * 3] * 2
    with pytest.raises(IndexError, match="out of range"):
        found.tolist()
    cache[0] += 1
    assert cache[0].tolist() == [2, 1, 1]


def test_a_tensor_that_was_not_read_gets_its_buffer_back():
    target, rows = torch.full((2, 3), 7.0).to("xla"), torch.ones(8, 3, device="xla")
    torch_xla.sync()
    target.copy_(rows[_wrong()])
    with pytest.raises(IndexError, match="out of range"):
        torch_xla.sync(wait=True)
    assert target.tolist() == [[7] * 3] * 2
    assert not poison.pending


def test_several_checks_between_the_writes_of_one_tensor():
    for wrong in range(4):
        x, rows = torch.zeros(3, device="xla"), torch.ones(4, 3, device="xla")
        torch_xla.sync()
        for number in range(3):
            x += 1
            x += rows[torch.full((1,), number + (100 if number == wrong else 0), device="xla")][0]
        if wrong < 3:
            with pytest.raises(IndexError, match="out of range"):
                x.sum().item()
        assert x.tolist() == [[1, 3, 5, 6][wrong]] * 3


def test_recordings_without_checks_keep_nothing(monkeypatch):
    monkeypatch.setattr(poison, "watching", False)  # as in a process that has run no program with checks
    x = torch.zeros(3, device="xla")
    for _ in range(2):
        torch_xla.sync()
        x += 1
    assert not RECORDER.replaced  # a recording that is known to have no checks so far
    y = torch.zeros(3, device="xla")[torch.arange(1, 3, device="xla")]
    x += 1
    assert RECORDER.replaced == {value_of(x).index: 0}
    assert y.tolist() == [0, 0]
    monkeypatch.setattr(contents, "in_programs", lambda: False)  # as on other clients
    monkeypatch.setattr(poison, "watching", False)
    z = torch.zeros(4, device="xla")[torch.arange(1, 3, device="xla")]
    x += 1
    assert not RECORDER.replaced
    assert z.tolist() == [0, 0]


def test_launches_that_follow_an_unnoticed_failure_write_nothing(unnoticed):
    """A second optimizer and an average of the weights, each with a launch of its own after that of the failed check."""

    def train(device):
        seen = []
        table = nn.Parameter(torch.ones(6, 2, device=device))
        scale = nn.Parameter(torch.ones(2, device=device))
        average = table.detach().clone()
        optimizers = torch.optim.SGD([table], 0.1, momentum=0.9), torch.optim.SGD([scale], 0.1)
        for number in range(6):
            index = torch.full((1,), 1, device=device)
            try:
                loss = (table[index + (100 if number in (2, 4) else 0)] * scale).square().sum()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                with torch.no_grad():
                    average.lerp_(table, 0.1)
                seen.append(loss.item())
            except IndexError:
                seen.append("IndexError")
                for optimizer in optimizers:
                    optimizer.zero_grad()
        return seen, table, scale, average

    same(train, 1e-5)


def test_what_is_pending_when_a_failure_is_found_is_undone_and_what_comes_after_is_not(unnoticed):
    x, y, rows = torch.zeros(3, device="xla"), torch.zeros(3, device="xla"), torch.ones(8, 3, device="xla")
    torch_xla.sync()
    lost = rows[_wrong()]
    torch_xla.sync()
    x += 1
    with pytest.raises(IndexError, match="out of range"):
        lost.tolist()
    y += 1
    assert x.tolist() == [0, 0, 0]
    assert y.tolist() == [1, 1, 1]
    x += 2
    assert x.tolist() == [2, 2, 2]
    assert not poison.pending


def test_a_tensor_that_was_resized():
    x, rows = torch.ones(2, 3, device="xla"), torch.ones(8, 3, device="xla")
    kept = rows[torch.arange(2, device="xla")]
    torch.sum(x, 0, out=kept.resize_(0))
    assert kept.tolist() == [2, 2, 2]
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(x, 1, out=kept)
    assert kept.tolist() == [[2] * 3] * 2


def test_the_first_program_with_checks_is_the_only_one():
    """Also where tensors are written to before the first check: it is not known then that there will be one."""
    script = """
import torch, torch_xla
import torch_xla.debug.metrics as met
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    x, y = torch.ones(5, 3).to("xla"), torch.tensor([0, 1, 2, 3, 0]).to("xla")
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(met.counter_value("UncachedCompile"), len(torch_xla.debug.why_compiled()))
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "1 1\n"
