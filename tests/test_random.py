"""Random numbers on device xla: seeds, state, generators, and no recompilation."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.debug import metrics


def cases(table):
    return pytest.mark.parametrize("draw", table.values(), ids=table.keys())


def _ones(**options):
    return torch.ones(6, device="xla", **options)


D = {"device": "xla"}
# Functions of no argument that draw.
DRAWS = {
    "rand": lambda: torch.rand(6, **D),
    "randn": lambda: torch.randn(6, **D),
    "randn float64": lambda: torch.randn(6, dtype=torch.float64, **D),
    "randint": lambda: torch.randint(0, 1000, (6,), **D),
    "randperm": lambda: torch.randperm(50, **D),
    "rand_like": lambda: torch.rand_like(_ones()),
    "randn_like": lambda: torch.randn_like(_ones()),
    "randint_like": lambda: torch.randint_like(_ones(), 1000),
    "normal": lambda: torch.normal(0.0, _ones()),
    "normal of numbers": lambda: torch.normal(0.0, 1.0, (6,), **D),
    "normal_": lambda: _ones().normal_(),
    "uniform_": lambda: _ones().uniform_(),
    "random_": lambda: _ones(dtype=torch.int64).random_(0, 1000),
    "bernoulli": lambda: torch.bernoulli(torch.full((64,), 0.5, **D)),
    "bernoulli_": lambda: torch.empty(64, **D).bernoulli_(0.5),
    "exponential_": lambda: _ones().exponential_(),
    "geometric_": lambda: torch.ones(64, **D).geometric_(0.1),
    "cauchy_": lambda: _ones().cauchy_(),
    "log_normal_": lambda: _ones().log_normal_(),
    "multinomial": lambda: torch.multinomial(torch.ones(50, **D), 20),
    "poisson": lambda: torch.poisson(torch.full((16,), 20.0, **D)),
    "dropout": lambda: F.dropout(torch.ones(64, **D)),
    "dropout module": lambda: torch.nn.Dropout(0.5)(torch.ones(64, **D)),
    "dropout1d": lambda: F.dropout1d(torch.ones(64, 1, **D)),
    "alpha_dropout": lambda: F.alpha_dropout(torch.ones(64, **D), training=True),
    "rrelu": lambda: F.rrelu(-torch.ones(16, **D), training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(_ones()),
    "attention": lambda: F.scaled_dot_product_attention(*[torch.ones(1, 1, 32, 4, **D)] * 3, dropout_p=0.5),
    "init": lambda: torch.nn.init.xavier_uniform_(torch.empty(4, 4, **D)),
    "trunc_normal_": lambda: torch.nn.init.trunc_normal_(torch.empty(4, 4, **D)),
    "distribution": lambda: torch.distributions.Normal(_ones(), _ones()).sample(),
    "gamma": lambda: torch.distributions.Gamma(_ones(), _ones()).sample(),
}


@cases(DRAWS)
def test_same_seed_same_numbers(draw):
    torch.manual_seed(3)
    first, second = draw(), draw()
    assert first.is_xla
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)  # each call draws anew
    torch.manual_seed(4)
    assert not torch.equal(draw(), first)


SEEDS = {
    "torch.manual_seed": torch.manual_seed,
    "torch.random.manual_seed": torch.random.manual_seed,
    "torch_xla.manual_seed": torch_xla.manual_seed,
    "xm.set_rng_state": xm.set_rng_state,
    "torch.xla.manual_seed": lambda seed: torch.xla.manual_seed(seed),
    "torch.xla.manual_seed_all": lambda seed: torch.xla.manual_seed_all(seed),
}


@cases(SEEDS)
def test_ways_to_seed(draw):
    numbers = []
    for seed in (0, 1, -1, 2**40, 0):
        draw(seed)
        numbers.append(torch.rand(3, device="xla").tolist())
    assert numbers[0] == numbers[-1]
    assert len({tuple(n) for n in numbers}) == 4


def test_every_way_to_seed_gives_the_same_numbers():
    numbers = set()
    for seed in SEEDS.values():
        seed(11)
        numbers.add(tuple(torch.rand(3, device="xla").tolist()))
    assert len(numbers) == 1


def test_torch_seed_draws_a_new_seed_for_xla_too():
    torch.manual_seed(0)
    first = torch.rand(3, device="xla")
    torch.seed()
    assert not torch.equal(torch.rand(3, device="xla"), first)


def test_seeding_does_not_disturb_the_cpu():
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    torch.rand(3, device="xla")
    torch_xla.manual_seed(5)
    assert torch.equal(torch.rand(3), want)


def test_state_is_saved_restored_and_forked():
    torch.manual_seed(1)
    states = xm.get_rng_state(), torch.xla.get_rng_state()
    assert isinstance(states[0], int)
    assert states[1].dtype == torch.uint8
    first = torch.rand(3, device="xla")
    assert xm.get_rng_state() != states[0]
    xm.set_rng_state(states[0])
    assert torch.equal(torch.rand(3, device="xla"), first)
    torch.xla.set_rng_state(states[1])
    assert torch.equal(torch.rand(3, device="xla"), first)
    for options in ({"devices": [0], "device_type": "xla"}, {"device_type": "xla"}):
        torch.xla.set_rng_state(states[1])
        with torch.random.fork_rng(**options):
            torch.manual_seed(99)
            torch.rand(3, device="xla")
        assert torch.equal(torch.rand(3, device="xla"), first)


# Functions of a generator that draw.
GENERATED = {
    "rand": lambda g: torch.rand(6, generator=g, **D),
    "randn": lambda g: torch.randn(6, generator=g, **D),
    "randint": lambda g: torch.randint(0, 1000, (6,), generator=g, **D),
    "randperm": lambda g: torch.randperm(50, generator=g, **D),
    "normal": lambda g: torch.normal(0.0, _ones(), generator=g),
    "normal_": lambda g: _ones().normal_(generator=g),
    "uniform_": lambda g: _ones().uniform_(generator=g),
    "random_": lambda g: _ones().random_(0, 1000, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((64,), 0.5, **D), generator=g),
    "bernoulli_": lambda g: torch.empty(64, **D).bernoulli_(0.5, generator=g),
    "exponential_": lambda g: _ones().exponential_(generator=g),
    "geometric_": lambda g: torch.ones(64, **D).geometric_(0.1, generator=g),
    "cauchy_": lambda g: _ones().cauchy_(generator=g),
    "log_normal_": lambda g: _ones().log_normal_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, **D), 20, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((16,), 20.0, **D), generator=g),
    "init": lambda g: torch.nn.init.kaiming_normal_(torch.empty(4, 4, **D), generator=g),
    "trunc_normal_": lambda g: torch.nn.init.trunc_normal_(torch.empty(4, 4, **D), generator=g),
}


@cases(GENERATED)
def test_a_generator_of_the_cpu_is_honoured(draw):
    torch.manual_seed(0)
    next_of_device = torch.rand(3, device="xla")
    torch.manual_seed(0)
    generators = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    first = draw(generators[0])
    assert first.is_xla
    assert torch.equal(first, draw(generators[1]))
    assert not torch.equal(first, draw(generators[0]))  # it advances
    state = generators[0].get_state()
    again = draw(generators[0])
    generators[0].set_state(state)
    assert torch.equal(draw(generators[0]), again)
    assert torch.equal(torch.rand(3, device="xla"), next_of_device)  # the device's own state stood still


def test_a_generator_of_xla_says_what_to_do():
    for device in ("xla", "xla:0", torch.device("xla")):
        with pytest.raises(RuntimeError, match=r"torch_xla\.manual_seed"):
            torch.Generator(device=device)
    assert isinstance(torch.default_generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert type(torch.Generator()) is type(torch.default_generator)
    assert not isinstance(3, torch.Generator)
    assert issubclass(type(torch.default_generator), torch.Generator)
    assert torch.Generator(device="cpu").device.type == "cpu"
    with pytest.raises((RuntimeError, TypeError)):
        torch.Generator(device="nonsense")


def test_a_seed_or_state_never_recompiles():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5)).to("xla")
    x = torch.ones(2, 4, device="xla")

    def step():
        out = model(x) + torch.randn(8, device="xla", generator=generator)
        torch_xla.sync()
        return out

    generator = torch.Generator()
    torch_xla.sync()
    step()
    metrics.clear_all()
    for seed in range(5):
        torch.manual_seed(seed)
        generator.manual_seed(seed)
        step()
        state = xm.get_rng_state()
        with torch.random.fork_rng(device_type="xla"):
            step()
        xm.set_rng_state(state + 1)
        step()
    assert metrics.counter_value("UncachedCompile") is None


def test_each_step_of_a_replayed_program_draws_a_new_mask():
    drop, x = torch.nn.Dropout(0.5), torch.ones(64, device="xla")
    masks = set()
    for _ in range(4):
        out = drop(x)
        torch_xla.sync()
        masks.add(tuple(out.tolist()))
    assert len(masks) == 4


def test_a_draw_does_not_depend_on_when_the_program_is_cut():
    torch.manual_seed(2)
    together = [torch.rand(3, device="xla") for _ in range(3)]
    torch.manual_seed(2)
    apart = []
    for _ in range(3):
        apart.append(torch.rand(3, device="xla"))
        torch_xla.sync()
    assert [t.tolist() for t in together] == [t.tolist() for t in apart]


_PROGRAM = """
import torch
torch.manual_seed(123)
x = torch.nn.functional.dropout(torch.randn(8, device="xla"))
print(x.tolist(), torch.randperm(9, device="xla").tolist(), torch.nn.Linear(2, 2, device="xla").weight.tolist())
"""


def test_two_processes_draw_the_same():
    runs = [
        subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].strip()


MOMENTS = {
    "rand": (lambda: torch.rand(4000, **D), 0.5, 12**-0.5),
    "randn": (lambda: torch.randn(4000, **D), 0.0, 1.0),
    "randn odd": (lambda: torch.randn(4001, dtype=torch.bfloat16, **D).float(), 0.0, 1.0),
    "exponential_": (lambda: torch.empty(4000, **D).exponential_(2.0), 0.5, 0.5),
    "bernoulli": (lambda: torch.empty(4000, **D).bernoulli_(0.25), 0.25, 0.1875**0.5),
    "dropout": (lambda: F.dropout(torch.ones(4000, **D), 0.2), 1.0, 0.5),
    "poisson": (lambda: torch.poisson(torch.full((4000,), 4.0, **D)), 4.0, 2.0),
}


@pytest.mark.parametrize(("draw", "mean", "deviation"), MOMENTS.values(), ids=MOMENTS.keys())
def test_moments(draw, mean, deviation):
    x = draw().cpu()
    error = 5 * deviation / len(x) ** 0.5  # five standard errors
    assert abs(x.mean().item() - mean) < error
    assert abs(x.std().item() - deviation) < 3 * error
