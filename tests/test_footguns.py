"""What may surprise. Each test shows one behaviour; a comment says what one might expect instead, and why it is not so."""

from __future__ import annotations

import copy
import time

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
from torch_xla.debug import metrics


def executed():
    return metrics.counter_value("ExecuteComputation") or 0


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_no_memory_is_shared_with_numpy():
    array = np.zeros(2, np.float32)
    x = torch.from_numpy(array).to("xla")
    array[0] = 5
    assert x.tolist() == [0, 0]  # not [5, 0]: a copy, as for any device
    back = x.cpu().numpy()
    back[0] = 7
    assert x.tolist() == [0, 0]  # not [7, 0]


def test_a_host_tensor_may_change_after_the_copy_was_asked_for():
    host = torch.zeros(1000)
    x = host.to("xla", non_blocking=True)
    host.fill_(5)
    assert x.sum().item() == 0  # not 5000: the copy is complete, or private, when `to` returns


def test_cpu_copies_each_time():
    x = torch.ones(2, device="xla")
    assert x.cpu() is not x.cpu()
    x.cpu().zero_()
    assert x.tolist() == [1, 1]


def test_addresses_are_not_addresses():
    x = torch.ones(2, device="xla")
    assert x.data_ptr() == x.detach().data_ptr()  # says that they share, but there is nothing there to read
    assert x.data_ptr() != x.clone().data_ptr()


def test_strides_are_those_of_pytorch_whatever_the_layout_on_the_device():
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    assert x.t().stride() == (1, 3)
    assert not x.t().is_contiguous()
    assert x.t().contiguous().stride() == (2, 1)
    assert x.expand(4, 2, 3).stride() == (0, 3, 1)
    assert x[:, 1:].storage_offset() == 1
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(-1)


def test_contiguous_of_a_view_is_a_copy():
    x = torch.zeros(2, 3, device="xla")
    x.t().contiguous().fill_(1)
    x.t().reshape(-1).fill_(1)
    assert x.sum().item() == 0  # not 6


def test_contiguous_of_a_view_that_was_written_to_is_a_copy():
    x = torch.zeros(2, 4, device="xla")
    y = x[:, ::2]
    y.add_(1)
    y.contiguous().fill_(9)
    assert x.sum().item() == 4


# ---- aliases ---------------------------------------------------------------------------------------------------------


def test_assignment_detach_and_data_alias():
    a = torch.zeros(2, device="xla")
    b, c, d = a, a.detach(), a.data
    a.add_(1)
    torch_xla.sync()
    for written, alias in enumerate((b, c, d), 1):
        assert alias.tolist() == [written, written]  # not [0, 0]
        alias.add_(1)
    assert a.tolist() == [4, 4]


def test_out_of_place_does_not():
    a = torch.zeros(2, device="xla")
    b = a
    a = a + 1
    assert b.tolist() == [0, 0]
    assert a.tolist() == [1, 1]


def test_a_write_to_a_view_reaches_its_base_and_its_sisters():
    x = torch.zeros(2, 2, device="xla")
    first, second = x[0], x.view(-1)
    first.add_(1)
    assert second.tolist() == [1, 1, 0, 0]
    torch_xla.sync()  # views stay views after the program was launched
    second[3] = 5
    assert x.tolist() == [[1, 1], [0, 5]]
    x.zero_()
    assert first.tolist() == [0, 0]


def test_data_assignment_cuts_old_aliases_off():
    x = torch.zeros(2, device="xla")
    old = x.detach()
    x.data = torch.ones(3, device="xla")
    x.add_(1)
    assert x.tolist() == [2, 2, 2]
    assert old.tolist() == [0, 0]


def test_data_is_written_without_autograd_noticing():
    w = torch.ones(2, device="xla", requires_grad=True)
    loss = (w * w).sum()
    w.data.mul_(10)
    loss.backward()
    assert w.grad.tolist() == [20, 20]  # not [2, 2]: the saved tensor is w itself, and nobody was told of the write


def test_advanced_indexing_copies():
    x = torch.zeros(3, device="xla")
    x[[0, 1]].add_(1)
    assert x.tolist() == [0, 0, 0]  # not [1, 1, 0]: as in PyTorch, only slices are views
    x[[0, 0]] += 1
    assert x.tolist() == [1, 0, 0]  # not [2, 0, 0]


