"""Loops over batches of many lengths: few programs, the CPU's numbers, or an error. Note [Varying lengths]."""

from __future__ import annotations

import inspect
import logging
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.lengths import programs
from tests.lengths.ops import CASES, REFUSED
from torch_xla._src.compile import shape_report
from torch_xla._src.graph.lengths import bucket_of
from torch_xla._src.graph.recorder import RECORDER

WIDTH = 8


def compiled() -> int:
    return met.counter_value("UncachedCompile") or 0


def marked(x: torch.Tensor, *dims: int, low: int = 2, high: int = 24) -> torch.Tensor:
    """`x` on the device, with these dims marked."""
    x = x.to("xla")
    torch_xla.mark_dynamic(x, dims, min=low, max=high)
    return x


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)


# ---- models


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = (t.view(batch, length, 2, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Embedding, two blocks, and a head that is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(20, WIDTH), nn.Embedding(200, WIDTH)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return F.linear(self.norm(self.blocks(x)), self.embedding.weight)


def train_language_model(device: str, lengths: list[int]) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for length in lengths:
        batch = torch.randint(0, 20, (2, length + 1))
        tokens, targets = batch[:, :-1].to(device), batch[:, 1:].contiguous().to(device)
        if device == "xla":
            torch_xla.mark_dynamic(tokens, 1, min=10, max=200)
            torch_xla.mark_dynamic(targets, 1, min=10, max=200)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def test_a_transformer_trains_on_50_lengths_with_6_programs():
    lengths = random.Random(0).sample(range(10, 201), 50)
    want, want_weights = train_language_model("cpu", lengths)
    before = compiled()
    got, got_weights = train_language_model("xla", lengths)
    assert compiled() - before <= 6
    assert got == pytest.approx(want, rel=1e-5)
    for g, w in zip(got_weights, want_weights, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4)


class Encoder(nn.Module):
    """Mean pooling over time, between layers that work at each time."""

    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.RMSNorm(WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.after = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.before(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.after(x.mean(1))


MODELS = {
    "encoder": (Encoder, lambda y: F.cross_entropy(y, torch.arange(2, device=y.device))),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)),
        lambda y: F.mse_loss(y, torch.ones_like(y)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_on_many_lengths(name):
    def train(device):
        torch.manual_seed(0)
        make, loss_of = MODELS[name]
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for length in [17, 3, 9, 24, 5, 2, 11, 17, 8]:
            x = torch.randn(2, length, 4)
            loss = loss_of(model(x if device == "cpu" else marked(x, 1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [x.item() for x in losses], list(model.parameters())

    want, want_weights = train("cpu")
    before = compiled()
    got, got_weights = train("xla")
    assert compiled() - before <= 6
    assert got == pytest.approx(want, rel=1e-4)
    for g, w in zip(got_weights, want_weights, strict=True):
        close(g, w)


def test_inference_gives_tensors_of_the_true_length():
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
    on_device = nn.Sequential(nn.Linear(4, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
    on_device.load_state_dict(model.state_dict())
    on_device.to("xla")
    before = compiled()
    with torch.inference_mode():
        for length in random.Random(1).sample(range(2, 25), 20):
            x = torch.randn(3, length, 4)
            y = on_device(marked(x, 1))
            assert y.shape == (3, length, WIDTH)
            close(y, model(x))
    assert compiled() - before <= 5


# ---- ops


@pytest.mark.parametrize("name", CASES)
def test_op_gives_what_the_cpu_gives(name):
    for length in (7, 5, 9, 3):
        x = torch.randn(2, length, 4)
        mine, theirs = marked(x, 1, high=16).requires_grad_(), x.requires_grad_()
        got, want = CASES[name](mine), CASES[name](theirs)
        close(got, want)
        if want.requires_grad:
            got.pow(2).sum().backward()
            want.pow(2).sum().backward()
            close(mine.grad, theirs.grad, 1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_op_without_a_rule_is_an_error_that_names_it_and_the_line(name):
    function, op = REFUSED[name]
    parameter, other = torch.zeros(3, device="xla"), torch.ones(2, device="xla")
    torch_xla.sync()
    file, line = inspect.getsourcefile(function), function.__code__.co_firstlineno

    def loop():
        nonlocal x, y, kept, length
        for length in (7, 5, 9, 6, 8):
            x = torch.randn(2, length, 4)
            parameter.add_(1)
            kept = other * length
            y = function(marked(x, 1))
            torch_xla.sync()

    x = y = kept = length = None
    with pytest.raises(torch_xla.VaryingLengthError, match=f"{op} at {file}:{line}.*mark_dynamic"):
        loop()
    # The recording has been computed, for its exact shapes, and so has all else that was pending.
    assert parameter.tolist() == [parameter[0].item()] * 3
    assert parameter[0].item() >= 2
    assert kept.tolist() == [length] * 2
    close(y, function(x))
    assert (other + 1).tolist() == [2, 2]


@pytest.mark.parametrize("seed", range(8))
def test_random_program_gives_what_the_cpu_gives(seed):
    program, rng = programs.draw(seed), random.Random(seed)
    for length in [rng.randint(2, 24) for _ in range(4)]:
        x = torch.randn(programs.BATCH, length, programs.WIDTH)
        mine, theirs = marked(x, 1).requires_grad_(), x.requires_grad_()
        (got, loss), (want, want_loss) = program(mine), program(theirs)
        if want_loss.requires_grad:
            loss.backward()
            want_loss.backward()
        close(loss, want_loss, 2e-3)
        close(got, want, 2e-3)
        if theirs.grad is not None:
            close(mine.grad, theirs.grad, 2e-3)


def test_two_lengths_vary_independently():
    def attend(x, y):
        joined = torch.cat([x, y], 1)
        places = torch.arange(x.shape[1] + y.shape[1], device=x.device)
        scores = (x @ y.transpose(1, 2)).flatten(1).softmax(1).view(2, x.shape[1], y.shape[1])
        return scores @ y + (joined * places[:, None]).mean(1, keepdim=True)

    rng = random.Random(0)
    for n, m in [(5, 5), (7, 4), *((rng.randint(2, 24), rng.randint(2, 24)) for _ in range(4))]:
        x, y = torch.randn(2, n, 4), torch.randn(2, m, 4)
        mine, theirs = (marked(x, 1).requires_grad_(), marked(y, -2)), (x.requires_grad_(), y)
        got, want = attend(*mine), attend(*theirs)
        close(got, want)
        got.sum().backward()
        want.sum().backward()
        close(mine[0].grad, x.grad, 1e-3)


def test_batch_and_length_vary_at_once():
    before = compiled()
    for batch, length in ((3, 7), (5, 5), (2, 9), (8, 8), (6, 3)):
        x = torch.randn(batch, length, 4)
        mine = marked(x, 0, 1, high=16)
        flat, want = mine.flatten(0, 1), x.flatten(0, 1)
        close((flat @ flat.t()).softmax(-1).mean(0), (want @ want.t()).softmax(-1).mean(0))
        close(mine.mean((0, 1)), x.mean((0, 1)))
    assert compiled() - before <= 14


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    for length in (5, 9, 3):
        x = (torch.randn(2, length, 4) * 5).to(dtype)
        mine = marked(x, 1)
        assert torch.equal(mine.amax(1).cpu(), x.amax(1))
        assert torch.equal((mine > 1).any(1).cpu(), (x > 1).any(1))
        if dtype is not torch.bool:
            assert torch.equal(mine.argmin(1).cpu(), x.argmin(1))
            close(mine.sum(1).double(), x.sum(1).double(), 1e-2 if dtype is torch.bfloat16 else 1e-6)


def test_what_padding_holds_does_not_matter():
    for length in (5, 9, 3):
        x = torch.rand(2, length, 4) + 1  # padding is 0: its logarithm -inf, its inverse inf, the quotient NaN
        mine = marked(x, 1)
        worst, want = mine.log() / (1 / mine), x.log() / (1 / x)
        for reduce in (torch.sum, torch.amax, torch.mean):
            close(reduce(worst, 1), reduce(want, 1))
        close(worst.transpose(1, 2) @ worst, want.transpose(1, 2) @ want)
        close(worst.softmax(1), want.softmax(1))
        close(worst.flatten(1).cumsum(1), want.flatten(1).cumsum(1))


# ---- marking


def test_sizes_out_of_bounds_and_wrong_dims():
    x = torch.ones(2, 30).to("xla")
    with pytest.raises(ValueError, match=r"dim 1 of a tensor of shape \[2, 30\] has to be between 1 and 20"):
        torch_xla.mark_dynamic(x, 1, max=20)
    with pytest.raises(ValueError, match="at least 40"):
        torch_xla.mark_dynamic(x, -1, min=40)
    with pytest.raises(ValueError, match="no bounds"):
        torch_xla.mark_dynamic(x, 1, min=40, max=20)
    for dim in (2, -3):
        with pytest.raises(IndexError, match="has no dim"):
            torch_xla.mark_dynamic(x, dim)
    with pytest.raises(TypeError, match="device xla"):
        torch_xla.mark_dynamic(torch.ones(2, 30), 1)
    assert x.sum().item() == 60


@pytest.mark.parametrize("bounds", [(10, 200), (1, 200), (1, 1), (5, 5), (3, 7), (0, 9), (100, 4096)])
def test_at_most_four_buckets(bounds):
    low, high = bounds
    buckets = {bucket_of(size, low, high): size for size in range(low, high + 1)}
    assert len(buckets) <= 4
    assert max(buckets) == high
    assert all(largest <= bucket for bucket, largest in buckets.items())


def test_without_an_upper_bound_buckets_grow():
    assert [bucket_of(n, 1, None) for n in (1, 16, 17, 64, 65, 1000)] == [16, 16, 64, 64, 256, 1024]


def test_a_marked_tensor_is_what_it_was():
    x = torch.randn(3, 5)
    y = marked(x, 1)
    assert torch.equal(y.cpu(), x)
    assert y.tolist() == x.tolist()
    torch_xla.mark_dynamic(y, 0, max=8)  # the other dim stays marked
    assert torch.equal(y.cpu(), x)
    assert torch.equal((y * 2).cpu(), x * 2)
    y[:, 1] = 7
    x[:, 1] = 7
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y.nonzero().cpu(), x.nonzero())


def test_marking_what_is_pending_computes_it():
    for length in (5, 8, 3):
        x = torch.randn(2, length)
        y = x.to("xla") * 3
        torch_xla.mark_dynamic(y, 1, max=16)
        close(y.softmax(1), (x * 3).softmax(1))


def test_a_result_of_varying_length_is_one_in_the_next_recording():
    before = compiled()
    for length in (5, 8, 3, 12, 16, 4, 15, 7):
        x = torch.randn(2, length)
        y = marked(x, 1, high=16).exp()
        torch_xla.sync()
        z = y / y.sum(1, keepdim=True)
        torch_xla.sync()
        close(z, x.softmax(1))
        close(y, x.exp())
    assert compiled() - before <= 2 * 6


def test_lengths_that_return_are_replayed():
    model = nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.Adam(model.parameters())

    def step(length):
        loss = model(marked(torch.randn(2, length, 4), 1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3):
        for length in (5, 9, 3):
            step(length)
    rebuilt, programs_before = RECORDER.rebuilt, compiled()
    for length in (3, 9, 5, 9):
        step(length)
    assert (RECORDER.rebuilt, compiled()) == (rebuilt, programs_before)


def test_a_marked_tensor_outlives_a_step_that_updates_others():
    x, total = marked(torch.ones(2, 5), 1), torch.zeros(2, 24, device="xla")
    for _ in range(3):
        total += x.sum()
        torch_xla.sync()
    assert total.unique().tolist() == [30]
    assert x.cpu().tolist() == [[1] * 5] * 2


def test_an_index_out_of_range_is_found_in_few_programs_too():
    table = torch.arange(12.0).view(4, 3).to("xla")
    for length in (5, 7, 6):
        good = torch.arange(length) % 4
        close(table[marked(good, 0)].sum(0), table.cpu()[good].sum(0))
    for length in (8, 5, 6):
        pending = marked(torch.arange(length), 0) + 0
        with pytest.raises(IndexError, match="out of range"):
            F.embedding(pending, table).sum().item()
        x = marked(torch.randn(2, length), 1)
        beyond = torch.full((2, 1), length, device="xla") + 0  # is within the buffer
        with pytest.raises(RuntimeError, match="out of range"):
            x.gather(1, beyond).sum().item()
    assert table.sum().item() == 66


def test_a_length_that_is_not_marked_is_not_guessed():
    for length in (5, 7, 9, 6):
        x, y = torch.randn(2, length), torch.randn(2, length)
        close((marked(x, 1) + y.to("xla")).sum(1), (x + y).sum(1))


# ---- without help


def test_each_shape_compiles_once_and_one_report_names_it(caplog):
    def work(x):
        return (x * 2).sum(1)  # the line that is named

    line = f"{__file__}:{work.__code__.co_firstlineno + 1} (work)"
    shape_report._reported.discard(line)
    before, recompiled = compiled(), met.counter_value("RecompiledForShape") or 0
    with caplog.at_level(logging.WARNING, logger="torch_xla"):
        for length in (17, 23, 31, 40, 52, 17, 40):
            assert work(torch.ones(2, length).to("xla")).tolist() == [2 * length] * 2
    assert compiled() - before == 5
    assert (met.counter_value("RecompiledForShape") or 0) - recompiled == 4
    reports = [r.getMessage() for r in caplog.records if line in r.getMessage()]
    assert len(reports) == 1
    assert "dim 1" in reports[0]
    assert "took 17, 23, 31, 40" in reports[0]
    assert "torch_xla.mark_dynamic" in reports[0]


def test_numbers_that_change_are_no_new_programs():
    before = compiled()
    for step, length in enumerate((5, 9, 3, 5, 9, 3, 9, 5)):
        x = torch.randn(2, length, 4)
        scale = 1 / (step + 1)
        got = (marked(x, 1, high=9) * scale).sum(1) / length + step
        close(got, (x * scale).sum(1) / length + step)
    assert compiled() - before <= 1 + 3 + 1
