"""Steps that run without their Python: what is guarded, what they leave behind. See Note [Frozen steps]."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.step.learning_rate import Rate

SCALE = 1.0  # read by a step below


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.factor = 1.0
        self.extra: dict[str, float] = {"bias": 0.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.last(F.relu(self.norm(self.first(x)))) * self.factor + self.extra["bias"]


@dataclass
class Both:
    """The same model and optimizer on the CPU, where the step runs plainly, and on xla, where it is compiled."""

    device: str
    model: Any
    optimizer: Any
    config: dict[str, Any]
    kept: list[Any]
    step: Any = None


def _build(device: str, optimizer: Callable[..., Any], step: Callable[..., Any]) -> Both:
    torch.manual_seed(0)
    model = Net().to(device)
    made = Both(device, model, optimizer(model.parameters()), {"penalty": 0.0}, [])
    made.step = step(made)
    if device == "xla":
        made.step = torch_xla.compile(made.step, full_graph=True)
    return made


def _usual(b: Both) -> Callable[..., torch.Tensor]:
    model, optimizer, config = b.model, b.optimizer, b.config

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * SCALE
        if config["penalty"]:
            loss = loss + config["penalty"] * model.last.weight.square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


SGD = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": SGD,
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adam groups": lambda p: torch.optim.AdamW([{"params": [q], "lr": 0.01 / (i + 1)} for i, q in enumerate(p)]),
}


def _batch(number: int, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def _run(both: list[Both], numbers: range, size: int = 5) -> None:
    for number in numbers:
        losses = []
        for b in both:
            x, y = _batch(number, size)
            losses.append(b.step(x.to(b.device), y.to(b.device)))
        torch.testing.assert_close(losses[1].detach().cpu(), losses[0].detach())


def _same_state(cpu: Both, xla: Both) -> None:
    for a, b in zip(cpu.model.state_dict().values(), xla.model.state_dict().values(), strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)
    for p, q in zip(cpu.model.parameters(), xla.model.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)


def _frozen_calls() -> int:
    return int(met.counter_value("FrozenStep") or 0)


def _pair(optimizer: Callable[..., Any] = SGD, step: Callable[..., Any] = _usual) -> list[Both]:
    return [_build("cpu", optimizer, step), _build("xla", optimizer, step)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_on_the_cpu(name):
    both = _pair(OPTIMIZERS[name])
    _run(both, range(6))
    before = _frozen_calls(), RECORDER.replayed, RECORDER.rebuilt, met.counter_value("UncachedCompile")
    _run(both, range(6, 12))
    after = _frozen_calls(), RECORDER.replayed, RECORDER.rebuilt, met.counter_value("UncachedCompile")
    assert [a - b for a, b in zip(after, before)] == [6, 0, 0, 0]
    _same_state(*both)
    assert "12 calls ran frozen" in both[1].step.status()


def _halve_rate(b: Both) -> None:
    for group in b.optimizer.param_groups:
        group["lr"] /= 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_is_followed(name):
    both = _pair(OPTIMIZERS[name])
    _run(both, range(6))
    for number in range(6, 12):
        for b in both:
            _halve_rate(b)
        _run(both, range(number, number + 1))
    before = _frozen_calls()
    for number in range(12, 15):
        for b in both:
            _halve_rate(b)
        _run(both, range(number, number + 1))
    assert _frozen_calls() - before == 3
    _same_state(*both)
    assert all(type(group["lr"]) is float for b in both for group in b.optimizer.param_groups)


def _set_scale(b: Both) -> None:
    global SCALE
    SCALE = 2.0


def _no_gradient_for_the_first(b: Both) -> None:
    b.model.first.weight.requires_grad_(False)
    b.model.first.weight.grad = None


def _hold(b: Both) -> None:
    b.kept += [b.model.first.weight.detach(), b.model.last.bias.grad, b.model.norm.running_mean[:2]]


def _other_data(b: Both) -> None:
    b.model.last.weight.data = torch.full((3, 8), 0.5, device=b.device)


def _write_through_view(b: Both) -> None:
    with torch.no_grad():
        b.model.first.weight[0].fill_(0.25)


def _write(b: Both) -> None:
    with torch.no_grad():
        b.model.first.weight.mul_(0.5)


def _write_to_gradient(b: Both) -> None:
    b.model.first.weight.grad[0].zero_()
    b.model.last.weight.grad.mul_(3)


def _new_layer(b: Both) -> None:
    torch.manual_seed(1)
    b.model.last = nn.Linear(8, 3).to(b.device)
    b.optimizer.add_param_group({"params": list(b.model.last.parameters())})


def _load(b: Both) -> None:
    state = copy.deepcopy(b.model.state_dict())
    state["last.bias"] = state["last.bias"] + 1
    b.model.load_state_dict(state)


CHANGES: dict[str, Callable[[Both], Any]] = {
    "a global": _set_scale,
    "an entry of a dict in a closure": lambda b: b.config.update(penalty=0.1),
    "an attribute of the model": lambda b: setattr(b.model, "factor", 0.5),
    "an entry of a dict of the model": lambda b: b.model.extra.update(bias=0.5),
    "evaluation mode": lambda b: b.model.eval(),
    "evaluation mode of a layer": lambda b: b.model.norm.eval(),
    "momentum of a batch norm": lambda b: setattr(b.model.norm, "momentum", 0.5),
    "momentum of the optimizer": lambda b: b.optimizer.param_groups[0].update(momentum=0.5),
    "a learning rate": _halve_rate,
    "a learning rate of zero": lambda b: b.optimizer.param_groups[0].update(lr=0.0),
    "requires_grad": _no_gradient_for_the_first,
    "a hook of a tensor": lambda b: b.model.first.weight.register_hook(lambda g: g * 2),
    "a hook of a module": lambda b: b.model.first.register_forward_hook(lambda m, i, o: o * 2),
    "a hook of all modules": lambda b: None,  # see below: undone after the test
    "another forward": lambda b: setattr(b.model, "forward", lambda x: Net.forward(b.model, x) * 2),
    "another layer": _new_layer,
    "another tensor in .data": _other_data,
    "a write": _write,
    "a write through a view": _write_through_view,
    "a write to gradients": _write_to_gradient,
    "no gradients": lambda b: b.optimizer.zero_grad(),
    "tensors that share storage": _hold,
    "a loaded state": _load,
    "a copy of the model": lambda b: b.kept.append(copy.deepcopy(b.model)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    both = _pair()
    _run(both, range(6))
    assert "it" not in both[1].step.status()  # frozen: no reason is given
    handles = []
    if name == "a hook of all modules":
        handles.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 1.5 if m.training else None))
    for b in both:
        CHANGES[name](b)
    try:
        _run(both, range(6, 13))
        _same_state(*both)
        for a, b in zip(both[0].kept, both[1].kept, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)
            else:
                for p, q in zip(a.parameters(), b.parameters(), strict=True):
                    torch.testing.assert_close(q.cpu(), p)
    finally:
        for handle in handles:
            handle.remove()


def test_forms_are_kept_for_batches_and_modes():
    both = _pair()
    _run(both, range(5))
    _run(both, range(5, 8), size=3)
    for b in both:
        b.model.eval()
    _run(both, range(8, 12))
    for b in both:
        b.model.train()
    before = _frozen_calls()
    _run(both, range(12, 14))
    _run(both, range(14, 16), size=3)
    for b in both:
        b.model.eval()
    _run(both, range(16, 18))
    assert _frozen_calls() - before == 6
    _same_state(*both)


def test_results_of_earlier_calls_stay():
    both = _pair()
    held: list[list[Any]] = [[], []]
    for number in range(10):
        for b, kept in zip(both, held, strict=True):
            x, y = _batch(number)
            kept.append((b.step(x.to(b.device), y.to(b.device)).detach(), b.model.first.weight.grad))
    assert _frozen_calls()
    for (loss, grad), (loss_xla, grad_xla) in zip(*held, strict=True):
        torch.testing.assert_close(loss_xla.cpu(), loss)
        torch.testing.assert_close(grad_xla.cpu(), grad, rtol=1e-4, atol=1e-5)


def test_backward_through_a_used_graph_raises():
    both = _pair()
    for number in range(6):
        losses = [b.step(*(t.to(b.device) for t in _batch(number))) for b in both]
    for loss in losses:
        assert loss.requires_grad
        assert loss.grad_fn is not None
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_version_counters_move():
    both = _pair()
    _run(both, range(6))
    for b in both:
        saved = (b.model.first.weight * b.model.first.weight).sum()
        b.step(*(t.to(b.device) for t in _batch(7)))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()


# ---- other steps -----------------------------------------------------------------------------------------------------


def _zero_at_the_end(b: Both) -> Callable[..., torch.Tensor]:
    def step(x, y):
        loss = F.cross_entropy(b.model(x), y)
        loss.backward()
        b.optimizer.step()
        b.optimizer.zero_grad()
        return loss.detach()

    return step


def _zeros(b: Both) -> Callable[..., torch.Tensor]:
    def step(x, y):
        b.optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(b.model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(b.model.parameters(), 0.5)
        b.optimizer.step()
        return loss.detach()

    return step


def _accumulating(b: Both) -> Callable[..., torch.Tensor]:
    def step(x, y):
        b.optimizer.zero_grad()
        total = torch.zeros((), device=x.device)
        for part in range(2):
            loss = F.cross_entropy(b.model(x[part : part + 3]), y[part : part + 3])
            loss.backward()
            total += loss.detach()
        b.optimizer.step()
        return total

    return step


def _only_gradients(b: Both) -> Callable[..., torch.Tensor]:
    def step(x, y):
        loss = F.cross_entropy(b.model(x), y)
        loss.backward()
        return loss.detach()

    return step


def _with_literals(b: Both) -> Callable[..., torch.Tensor]:
    def step(x, y):
        b.optimizer.zero_grad()
        weight = torch.tensor([1.0, 2.0, 0.5], device=x.device)
        loss = F.cross_entropy(b.model(x), y, weight=weight)
        loss.backward()
        b.optimizer.step()
        return loss.detach()

    return step


STEPS = {
    "zero_grad at the end": _zero_at_the_end, "zero_grad to zeros, clipped": _zeros, "accumulation": _accumulating,
    "gradients that add up": _only_gradients, "a literal": _with_literals,
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_other_steps(name):
    both = _pair(step=STEPS[name])
    _run(both, range(6))
    before = _frozen_calls()
    _run(both, range(6, 10))
    assert _frozen_calls() - before == 4, both[1].step.status()
    _same_state(*both)


def test_inference_and_structures():
    model = Net().eval()
    there = copy.deepcopy(model).to("xla")

    @torch.no_grad()
    def predict(net, batch, scale=1.0):
        out = net(batch["x"]) * scale
        return {"out": out, "top": out.argmax(-1), "number": 3, "pair": (out.sum(), None)}

    compiled = torch_xla.compile(predict, full_graph=True)
    before = _frozen_calls()
    for number in range(8):
        x, _ = _batch(number)
        want, got = predict(model, {"x": x}, scale=2.0), compiled(there, {"x": x.to("xla")}, scale=2.0)
        torch.testing.assert_close(got["out"].cpu(), want["out"])
        assert got["top"].tolist() == want["top"].tolist()
        assert (got["number"], got["pair"][1], got["out"].requires_grad) == (3, None, False)
        torch.testing.assert_close(got["pair"][0].cpu(), want["pair"][0])
    assert _frozen_calls() - before >= 4
    want, got = predict(model, {"x": x}, scale=0.5), compiled(there, {"x": x.to("xla")}, scale=0.5)
    torch.testing.assert_close(got["out"].cpu(), want["out"])
    assert there.seen.item() == 9


def test_arguments_on_the_cpu_are_uploaded():
    @torch_xla.compile(full_graph=True)
    def move(x):
        return x.to("xla") * 2

    before = _frozen_calls()
    for number in range(6):
        assert move(torch.full((3,), float(number))).tolist() == [2.0 * number] * 3
    assert _frozen_calls() - before == 4


@pytest.mark.parametrize("checkpointed", [False, True])
def test_random_state_goes_on(checkpointed):
    """A frozen step draws what the recorded one would draw."""
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))

    def train(full_graph: bool) -> list[float]:
        model = copy.deepcopy(net).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            out = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = torch_xla.compile(step, full_graph=full_graph)
        torch.manual_seed(3)
        return [step(torch.ones(2, 4, device="xla")).item() for _ in range(8)] + [torch.rand(1, device="xla").item()]

    plain, before = train(False), _frozen_calls()
    assert train(True) == plain
    assert _frozen_calls() - before >= 4


# ---- steps that are never frozen -----------------------------------------------------------------------------------


class Trainer:
    def __init__(self) -> None:
        self.count, self.log, self.hidden = 0, [], torch.zeros(3, device="xla")
        self.values = iter(range(100))
        self.alone = 0

    def counts(self, x):
        self.count += 1
        return x * self.count

    def logs(self, x):
        self.log.append(x.shape)
        return x * len(self.log)

    def keeps(self, x):
        self.hidden = self.hidden + x
        return self.hidden * 1

    def iterates(self, x):
        return x * next(self.values)

    def draws(self, x):
        return x * random.random()

    def leaves_alone(self, x):
        return x * 2 + len(self.log)


def _plain(name: str, calls: int) -> tuple[list[Any], int]:
    trainer = Trainer()
    step = torch_xla.compile(getattr(trainer, name), full_graph=True)
    before = _frozen_calls()
    random.seed(0)
    x = torch.ones(3, device="xla")
    return [step(x).tolist() for _ in range(calls)], _frozen_calls() - before


REFUSED = {
    "counts": ("changes Python state", [1.0, 2.0, 3.0, 4.0, 5.0]),
    "logs": ("changes Python state", [1.0, 2.0, 3.0, 4.0, 5.0]),
    "keeps": ("changes Python state", [1.0, 2.0, 3.0, 4.0, 5.0]),
    "iterates": ("iterator", [0.0, 1.0, 2.0, 3.0, 4.0]),
    "draws": ("random numbers on the host", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_python_does_itself_keeps_a_step_from_being_frozen(name):
    reason, expected = REFUSED[name]
    trainer = Trainer()
    step = torch_xla.compile(getattr(trainer, name), full_graph=True)
    random.seed(0)
    got = [step(torch.ones(3, device="xla"))[0].item() for _ in range(5)]
    random.seed(0)
    assert got == pytest.approx(expected or [random.random() for _ in range(5)])
    assert reason in step.status()
    assert "0 of 5" in step.status()


def test_attributes_that_no_code_of_the_step_names_may_change():
    trainer = Trainer()
    step = torch_xla.compile(trainer.leaves_alone, full_graph=True)
    before = _frozen_calls()
    for _ in range(6):
        trainer.count += 1
        assert step(torch.ones(2, device="xla")).tolist() == [2, 2]
    assert _frozen_calls() - before == 4
    trainer.log.append(1)
    assert step(torch.ones(2, device="xla")).tolist() == [3, 3]


def test_a_graph_that_is_needed_later_is_kept():
    weight = torch.full((3,), 2.0, device="xla", requires_grad=True)

    @torch_xla.compile(full_graph=True)
    def forward(x):
        return (weight * x).sum()

    for number in range(5):
        weight.grad = None
        forward(torch.full((3,), float(number), device="xla")).backward()
        assert weight.grad.tolist() == [float(number)] * 3
    assert "graph is still needed" in forward.status()


def test_numbers_from_cpu_arguments_are_read_anew():
    @torch_xla.compile(full_graph=True)
    def scale(x, by):
        return x * float(by.sum())

    x = torch.ones(2, device="xla")
    assert [scale(x, torch.full((2,), float(n)))[0].item() for n in (1, 1, 1, 1, 2, 3)] == [2, 2, 2, 2, 4, 6]


def test_an_exception_leaves_all_as_it_was():
    both = _pair()
    _run(both, range(3))
    with pytest.raises(RuntimeError, match=r"reduction dim|shapes"):
        both[1].step(torch.ones(5, 7, device="xla"), torch.zeros(5, dtype=torch.int64, device="xla"))
    assert type(both[1].optimizer.param_groups[0]["lr"]) is float
    _run(both, range(3, 9))


def test_a_failed_check_is_undone():
    """An index out of range in a frozen step: parameters stay, the error names the line, later steps go on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 1)).to("xla")
    optimizer = SGD(model.parameters())

    @torch_xla.compile(full_graph=True)
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(6):
        step(torch.tensor([0, 1, 3], device="xla")).item()
    assert "the last one" not in step.status()
    before = [p.tolist() for p in model.parameters()]
    with pytest.raises(IndexError, match="test_frozen_steps"):
        step(torch.tensor([0, 1, 4], device="xla")).item()
    assert [p.tolist() for p in model.parameters()] == before
    step(torch.tensor([0, 1, 2], device="xla")).item()
    assert [p.tolist() for p in model.parameters()] != before


