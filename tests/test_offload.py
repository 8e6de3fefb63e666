"""State of optimizers in the host's memory: in JAX's memory space of that kind on CPU, and by the TPU compiler."""

from __future__ import annotations

import copy
import io
import logging

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.tpu import figures, needs_libtpu
from torch_xla._src import placement
from torch_xla._src.compile import donation
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of
from torch_xla._src.ops import placement as memories
from torch_xla.debug import memory
from torch_xla.utils import offload_optimizer_state

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "sgd without state": (torch.optim.SGD, {}),
    "fused sgd": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "foreach adam": (torch.optim.Adam, {"foreach": True}),
    "adamw": (torch.optim.AdamW, {}),
    "loop adamw": (torch.optim.AdamW, {"foreach": False}),
    "fused adamw": (torch.optim.AdamW, {"fused": True}),
    "capturable adamw": (torch.optim.AdamW, {"capturable": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
}


@pytest.fixture
def two_memories(monkeypatch):
    """JAX's CPU has memory of kind pinned_host, in which nothing may be computed, as on a TPU."""
    monkeypatch.setattr(memories, "has_one_memory", lambda: False)
    monkeypatch.setattr(placement, "in_use", False)
    yield
    torch_xla.sync()


def kinds(optimizer):
    """By memory kind, the names of the state in it."""
    found = {}
    for state in optimizer.state.values():
        for name, x in state.items():
            if isinstance(x, torch.Tensor) and x.is_xla:
                found.setdefault(value_of(x).buffer.sharding.memory_kind, set()).add(name)
    return found


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3))


def train(model, optimizer, device, steps, scaler=None):
    losses = []
    for step in range(steps):
        torch_xla.sync()
        met.clear_all()
        optimizer.zero_grad()
        loss = model(torch.tensor([[step % 5, 1], [2, 4]]).to(device)).sin().sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses


def pair(make, options):
    theirs = model()
    ours = copy.deepcopy(theirs).to("xla")
    return (ours, make(ours.parameters(), lr=0.05, **options)), (theirs, make(theirs.parameters(), lr=0.05, **options))


def assert_alike(ours, theirs):
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_programs_and_donation(two_memories, name):
    make, options = OPTIMIZERS[name]
    if name == "capturable adamw":
        theirs = model()
        ours = copy.deepcopy(theirs).to("xla")
        optimizer = make(ours.parameters(), lr=0.05, **options)
        reference = make(theirs.parameters(), lr=0.05)
    else:
        (ours, optimizer), (theirs, reference) = pair(make, options)
    offload_optimizer_state(optimizer)
    train(ours, optimizer, "xla", 1)
    tensors = {id(x) for state in optimizer.state.values() for x in state.values()}
    rebuilt = RECORDER.rebuilt
    train(ours, optimizer, "xla", 1)  # the same numbers of slots as from now on
    assert met.counter_value("UncachedCompile") is None
    assert RECORDER.rebuilt == rebuilt
    assert {id(x) for state in optimizer.state.values() for x in state.values()} == tensors
    train(theirs, reference, "cpu", 1)
    train(theirs, reference, "cpu", 1)
    assert_alike(ours, theirs)
    found = kinds(optimizer)
    assert found.get("device", set()) <= {"step"}
    if name != "sgd without state":
        assert found["pinned_host"]
        held = donation.leaves()
        assert all(leaf.donated for leaf in held if leaf.spec.shape and leaf.op == "torch_xla.place.default")
        assert any(leaf.op == "torch_xla.place.default" for leaf in held)


