"""Gradients of several steps are summed by programs that do not grow with their number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
from torch_xla._src.graph.recorder import RECORDER
from torch_xla.experimental.gradient_accumulation import gradient_accumulation


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model.unused = nn.Parameter(torch.ones(2))
    return model


def batches(steps):
    torch.manual_seed(1)
    return torch.randn(steps, 6, 4), torch.randint(0, 3, (steps, 6))


def plain(model, x, y, carried):
    total = 0.0
    for number in range(len(x)):
        loss = F.cross_entropy(model(x[number]), y[number]) / len(x)
        loss.backward()
        total += loss.item()
        carried = carried + x[number].sum()
    return total, carried


def state(model):
    return [t.detach().cpu() for t in model.state_dict().values()], [
        None if p.grad is None else p.grad.cpu() for p in model.parameters()
    ]


def test_it_is_what_a_plain_loop_does():
    cpu, ours = build(), build().to("xla")
    x, y = batches(5)
    total, carried = plain(cpu, x, y, torch.zeros(()))

    def step(x, y, carried):
        return F.cross_entropy(ours(x), y), carried + x.sum()

    loss, last = gradient_accumulation(step, (x.to("xla"), y.to("xla")), ours, torch.zeros((), device="xla"))
    assert loss.item() == pytest.approx(total, rel=1e-5)
    torch.testing.assert_close(last.cpu(), carried)
    torch.testing.assert_close(state(ours)[0], state(cpu)[0])
    for got, want in zip(state(ours)[1], state(cpu)[1], strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_the_program_does_not_grow():
    model = build().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(steps):
        x, y = (t.to("xla") for t in batches(steps))
        gradient_accumulation(lambda x, y: F.cross_entropy(model(x), y), (x, y), model)
        optimizer.step()
        optimizer.zero_grad()

    run(3)
    (_, short), (none, _), (_, long) = lengths(run, 3, 3, 12)
    assert none == 0
    assert long == short


def test_gradients_that_are_there_are_added_to():
    model = nn.Linear(2, 1, bias=False).to("xla")
    model.weight.grad = torch.full((1, 2), 10.0).to("xla")
    gradient_accumulation(lambda x: model(x).sum(), (torch.ones(4, 1, 2).to("xla"),), model)
    assert model.weight.grad.tolist() == [[11.0, 11.0]]


def test_what_does_not_fit_is_refused():
    model = nn.Linear(2, 1).to("xla")
    x = torch.ones(2, 3, 2).to("xla")
    for tensors, message in (
        ((), "no tensor"),
        ((x[:0],), "element 0"),
        ((x, x[:1]), "has 1 slices"),
        ((3,), "element 0"),
    ):
        with pytest.raises(ValueError, match=message):
            gradient_accumulation(lambda *_: model(x[0]).sum(), tensors, model)
    with pytest.raises(ValueError, match="1 carried tensors"):
        gradient_accumulation(lambda x, _: model(x).sum(), (x,), model, torch.zeros((), device="xla"))
    assert model.weight.grad is None


def lengths(run, *sizes):
    """For each size: rows made anew, and the longest recording that was launched."""
    found = []
    for size in sizes:
        rebuilt, depths = RECORDER.rebuilt, []
        original = RECORDER.cut

        def cut(*args, original=original, depths=depths):
            depths.append(RECORDER.pending)
            original(*args)

        RECORDER.cut = cut
        try:
            run(size)
        finally:
            del RECORDER.cut
        found.append((RECORDER.rebuilt - rebuilt, max(depths)))
    return found


def loop(where):
    """A training step that accumulates gradients in a plain loop over batches on the host or on the device."""
    model = build().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(steps):
        x, y = (t.to(where) for t in batches(steps))
        torch_xla.sync()
        for number in range(steps):
            (F.cross_entropy(model(x[number].to("xla")), y[number].to("xla")) / steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


@pytest.mark.parametrize("where", ["cpu", "xla"])
def test_a_plain_loop_is_cut_for_each_batch(where):
    run = loop(where)
    run(3)
    run(3)
    (none, short), (_, long) = lengths(run, 3, 12)
    assert none == 0
    assert long == short


def test_a_block_of_compile_is_not_cut():
    model = build().to("xla")
    x, y = (t.to("xla") for t in batches(3))

    @torch_xla.compile(full_graph=True)
    def step():
        for number in range(3):
            F.cross_entropy(model(x[number]), y[number]).backward()

    for _ in range(2):
        step()
    assert model[0].weight.grad.isfinite().all()


def test_two_backward_passes_from_different_lines_are_one_program():
    w = torch.ones(3, device="xla", requires_grad=True)
    torch_xla.sync()
    for _ in range(2):
        before = RECORDER.num_cuts
        w.sum().backward()
        w.exp().sum().backward()
        assert RECORDER.num_cuts == before
        torch.optim.SGD([w], lr=0.1).step()


def test_a_loop_without_an_optimizer_is_cut():
    w = torch.ones(3, device="xla", requires_grad=True)

    def run(steps):
        for _ in range(steps):
            w.pow(2).sum().backward()
            with torch.no_grad():
                w.sub_(w.grad, alpha=0.1)
                w.grad = None

    (_, first), (_, short), (none, long) = lengths(run, 2, 4, 16)
    assert first > short == long  # a place is found out at its second backward pass
    assert none == 0
    assert w.tolist() == pytest.approx([0.8**22] * 3, rel=1e-5)