def test_expand_repeats_without_copying_and_refuses_writes():
    x = torch.zeros(1, 3, device="xla")
    y = x.expand(2, 3)
    x.add_(1)
    assert y.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    model.to("xla")
    with torch.no_grad():
        model[0].weight.fill_(3)
    assert model[1].weight.tolist() == [[3, 3], [3, 3]]
    assert len(list(model.parameters())) == 1
    assert copy.deepcopy(model)[1].weight.tolist() == [[3, 3], [3, 3]]


# ---- time ------------------------------------------------------------------------------------------------------------


def test_nothing_runs_until_it_has_to():
    torch_xla.sync()
    before = executed()
    x = torch.ones(2, device="xla") + 1
    assert executed() == before  # not 1: recorded only
    x.tolist()
    assert executed() == before + 1


def test_timing_needs_a_wait():
    x = torch.ones(64, 64, device="xla")
    start = time.perf_counter()
    y = x @ x  # only recorded: a clock stopped here measures nothing
    torch_xla.sync()  # launched, maybe not finished: a clock stopped here measures little
    torch_xla.sync(wait=True)  # finished: stop the clock here
    assert time.perf_counter() > start
    assert y[0, 0].item() == 64


def test_a_print_inside_a_loop_cuts_the_program(capsys):
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    before = executed()
    for _ in range(3):
        x = x + 1
        print(x)  # reads, so everything up to here runs now
    assert executed() == before + 3  # not 1
    assert capsys.readouterr().out.count("tensor") == 3


def test_control_flow_on_values_reads_too():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    before = executed()
    if x.sum() > 2:
        x = x * 2
    assert executed() == before + 1  # not 0: Python has to know which way to go
    assert torch.where(x.sum() > 2, x, -x).tolist() == [2, 2, 2]  # this way nothing is read until the end


def test_python_runs_each_time():
    calls = []

    @torch_xla.compile
    def step(x):
        calls.append(1)
        return x + len(calls)

    x = torch.zeros(1, device="xla")
    assert [step(x).item() for _ in range(3)] == [1, 2, 3]  # not [1, 1, 1]: this is not a trace that is frozen
    assert len(calls) == 3


def test_losses_kept_in_a_list_stay_valid():
    w = nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.SGD([w], lr=0.1)
    losses, snapshots, references = [], [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        optimizer.step()  # gives the buffer of the old w away
        losses.append(loss)
        snapshots.append(w.detach().clone())
        references.append(w.detach())
    values = [float(x.detach()) for x in losses]
    assert values[0] > values[1] > values[2]
    assert snapshots[0][0].item() > snapshots[2][0].item()
    assert (
        references[0].tolist() == references[2].tolist()
    )  # not the old values: detach shares with w, which was updated


def test_keeping_a_loss_keeps_its_graph():
    w = nn.Parameter(torch.ones(2, device="xla"))
    total = 0
    for _ in range(3):
        total = total + (w * w).sum()  # a graph that grows: as in PyTorch, detach what is only logged
    total.backward()
    assert w.grad.tolist() == [6, 6]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_zero_dimensional_host_tensors_mix():
    x = torch.ones(2, device="xla")
    assert (x * torch.tensor(3.0)).is_xla  # not an error: as on CUDA
    with pytest.raises(RuntimeError, match="same device"):
        x * torch.tensor([3.0])  # one dimension is one too many


def test_the_seed_is_that_of_torch_but_the_numbers_are_not_those_of_the_cpu():
    torch.manual_seed(0)
    on_xla = torch.rand(3, device="xla")
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3, device="xla"), on_xla)
    assert not torch.equal(on_xla.cpu(), torch.rand(3))  # as on CUDA: each kind of device has its own generator


def test_new_shapes_compile_anew():
    def compiled_for(rows):
        x = torch.ones(rows, 3, device="xla")
        torch_xla.sync()
        before = metrics.counter_value("UncachedCompile") or 0
        (x * 2 + 5).tolist()
        return (metrics.counter_value("UncachedCompile") or 0) - before

    assert compiled_for(11) == 1
    assert compiled_for(12) == 1  # not 0: pad or bucket lengths that vary
    assert compiled_for(11) == 0


def test_a_python_number_that_changes_compiles_once_more_only():
    def compiled_for(number):
        x = torch.ones(5, device="xla")
        torch_xla.sync()
        before = metrics.counter_value("UncachedCompile") or 0
        (x.clamp(max=number) - 7).tolist()
        return (metrics.counter_value("UncachedCompile") or 0) - before

    assert [compiled_for(n) for n in (0.5, 0.25, 0.125, 0.75)] == [1, 1, 0, 0]  # not [1, 1, 1, 1]: it became an input
