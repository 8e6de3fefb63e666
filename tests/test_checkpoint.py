"""Gradient checkpointing saves memory, by the compiler's own account, and gradients are what they were."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.utils.checkpoint as xla_checkpoint
from tests.models import CHECKPOINTS, Gpt, checkpointed
from tests.tpu import figures, needs_libtpu
from torch_xla._src.compile import program_cache
from torch_xla._src.device.checkpoint import checkpoint_module
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.ops import recompute


def last_program():
    (_, key), row = next(reversed(program_cache._used.items()))
    return row.programs[key]


def temporaries():
    """Bytes, of the program that ran last."""
    return last_program().executable.memory_analysis().temp_size_in_bytes


def gpt(kind=None, layers=4, dropout=0.0):
    torch.manual_seed(0)
    model = Gpt(vocabulary=32, width=32, heads=4, layers=layers, context=32)
    for block in model.blocks:
        block.mlp.append(nn.Dropout(dropout))
    model.to("xla")
    return model if kind is None else checkpointed(model, kind)


def batch():
    torch.manual_seed(1)
    return torch.randint(0, 32, (8, 32)).to("xla")


def backward(model, tokens, cut=False):
    """A forward and a backward pass: what the compiler needs for it, and the gradients."""
    torch.manual_seed(2)
    model.zero_grad()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    if cut:
        torch_xla.sync()
    loss.backward()
    torch_xla.sync()
    return temporaries(), [p.grad.cpu() for p in model.parameters()]


@functools.cache
def plain(layers=4, dropout=0.0, cut=False):
    """The same without checkpointing."""
    return backward(gpt(None, layers, dropout), batch(), cut)


def assert_same(gradients, expected):
    # Programs that fuse differently round differently.
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_temporaries_fall_and_gradients_stay(kind):
    before, expected = plain(12)
    after, gradients = backward(gpt(kind, 12), batch())
    factor = 1.5 if kind == "selective" else 3  # which keeps the matrix products
    assert before >= factor * after
    assert_same(gradients, expected)


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_in_a_program_of_its_own_the_backward_pass_recomputes_late(kind):
    before, expected = plain(12, cut=True)
    after, gradients = backward(gpt(kind, 12), batch(), cut=True)
    assert before >= 2 * after  # what the forward pass hands over is not among the temporaries
    assert_same(gradients, expected)


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant", "closure", "keyword"])
def test_dropout_draws_the_same_numbers_again(kind):
    before, expected = plain(dropout=0.2)
    after, gradients = backward(gpt(kind, dropout=0.2), batch())
    assert before >= 1.5 * after
    assert_same(gradients, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_random_numbers_are_not_drawn_ahead_and_held(reentrant):
    def block(x, weight):
        for _ in range(3):
            x = F.dropout(F.gelu(x @ weight), 0.1)
        return x

    def backward(layers):
        torch.manual_seed(0)
        x = torch.randn(64, 64).to("xla").requires_grad_()
        weights = [torch.randn(64, 64).div(8).to("xla").requires_grad_() for _ in range(layers)]
        torch_xla.sync()
        y = x
        for weight in weights:
            y = checkpoint(block, y, weight, use_reentrant=reentrant)
        y.sum().backward()
        torch_xla.sync()
        return temporaries()

    size = 64 * 64 * 4  # a layer keeps what it starts with
    assert backward(12) - backward(4) <= 8 * 1.5 * size


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_under_autocast(kind):
    def gradients(kind):
        model = gpt(kind, 2)
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch()).flatten(0, 1), batch().flatten())
        loss.backward()  # outside of the region, as recommended
        return [p.grad.cpu() for p in model.parameters()]

    torch.testing.assert_close(gradients(kind), gradients(None), rtol=0.05, atol=1e-2)


def test_without_preserved_random_state_dropout_draws_other_numbers():
    x = torch.ones(64, device="xla", requires_grad=True)
    y = checkpoint(lambda x: F.dropout(x) * x, x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    # The mask of the forward pass is saved nowhere, so where both masks were ones is all that agrees: 2x * mask.
    assert not torch.equal(x.grad, 2 * y.detach())


def test_a_step_with_checkpointing_replays():
    model, tokens = gpt("not reentrant", dropout=0.1), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        counts.append((RECORDER.rebuilt, met.counter_value("UncachedCompile")))
    assert counts[1] == counts[2]


def test_the_barrier_is_in_the_program(monkeypatch):
    lowered = []
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")  # a program without a barrier is not to be kept
    monkeypatch.setattr(recompute.lax, "optimization_barrier", lambda x: lowered.append(len(x)) or x)
    x = torch.ones(4, 4, device="xla", requires_grad=True)
    checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum().backward()
    torch_xla.sync()
    assert lowered == [2]  # x, and the gradient that has come so far


def test_nested_checkpoints():
    def check(wrap, device):
        torch.manual_seed(0)
        layers = [nn.Linear(8, 8) for _ in range(4)]
        model = nn.Sequential(*layers).to(device)

        def inner(x):
            return wrap(lambda x: layers[1](x).tanh(), layers[0](x).sin()).cos()

        x = torch.linspace(-1, 1, 24).view(3, 8).to(device).requires_grad_()
        layers[3](wrap(lambda x: layers[2](inner(x)).relu(), x)).pow(2).sum().backward()
        return [p.grad.cpu() for p in [x, *model.parameters()]]

    expected = check(lambda f, x: f(x), "cpu")
    torch.testing.assert_close(check(lambda f, x: checkpoint(f, x, use_reentrant=False), "xla"), expected)
    # The reentrant kind asks for an input that requires grad: none does within the forward pass of another.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        torch.testing.assert_close(check(lambda f, x: checkpoint(f, x, use_reentrant=True), "xla"), expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_sequential(reentrant):
    def run(use):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)) for _ in range(12)]).to(
            "xla"
        )
        x = torch.randn(128, 64).to("xla").requires_grad_()
        y = checkpoint_sequential(model, 4, x, use_reentrant=reentrant) if use else model(x)
        y.pow(2).sum().backward()
        torch_xla.sync()
        return temporaries(), [p.grad.cpu() for p in model.parameters()]

    before, expected = run(False)
    after, gradients = run(True)
    assert before > 1.5 * after
    assert_same(gradients, expected)


def test_the_function_of_pytorch_xla():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = xla_checkpoint.checkpoint(lambda x: x.sin().exp(), x)
    assert type(y.grad_fn).__name__ == f"{xla_checkpoint.CheckpointFunction.__name__}Backward"  # reentrant by default
    y.sum().backward()
    t = torch.ones(3, requires_grad=True)
    t.sin().exp().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), t.grad)


def test_a_module_that_checkpoints_itself():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU()).to("xla")
    x = torch.ones(2, 4, device="xla")
    module(x).sum().backward()
    expected = module[0].weight.grad.clone()
    module.zero_grad()
    assert checkpoint_module(module) is module
    calls = []
    module[0].register_forward_hook(lambda *_: calls.append(1))  # the recomputation stops before it reaches the last
    module(x).sum().backward()
    assert len(calls) == 2
    torch.testing.assert_close(module[0].weight.grad.cpu(), expected.cpu(), rtol=0.0, atol=0.0)


def test_a_host_read_in_the_recomputation_cuts_it():
    def read(x):
        y = x.sin()
        return y * (2.0 if y.sum().item() > 0 else 3.0) * x.exp()

    def gradient(function, device):
        x = torch.linspace(-1, 2, 6).to(device).requires_grad_()
        function(x).sum().backward()
        return x.grad.cpu()

    expected = gradient(read, "cpu")
    for reentrant in (True, False):
        actual = gradient(lambda x, r=reentrant: checkpoint(read, x * 1, use_reentrant=r), "xla")
        torch.testing.assert_close(actual, expected)


def test_an_error_in_the_recomputation_is_raised_and_nothing_is_lost():
    calls = []

    def function(x):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("the second time")
        return x.sin().exp()

    x = torch.ones(3, device="xla", requires_grad=True)
    pending = x.detach() + 1
    y = checkpoint(function, x, use_reentrant=False)
    with pytest.raises(ValueError, match="the second time"):
        y.sum().backward()
    assert pending.tolist() == [2.0] * 3
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.ones(3).cos())


def test_a_second_backward_pass_recomputes_again():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum()
    y.backward(retain_graph=True)
    y.backward()
    t = torch.ones(3, requires_grad=True)
    t.sin().exp().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * t.grad)


def test_tensors_of_the_cpu_are_none_of_our_business():
    x = torch.ones(3, requires_grad=True)
    before = RECORDER.pending
    checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum().backward()
    assert RECORDER.pending == before


def test_operations_are_counted_as_matrix_products():
    from torch.utils.flop_counter import FlopCounterMode

    model, x = nn.Linear(8, 16).to("xla"), torch.ones(4, 8, device="xla")
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert counter.get_total_flops() == 2 * 4 * 8 * 16


@needs_libtpu
def test_temporaries_fall_on_tpu():
    def measured(kind):
        return figures(kind)[-1]

    assert measured("plain") >= 4 * measured("not reentrant")
