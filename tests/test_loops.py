"""Torch functions inside a program: loops, and functions that are traced once."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla._src.compile import donation
from torch_xla.debug import memory
from torch_xla.experimental.assume_pure import PureModule, assume_pure, assume_pure_torch
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers

LENGTH = 5


def loop(fn, carry, xs):
    """What scan does, in Python, for one tensor of inputs and one of outputs."""
    ys = []
    for x in xs:
        carry, y = fn(carry, x)
        ys.append(y)
    return carry, torch.stack(ys)


def numbers():
    torch.manual_seed(0)
    return torch.randn(2, 3), torch.randn(LENGTH, 2, 3), torch.randn(3, 3)


# ---- scan -----------------------------------------------------------------------------------------------------------


def test_scan_gives_the_numbers_and_gradients_of_the_loop_and_is_one_loop_in_the_program():
    def run(device, function):
        init, xs, w = (t.to(device).requires_grad_() for t in numbers())

        def step(carry, x):
            carry = torch.tanh(carry @ w + x)
            return carry, torch.nn.functional.layer_norm(carry, (3,)).relu()

        carry, ys = function(step, init, xs)
        if device == "xla":
            assert xm.get_stablehlo([carry]).count("stablehlo.while") == 1
        (carry.sum() + (ys * ys).sum()).backward()
        return [t.detach().cpu() for t in (carry, ys, init.grad, xs.grad, w.grad)]

    for ours, theirs in zip(run("xla", scan), run("cpu", loop), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_scan_takes_and_gives_nested_data():
    init, xs, _ = (t.to("xla") for t in numbers())

    def step(carry, x):
        new = {"sum": carry["sum"] + x["a"], "count": carry["count"] + 1}
        return new, (new["sum"].mean(), None, [x["b"] * 2])

    start = {"sum": init, "count": torch.zeros((), dtype=torch.int64, device="xla")}
    carry, ys = scan(step, start, {"a": xs, "b": torch.arange(LENGTH, device="xla")})
    torch.testing.assert_close(carry["sum"], init + xs.sum(0), rtol=1e-5, atol=1e-5)
    assert (carry["count"].item(), carry["count"].dtype) == (LENGTH, torch.int64)
    assert ys[1] is None
    assert ys[2][0].tolist() == [0, 2, 4, 6, 8]


def test_a_loop_over_scans_replays_though_the_function_is_made_anew_and_weights_change():
    init, xs, w = (t.to("xla") for t in numbers())
    w = torch.nn.Parameter(w)
    optimizer = torch.optim.SGD([w], lr=0.01)
    traced, found = [], []
    for _ in range(5):
        met.clear_all()
        optimizer.zero_grad()

        def step(carry, x):
            traced.append(1)
            return torch.tanh(carry @ w + x), None

        carry, _ = scan(step, init, xs)
        loss = carry.pow(2).sum()
        loss.backward()
        optimizer.step()
        found.append((met.counter_value("RowsRebuilt"), met.counter_value("UncachedCompile"), loss.item()))
    assert [f[:2] for f in found[2:]] == [(None, None)] * 3
    losses = [f[2] for f in found]
    assert losses == sorted(losses, reverse=True)
    assert len(traced) == 1


def test_constants_of_a_function_that_is_made_anew_count():
    init, xs, _ = (t.to("xla") for t in numbers())
    results = [scan(lambda c, x, n=n: (c + n, None), init, xs)[0] for n in (1, 2, 2.0)]
    for n, result in zip((1, 2, 2.0), results, strict=True):
        torch.testing.assert_close(result, init + n * LENGTH)


def test_a_trace_is_that_of_the_autocast_that_is_on():
    init, xs, w = (t.to("xla") for t in numbers())

    def step(carry, x):
        return carry @ w + x, None

    def run(enabled):
        with torch.autocast("xla", torch.bfloat16, enabled=enabled):
            return scan(step, init, xs)[0].cpu(), torch.stack([init @ w]).cpu()

    linear = assume_pure(lambda x: torch.nn.functional.linear(x, x.new_ones(4, 3)))
    for enabled in (True, False, True):
        with torch.autocast("xla", torch.bfloat16, enabled=enabled):
            assert linear(xs).dtype is (torch.bfloat16 if enabled else torch.float32)
            with torch.autocast("xla", enabled=False):
                assert linear(xs).dtype is torch.float32
        carry, one = run(enabled)
        assert one.dtype is (torch.bfloat16 if enabled else torch.float32)
        rounding = (carry - loop(lambda c, x: (c @ w.cpu() + x, x), init.cpu(), xs.cpu())[0]).abs().max()
        assert bool(rounding > 1e-3) is enabled


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, torch.ones(1), torch.ones(2)), "must be callable"),
        ((lambda c, x: (c, x), None, torch.ones(2)), "init must not be None"),
        ((lambda c, x: (c, x), torch.ones(1), {}), "holds no tensors"),
        ((lambda c, x: (c, x), torch.ones(1), torch.ones(())), "without dims"),
        ((lambda c, x: (c, x), torch.ones(1), [torch.ones(2), torch.ones(3)]), r"differ in length: \[2, 3\]"),
        ((lambda c, x: (c, x), torch.ones(1), torch.ones(0, 2)), "empty"),
    ],
)
def test_what_scan_refuses(arguments, text):
    with pytest.raises(ValueError, match=text):
        scan(*arguments)


def test_functions_with_effects_that_a_trace_would_lose_are_errors():
    init, xs, w = (t.to("xla") for t in numbers())
    held = [w]
    pending = w + 1

    def writes(carry, x):
        w.add_(1)
        return carry + x, None

    def writes_argument(carry, x):
        carry += x
        return carry, None

    with pytest.raises(ValueError, match="writes writes in place to a tensor"):
        scan(writes, init, xs)
    with pytest.raises(ValueError, match="writes in place to a tensor"):
        scan(writes_argument, init, xs)
    with pytest.raises(ValueError, match=r"uses an xla tensor of shape \[3, 3\] that it was not given"):
        scan(lambda c, x: (c @ held[0], None), init, xs)
    with pytest.raises(ValueError, match="remat is 'all', and has to be one of nothing, dots, offload"):
        scan(lambda c, x: (c + x, None), init, xs, remat="all")
    with pytest.raises(TypeError, match="carry"):
        scan(lambda c, x: (c.sum(), None), init, xs)
    assert torch.equal(pending, w + 1)  # neither changed nor lost


# ---- scan_layers ----------------------------------------------------------------------------------------------------


def layer():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())


def test_layers_as_a_loop():
    torch.manual_seed(0)
    theirs = torch.nn.ModuleList([layer() for _ in range(6)])
    ours, x = copy.deepcopy(theirs).to("xla"), torch.randn(2, 4)
    expected = x
    for one in theirs:
        expected = one(expected)
    expected.sum().backward()
    for _ in range(3):
        met.clear_all()
        ours.zero_grad()
        result = scan_layers(ours, x.to("xla"))
        assert xm.get_stablehlo([result]).count("stablehlo.while") == 1
        result.sum().backward()
        torch_xla.sync()
    assert met.counter_value("UncachedCompile") is None
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def test_layers_that_differ_or_are_none():
    x = torch.ones(2, 4, device="xla")
    assert scan_layers([], x) is x
    assert scan_layers([torch.nn.ReLU(), torch.nn.Tanh()], -x).tolist() == [[0] * 4] * 2
    with pytest.raises(ValueError, match="layer 1 differs from layer 0"):
        scan_layers([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)], x)


@pytest.mark.parametrize("remat", ["nothing", "dots", "offload"])
def test_layers_are_computed_again_with_the_numbers_they_had(remat):
    def layers(dropout):
        torch.manual_seed(0)
        parts = [
            torch.nn.Linear(8, 8),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(8, 8),
            torch.nn.Tanh(),
        ]
        return torch.nn.ModuleList([copy.deepcopy(torch.nn.Sequential(*parts)) for _ in range(4)]).to("xla")

    def gradients(dropout, remat):
        ours, x = layers(dropout), torch.ones(16, 8, device="xla")
        torch.manual_seed(1)
        result = scan_layers(ours, x, remat=remat)
        result.square().sum().backward()
        return [result.detach().cpu(), *[p.grad.cpu() for p in ours.parameters()]]

    for dropout in (0.0, 0.5):
        for a, b in zip(gradients(dropout, remat), gradients(dropout, None), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not torch.equal(gradients(0.5, remat)[0], gradients(0.0, remat)[0])


def test_rematerialisation_saves_temporaries_and_the_program_does_not_grow_with_the_layers():
    def backward(remat, count):
        torch_xla.sync()
        torch.manual_seed(0)
        layers = [
            torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
            for _ in range(count)
        ]
        layers = torch.nn.ModuleList(layers).to("xla")
        scan_layers(layers, torch.ones(256, 32, device="xla"), remat=remat).square().sum().backward()
        torch_xla.sync()
        return memory.last().temporaries, donation._last.program.executable.as_text()

    every, dots, nothing = (backward(remat, 16)[0] for remat in (None, "dots", "nothing"))
    assert nothing < dots < every
    assert nothing < every / 2

    def in_loops(text):
        return text.count(" while(")

    assert in_loops(backward("nothing", 4)[1]) == in_loops(backward("nothing", 16)[1])


def test_each_iteration_draws_its_own_numbers_and_the_seed_decides_them():
    init, xs, _ = (t.to("xla") for t in numbers())

    def draw():
        torch.manual_seed(3)
        return scan(lambda c, x: (c, torch.rand_like(x)), init, xs)[1].cpu()

    drawn = draw()
    assert torch.equal(drawn, draw())
    assert len({tuple(x.flatten().tolist()) for x in drawn}) == LENGTH
    torch.manual_seed(3)
    state = xm.get_rng_state()
    scan(lambda c, x: (c + x, None), init, xs)
    assert xm.get_rng_state() == state  # none is drawn where none is needed


def test_a_layer_that_stops_training_drops_nothing():
    layers = torch.nn.ModuleList(
        [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)) for _ in range(3)]
    ).to("xla")
    x = torch.ones(8, 4, device="xla")
    scan_layers(layers, x).cpu()
    layers.eval()
    expected = x
    for one in layers:
        expected = one(expected)
    torch.testing.assert_close(scan_layers(layers, x), expected, rtol=1e-5, atol=1e-5)


# ---- loops without a fixed length -----------------------------------------------------------------------------------


def test_while_loops():
    limit = torch.tensor(7, device="xla")
    start = (torch.tensor(0, device="xla"), torch.ones(2, device="xla"))
    i, doubled = while_loop(
        lambda i, x, by: i < limit, lambda i, x, by: (i + 1, x * by), start, (torch.tensor(2.0, device="xla"),)
    )
    assert (i.item(), doubled.tolist()) == (7, [128, 128])
    assert fori_loop(2, 6, lambda v: v + 1, torch.zeros(2, device="xla")).tolist() == [4, 4]
    upper = torch.tensor(3, device="xla")
    a, b = fori_loop(0, upper, lambda a, b: (b, a + b), torch.tensor(0, device="xla"), torch.tensor(1, device="xla"))
    assert (a.item(), b.item()) == (2, 3)


# ---- functions that are traced once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [assume_pure, assume_pure_torch])
def test_a_pure_function_is_traced_once_for_each_set_of_shapes(wrap):
    traced = []

    @wrap
    def function(x, *, scale, pair):
        traced.append(x.shape)
        return {"y": torch.sin(x) * scale + pair[0], "n": [pair[1]]}

    for n in (3, 3, 4, 3):
        x = torch.arange(float(n), device="xla", requires_grad=True)
        result = function(x, scale=2.0, pair=(torch.ones(n, device="xla"), x.sum()))
        torch.testing.assert_close(result["y"].cpu(), torch.sin(x.cpu()) * 2 + 1)
        (result["y"].sum() + result["n"][0]).backward()
        torch.testing.assert_close(x.grad.cpu(), 2 * torch.cos(x.detach().cpu()) + 1)
    assert traced == [(3,), (4,)]


def test_random_numbers_come_from_the_seed():
    x = torch.ones(64, device="xla")
    dropout = assume_pure(lambda x: torch.nn.functional.dropout(x, 0.5), add_rng_seed_argument=True)
    first, again, other = (dropout(seed, x) for seed in (3, torch.tensor(3, device="xla"), 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 10 < (first == 0).sum().item() < 54
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        assume_pure(lambda x: torch.rand_like(x))(x)


def test_a_pure_module_trains():
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    calls = []
    theirs[1].register_forward_hook(lambda *_: calls.append(1))
    ours = PureModule(copy.deepcopy(theirs).to("xla"))
    x = torch.randn(5, 4)

    def train(module, x):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = module(x).pow(2).mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    expected = train(theirs, x)
    calls.clear()
    assert train(ours, x.to("xla")) == pytest.approx(expected, rel=1e-4)
    assert len(calls) == 1
    assert next(iter(dict(ours.named_parameters()))) == "_module.0.weight"


def test_a_module_that_a_function_captures_gets_gradients():
    module = torch.nn.Linear(3, 2).to("xla")
    function = assume_pure(lambda x: module(x).sum())
    function(torch.ones(4, 3, device="xla")).backward()
    assert module.weight.grad.tolist() == [[4.0] * 3] * 2
    with torch.no_grad():
        module.weight.zero_()
        module.bias.fill_(1)
    assert function(torch.ones(4, 3, device="xla")).item() == 8


def test_casts_in_a_trace_can_be_viewed():
    x = torch.arange(12.0).view(2, 2, 3).to("xla")
    result = assume_pure(lambda x: x.to(torch.bfloat16).view(4, 3) @ x.to(torch.bfloat16)[0].t())(x)
    assert result.dtype is torch.bfloat16
    assert result.tolist() == (x.cpu().view(4, 3) @ x.cpu()[0].t()).bfloat16().tolist()


def test_layers_under_autocast_carry_the_dtype_that_they_were_given():
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)]).to("xla")
    plain, x = copy.deepcopy(layers), torch.randn(2, 4, 3).to("xla")
    with torch.autocast("xla", torch.bfloat16):
        result, expected = scan_layers(layers, x), plain[1](plain[0](x))
    assert result.dtype is torch.float32
    assert result.tolist() == expected.float().tolist()
    result.sum().backward()
    expected.float().sum().backward()
    for ours, theirs in zip(layers.parameters(), plain.parameters(), strict=True):
        assert ours.grad.dtype is torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2, atol=2e-2)
