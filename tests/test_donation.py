"""Buffers of values that nobody holds any more are reused, all others are left alone."""

from __future__ import annotations

import gc

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import debug
from torch_xla._src import donors
from torch_xla._src.compile import donation
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of
from torch_xla._src.runtime import memory
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config


def live_bytes():
    torch_xla.sync(wait=True)
    gc.collect()  # what earlier tests have left in cycles
    return memory.live_bytes()


def donated_in_last_program():
    """Numbers of leaves that the last program of the deepest known recording consumes."""
    return [len(p.donated) for row in _all_rows(RECORDER.root) for p in row.programs.values()]


def _all_rows(row):
    rows = [row]  # a tree may be deeper than Python's stack
    while rows:
        yield (row := rows.pop())
        rows += row.children


def test_an_updated_parameter_has_no_second_copy():
    weight = torch.ones(256, 256, device="xla")
    torch_xla.sync(wait=True)
    before = live_bytes()
    for _ in range(3):
        weight.mul_(0.5)
        assert live_bytes() == before
    assert weight[0, 0].item() == 0.125


def test_a_training_step_holds_one_copy_of_parameters_and_state():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(8, 64).to("xla")

    def step():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    step()
    step()
    optimizer.zero_grad()
    before = live_bytes()
    parameter_bytes = sum(p.numel() * 4 for p in model.parameters())
    for _ in range(3):
        step()
        optimizer.zero_grad()
        assert live_bytes() - before < 0.05 * parameter_bytes


def test_a_value_that_is_still_held_is_not_donated():
    x = torch.ones(64, device="xla")
    torch_xla.sync()
    snapshot = x.clone()
    alias = x.detach()
    torch_xla.sync()
    y = x * 2
    x.add_(1)
    torch_xla.sync(wait=True)
    assert snapshot.tolist() == [1.0] * 64
    assert alias.tolist() == [2.0] * 64
    assert y.tolist() == [2.0] * 64


def test_a_buffer_held_outside_is_not_donated():
    x = torch.ones(64, device="xla")
    torch_xla.sync()
    buffer = value_of(x).buffer  # somebody got hold of the jax.Array
    x.mul_(3)
    torch_xla.sync(wait=True)
    assert not buffer.is_deleted()
    assert float(buffer.sum()) == 64
    assert x.sum().item() == 192


def test_host_copies_do_not_change_when_the_buffer_is_reused():
    x = torch.ones(1024, device="xla")
    torch_xla.sync()
    host = x.cpu()
    for _ in range(3):
        x.add_(1)
        torch_xla.sync(wait=True)
    assert host.tolist() == [1.0] * 1024


def test_an_upload_does_not_alias_the_host_tensor():
    for size in (3, 64, 1 << 14):  # XLA can alias aligned host memory; sizes below and above a page
        host = torch.ones(size)
        x = host.to("xla")
        torch_xla.sync()
        host.zero_()
        assert x.sum().item() == size


def test_losses_kept_in_a_list_stay_valid():
    weight = torch.ones(3, device="xla", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert [loss.item() for loss in losses] == [3.0, 1.5, 0.0, -1.5]


def test_gradients_that_are_views_have_one_buffer():
    """The gradient of a linear layer's weight is a transposed view of a product. Note [Views at a cut]."""
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)]).to("xla")
    x = torch.ones(8, 128).to("xla")
    before = live_bytes()
    model(x).pow(2).mean().backward()
    torch_xla.sync()
    num_bytes = sum(p.numel() * 4 for p in model.parameters())
    assert num_bytes <= live_bytes() - before < 1.1 * num_bytes
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert norm.item() > 1e-3
    total = sum(p.grad.cpu().pow(2).sum() for p in model.parameters())
    torch.testing.assert_close(total.sqrt().item(), 1e-3, rtol=1e-3, atol=0.0)