def test_state_there_before_moves_at_once_and_dicts_go_round(two_memories):
    (ours, optimizer), (theirs, reference) = pair(torch.optim.AdamW, {})
    train(ours, optimizer, "xla", 2)
    assert set(kinds(optimizer)) == {"device"}
    offload_optimizer_state(optimizer)
    offload_optimizer_state(optimizer)
    assert kinds(optimizer) == {"device": {"step"}, "pinned_host": {"exp_avg", "exp_avg_sq"}}
    train(ours, optimizer, "xla", 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    assert saved["state"][0]["exp_avg"].device.type == "cpu"

    other = torch.optim.AdamW(ours.parameters(), lr=0.05)
    offload_optimizer_state(other)
    other.load_state_dict(saved)
    train(ours, other, "xla", 2)
    assert set(kinds(other)["pinned_host"]) == {"exp_avg", "exp_avg_sq"}
    other.load_state_dict(copy.deepcopy(other.state_dict()))  # of copies, which are views of their storages
    train(ours, other, "xla", 4)
    assert met.counter_value("UncachedCompile") is None
    for steps in (2, 2, 2, 4):
        train(theirs, reference, "cpu", steps)
    assert_alike(ours, theirs)


def test_several_steps_in_a_block_no_gradients_and_new_groups(two_memories):
    (ours, optimizer), (theirs, reference) = pair(torch.optim.Adam, {})
    offload_optimizer_state(optimizer)
    optimizer.step()  # no gradients
    for m, o, device in ((ours, optimizer, "xla"), (theirs, reference, "cpu")):
        extra = nn.Parameter(torch.ones(3, device=device))
        o.add_param_group({"params": [extra], "lr": 0.5})
        for _ in range(2):
            with torch_xla.step():
                for number in range(3):
                    o.zero_grad()
                    loss = m(torch.tensor([0, 1]).to(device)).sin().sum()
                    (loss + extra.square().sum() if number else loss).backward()
                    o.step()
        m.extra = extra
    assert_alike(ours, theirs)
    assert kinds(optimizer) == {"device": {"step"}, "pinned_host": {"exp_avg", "exp_avg_sq"}}


def test_a_frozen_step(two_memories):
    (ours, optimizer), (theirs, reference) = pair(torch.optim.AdamW, {})
    offload_optimizer_state(optimizer)

    def step(m, o, tokens):
        o.zero_grad()
        loss = m(tokens).sin().sum()
        loss.backward()
        o.step()
        return loss

    tokens = torch.tensor([0, 3])
    frozen = torch_xla.compile(lambda t: step(ours, optimizer, t), full_graph=True)
    for _ in range(6):
        frozen(tokens.to("xla"))
        step(theirs, reference, tokens)
    assert_alike(ours, theirs)
    assert kinds(optimizer)["pinned_host"] == {"exp_avg", "exp_avg_sq"}


def test_a_failed_step_leaves_state_that_goes_on(two_memories):
    (ours, optimizer), (theirs, reference) = pair(torch.optim.AdamW, {})
    offload_optimizer_state(optimizer)
    train(ours, optimizer, "xla", 2)
    optimizer.zero_grad()
    ours(torch.tensor([7]).to("xla") * 1).sum().backward()

    def step():
        optimizer.step()
        torch_xla.sync(wait=True)

    with pytest.raises(IndexError):
        step()
    optimizer.zero_grad()
    torch_xla.sync()

    def closure():
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        optimizer.step(closure)
    train(ours, optimizer, "xla", 1)
    train(theirs, reference, "cpu", 2)
    train(theirs, reference, "cpu", 1)
    for ours_state, theirs_state in zip(optimizer.state.values(), reference.state.values(), strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(ours_state[name].cpu(), theirs_state[name], rtol=1e-4, atol=1e-5)
    assert_alike(ours, theirs)


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.Adam])
def test_scaled_steps(two_memories, make):
    (ours, optimizer), (theirs, reference) = pair(make, {})
    offload_optimizer_state(optimizer)
    train(ours, optimizer, "xla", 3, torch.amp.GradScaler("xla", init_scale=8.0))
    assert met.counter_value("UncachedCompile") is None
    train(theirs, reference, "cpu", 3, torch.amp.GradScaler("cpu", init_scale=8.0))
    assert_alike(ours, theirs)
    assert kinds(optimizer)["pinned_host"]