def test_a_step_inside_of_a_mode_is_not_frozen():
    seen = []

    class Log(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    @torch_xla.compile(full_graph=True)
    def double(x):
        return x * 2

    x = torch.ones(2, device="xla")
    for _ in range(4):
        double(x)
    with Log():
        result = double(x)
    assert result.tolist() == [2, 2]
    assert torch.Tensor.mul in seen or torch.Tensor.__mul__ in seen


def test_rates_are_floats_that_tell_where_they_went():
    from torch_xla._src.step import learning_rate

    group = {"lr": 0.1}
    with learning_rate.followed([group]) as formulas:
        assert type(group["lr"]) is Rate
        assert (1 - group["lr"] * 0.5) == 0.95
        assert formulas.escaped
        assert type(copy.deepcopy(group)["lr"]) is float
        numbers = [-0.1, 0.95, 0.1, 7.0]
        assert type(-group["lr"]) is Rate
        found = learning_rate.candidates(numbers, formulas)
    assert type(group["lr"]) is float
    assert learning_rate.numbers(found, [0.1]) == numbers
    assert learning_rate.numbers(found, [0.2]) is None  # -0.1 may be a constant
    with learning_rate.followed([{"lr": 0.2}]) as formulas:
        pass
    with learning_rate.followed([group2 := {"lr": 0.2}]) as formulas:
        _ = -group2["lr"], 1 - group2["lr"] * 0.5
    narrowed = learning_rate.narrowed(found, learning_rate.candidates([-0.2, 0.9, 0.2, 7.0], formulas))
    assert narrowed is not None
    assert learning_rate.numbers(narrowed, [0.4]) == [-0.4, 0.8, 0.4, 7.0]
    assert learning_rate.narrowed(found, learning_rate.candidates([-0.3, 0.9, 0.2, 7.0], formulas)) is None