def test_a_large_view_is_made_again_when_it_is_used():
    base = torch.arange(256 * 256.0).to("xla").view(256, 256) + 0
    view, row = base.t(), base[3:]
    torch_xla.sync()
    assert value_of(view).buffer is None
    assert value_of(row).buffer is None
    programs = met.counter_value("UncachedCompile")
    assert (view + 1)[2, 1].item() == 259
    assert view[0].tolist()[:2] == [0, 256]  # read as a whole
    base.add_(1)
    assert row[0, 0].item() == 769
    del base
    torch_xla.sync()
    assert view[1, 0].item() == 2
    assert met.counter_value("UncachedCompile") > programs


def test_a_large_view_that_is_read_is_computed_with_the_rest():
    base = torch.arange(256 * 256.0).to("xla").view(256, 256) + 0
    view = base.t()
    before = met.counter_value("UncachedCompile") or 0
    assert view.cpu()[0, 1] == 256
    assert view.cpu()[0, 2] == 512
    assert met.counter_value("UncachedCompile") == before + 1


def _buffers(tensors):
    return [value_of(t).buffer.unsafe_buffer_pointer() for t in tensors]


def _train_once(model, optimizer, x):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_parameters_and_state_stay_in_their_buffers(make):
    # Gradients have the shapes of the parameters, too, and are computed first.
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)]).to("xla")
    optimizer, x = make(model.parameters()), torch.ones(8, 32).to("xla")
    for _ in range(2):
        _train_once(model, optimizer, x)
    torch_xla.sync(wait=True)
    kept = [
        *model.parameters(),
        *(t for s in optimizer.state.values() for t in s.values() if t is not None and t.is_xla),
    ]
    before = _buffers(kept)
    _train_once(model, optimizer, x)
    torch_xla.sync(wait=True)
    assert _buffers(kept) == before


def test_a_step_copies_no_parameter():
    model = torch.nn.Sequential(*[torch.nn.Linear(24, 24) for _ in range(3)]).to("xla")
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.ones(8, 24).to("xla")
    for _ in range(3):
        _train_once(model, optimizer, x)
    torch_xla.sync(wait=True)
    texts = [
        p.executable.as_text()
        for row in _all_rows(RECORDER.root)
        for p in row.programs.values()
        if "24,24" in p.executable.as_text() and len(p.donated) >= 12  # parameters and momentum
    ]
    assert texts
    assert not [line for line in texts[-1].splitlines() if "f32[24,24]{1,0} copy(" in line]


def test_two_tensors_that_trade_places_keep_their_values():
    a, b = torch.full((64, 64), 1.0, device="xla"), torch.full((64, 64), 2.0, device="xla")
    torch_xla.sync(wait=True)
    for _ in range(3):
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
        del old
        torch_xla.sync()
    assert a[0, 0].item() == 2.0
    assert b[0, 0].item() == 1.0


def test_a_tensor_read_after_it_was_written_elsewhere_in_place():
    x, y = torch.randn(64, 64), torch.randn(64, 64)

    def step(a, b):
        product = a @ b
        a.mul_(0.5).add_(b)
        b.sub_(product)
        return (a @ b).sum()

    on_xla = [t.to("xla") for t in (x, y)]
    for _ in range(3):
        expected, actual = step(x, y), step(*on_xla)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-2)
        for a, b in zip(on_xla, (x, y)):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-3)
            b.copy_(a.cpu())  # from here on the same numbers


# ---- the report ------------------------------------------------------------------------------------------------------------