def test_on_cpu_it_does_nothing_and_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr(placement, "_told", False)
    (ours, optimizer), (theirs, reference) = pair(torch.optim.Adam, {})
    with caplog.at_level(logging.WARNING, "torch_xla"):
        for one in (optimizer, optimizer, torch.optim.SGD(ours.parameters(), lr=0.1)):
            offload_optimizer_state(one)
    assert caplog.text.count("one memory") == 1
    assert not optimizer._optimizer_step_pre_hooks
    train(ours, optimizer, "xla", 2)
    train(theirs, reference, "cpu", 2)
    assert_alike(ours, theirs)
    assert set(kinds(optimizer)) == {"device"}


def test_what_cannot_be_offloaded():
    layer = nn.Linear(2, 2).to("xla")
    for wrong in (None, layer, [torch.optim.SGD(layer.parameters())]):
        with pytest.raises(TypeError, match=r"an optimizer of torch\.optim is offloaded"):
            offload_optimizer_state(wrong)
    with pytest.raises(ValueError, match="differentiable=True"):
        offload_optimizer_state(torch.optim.SGD(layer.parameters(), differentiable=True))


def test_an_optimizer_of_another_device_is_left_alone(two_memories):
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    offload_optimizer_state(optimizer)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["exp_avg"].device.type == "cpu"


def test_a_program_is_compiled_for_the_memory_of_its_inputs(two_memories):
    def run(x):
        return torch.ops.torch_xla.place(x, "device") * 2

    x = torch.ones(8).to("xla")
    torch_xla.sync()
    assert run(x).sum().item() == 16
    placement.has_two_memories()
    host = torch.ones(8).to("xla")
    placement.move_to_host(host)
    assert run(host).sum().item() == 16
    assert run(x).sum().item() == 16
    assert "memory of the host" in str(torch_xla.debug.why_compiled(3))


def test_no_buffer_is_donated_from_one_memory_to_the_other(two_memories):
    def host():
        x = torch.arange(6.0).view(2, 3).to("xla")
        placement.has_two_memories()
        placement.move_to_host(x)
        return x

    place, x = torch.ops.torch_xla.place, host()
    y = place(x, "device")
    del x
    torch_xla.sync()
    assert y.tolist() == [[0, 1, 2], [3, 4, 5]]
    z = place(y, "host")
    del y
    torch_xla.sync()
    assert z.tolist() == [[0, 1, 2], [3, 4, 5]]
    copied = copy.deepcopy(z)
    del z
    torch_xla.sync()
    assert value_of(copied).buffer.sharding.memory_kind == "pinned_host"
    assert copied.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(Exception, match="memory"):
        (copied + torch.ones(2, 3).to("xla")).tolist()
    assert place(copied, "device").sum().item() == 15


@needs_libtpu
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_the_tpu_compiler_takes_and_returns_state_in_the_hosts_memory(name):
    """Two layers and an embedding; the compiler may pad."""
    size = 4 * (128 * 1024 + 2 * (1024 * 1024 + 1024)) * (1 if name == "SGD" else 2)
    host_arguments, host_outputs, arguments, host_aliased, _, named = figures("state", name)
    assert size <= host_arguments == host_outputs == host_aliased < 1.05 * size
    assert named > 0
    if name == "Adam":
        plain_host, plain_outputs, plain_arguments, *_, plain_named = figures("state", "plain")
        assert plain_host == plain_outputs == plain_named == 0
        assert plain_arguments - arguments == host_arguments


def test_a_plan_counts_the_hosts_memory_apart(two_memories, monkeypatch):
    class Stats:
        def __getattr__(self, name):
            return 1 if name.startswith("host") else 0

    (ours, optimizer), _ = pair(torch.optim.SGD, {"momentum": 0.9})
    offload_optimizer_state(optimizer)
    train(ours, optimizer, "xla", 1)
    plan = memory.last()
    assert plan.host >= 0

    class Executable:
        def memory_analysis(self):
            return Stats()

    from torch_xla._src.compile import memory_plan

    plan = memory_plan._plan(Executable(), [], [], frozenset())
    assert (plan.host, plan.peak) == (2, 0)
    assert "in host memory" in str(plan)