def trained(steps=3):
    """A model with a frozen weight, after some steps, and its optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)).to("xla")
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(2, 16).to("xla")
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return model, optimizer


def test_the_report_says_what_was_donated_and_why_the_rest_was_not():
    model, _ = trained()
    text = debug.donation_report(model)
    leaves = donation.leaves()
    assert len(text.splitlines()) == 2 + len(leaves)
    assert sum(leaf.donated for leaf in leaves) == 3 + 3  # parameters that are trained, and their momentum
    (frozen,) = [line for line in text.splitlines() if "0.weight" in line]
    assert "False" in frozen
    assert "a tensor holds it, and was not written to" in frozen
    assert "test_donation.py" in frozen
    donated = sum(torch.Size(leaf.spec.shape).numel() for leaf in leaves if leaf.donated)
    assert donation.aliased_bytes() == 4 * donated


def test_what_was_not_written_to_is_no_output():
    model, _ = trained()
    program = donation._last.program
    weight = value_of(model[0].weight)
    assert any(leaf.value is weight for leaf in donation.leaves())
    assert weight.index < 0  # an input of the last recording, and nothing else
    outputs = [spec.shape for row in program.rows for n, spec in enumerate(row.outs, row.base) if n in program.live]
    assert tuple(model[0].weight.shape) not in outputs


def test_assert_donated():
    model, optimizer = trained()
    debug.assert_donated()
    kept = value_of(model[1].weight).buffer
    model(torch.ones(2, 16).to("xla")).pow(2).mean().backward()
    optimizer.step()
    with pytest.raises(AssertionError, match=r"leaf 3\n(.|\n)*its jax\.Array is held elsewhere"):
        debug.assert_donated(model)
    del kept
    model(torch.ones(2, 16).to("xla")).pow(2).mean().backward()
    optimizer.step()
    debug.assert_donated(model)


def test_names_are_those_of_a_module():
    for report in (debug.donation_report, debug.assert_donated):
        with pytest.raises(TypeError, match="not of int"):
            report(3)


def test_a_dropped_input_that_no_output_can_take_is_no_failure():
    x = torch.ones(7, 3).to("xla")
    y = x.sum()
    del x
    torch_xla.sync()
    debug.assert_donated()
    assert "no output of this shape and dtype is left to take it" in debug.donation_report()
    assert y.item() == 21


# ---- donors ----------------------------------------------------------------------------------------------------------------


def test_a_donor_is_consumed_while_it_is_there():
    x = torch.ones(64).to("xla")
    assert donors.set_buffer_donation(x, True)
    assert donors.get_buffer_donation(x)
    y = x + 1
    torch_xla.sync()
    assert y.sum().item() == 128
    assert not donors.get_buffer_donation(x)
    with pytest.raises(RuntimeError, match="was donated to a program"):
        x.sum().item()


def test_a_donor_may_be_taken_back_and_ignored():
    x = torch.ones(64).to("xla")
    assert torch.ops.xla.dynamo_set_buffer_donor_(x, True) is x
    donors.set_buffer_donation(x, False)
    y = x + 1
    torch_xla.sync()
    assert x.sum().item() == 64
    donors.set_buffer_donation(x, True)
    with alias_with_buffer_donor_config(False):
        z = x + 2
        torch_xla.sync()
    assert donors.get_buffer_donation(x)
    donors.set_buffer_donation(x, False)
    assert (x + y + z).sum().item() == 64 * 6


def test_what_is_yet_to_be_computed_is_no_donor():
    x = torch.ones(3, device="xla") + 1
    assert not donors.set_buffer_donation(x, True)
    assert x.tolist() == [2.0] * 3
    with pytest.raises(TypeError, match="expected a tensor on device xla"):
        donors.set_buffer_donation(torch.ones(3), True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_that_is_written_through_views_is_held_once(mode):
    gc.collect()
    before = memory.live_bytes()
    cache, position = torch.zeros(2, 4, 1000).to("xla"), torch.zeros(1, dtype=torch.int64).to("xla")
    for _ in range(3):
        with mode():
            for layer in range(2):
                cache[layer].index_copy_(0, position, torch.ones(1, 1000, device="xla"))
            position.add_(1)
        torch_xla.sync(wait=True)
        assert memory.live_bytes() - before <= cache.numel() * 4 + 64
    assert cache.sum().item() == 2 * 3 * 1000
