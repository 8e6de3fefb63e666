"""What a frozen step must notice or refuse, beside what test_frozen_steps.py has: see Note [What a frozen step guards].

Each case runs on the CPU, where its step is plain, and on xla, where it is compiled; what they yield must be the same.
"""

from __future__ import annotations

import contextvars
import math
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import torch_xla
import torch_xla.debug.metrics as met

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Case = Callable[[str, Compile], Iterator[Any]]
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("CONTEXT")
LOCAL = threading.local()


def _copy(result: Any) -> Any:
    return pytree.tree_map(lambda t: t.detach().cpu().clone() if isinstance(t, torch.Tensor) else t, result)


def _agree(case: Case) -> int:
    """Runs a case on both devices and compares; how many calls ran frozen."""
    before = met.counter_value("FrozenStep") or 0
    want = [_copy(x) for x in case("cpu", lambda f: f)]
    got = [_copy(x) for x in case("xla", torch_xla.compile(full_graph=True))]
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True)
    return int(met.counter_value("FrozenStep") or 0) - int(before)


def _full(device: str, value: float, size: int = 3) -> torch.Tensor:
    return torch.full((size,), float(value), device=device)


# ---- arguments and results -------------------------------------------------------------------------------------------


def _argument_with_a_history(device: str, compiled: Compile) -> Iterator[Any]:
    """Its gradient flows on, to what it was computed from."""
    weight = torch.ones(3, device=device, requires_grad=True)

    @compiled
    def step(x):
        loss = x.square().sum()
        loss.backward()
        return loss.detach()

    for number in range(5):
        x = _full(device, number).requires_grad_()
        yield step(x), x.grad
    yield step(weight * 3), weight.grad


def _same_cpu_arguments(device: str, compiled: Compile) -> Iterator[Any]:
    step = compiled(lambda a, b: a.to(device) - b.to(device) * 2)
    for number in range(5):
        a = _full("cpu", number)
        yield step(a, a)
    yield step(_full("cpu", 1), _full("cpu", 5))


def _shape_of_a_cpu_argument(device: str, compiled: Compile) -> Iterator[Any]:
    step = compiled(lambda x, other: x * other.shape[0])
    for number in range(5):
        yield step(_full(device, number), torch.ones(3))
    yield step(_full(device, 2), torch.ones(7))


def _other_cpu_arguments(device: str, compiled: Compile) -> Iterator[Any]:
    step = compiled(lambda x: x.to(device) * 2)
    for number in range(5):
        yield step(_full("cpu", number))
    for x in (torch.ones(5), torch.ones(3, dtype=torch.float64), torch.ones(3, device=device), torch.arange(6.0)[::2]):
        yield step(x)


def _forward_mode(device: str, compiled: Compile) -> Iterator[Any]:
    step = compiled(lambda x: x * x)
    for number in range(5):
        yield step(_full(device, number))
    with forward_ad.dual_level():
        yield forward_ad.unpack_dual(step(forward_ad.make_dual(_full(device, 3), _full(device, 1)))).tangent


def _one_result_twice(device: str, compiled: Compile) -> Iterator[Any]:
    @compiled
    def step(x):
        y = x * 2
        return y, [y, 1]

    for number in range(6):
        first, (second, _) = step(_full(device, number))
        first.add_(1)
        yield second, first is second


def _new_gradient_returned(device: str, compiled: Compile) -> Iterator[Any]:
    weight = nn.Parameter(_full(device, 1))

    @compiled
    def step(x):
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad

    for number in range(6):
        gradient = step(_full(device, number))
        gradient.mul_(0.5)
        yield weight.grad, gradient is weight.grad


def _zeroed_gradient_returned(device: str, compiled: Compile) -> Iterator[Any]:
    weight = nn.Parameter(_full(device, 1))
    weight.grad = _full(device, 0)

    @compiled
    def step(x):
        weight.grad.zero_()
        (weight * x).sum().backward()
        return [weight.grad]

    for number in range(6):
        (gradient,) = step(_full(device, number))
        gradient.mul_(0.5)
        yield weight.grad, gradient is weight.grad


ARGUMENTS: list[Case] = [
    _argument_with_a_history, _same_cpu_arguments, _shape_of_a_cpu_argument, _other_cpu_arguments, _forward_mode,
    _one_result_twice, _new_gradient_returned, _zeroed_gradient_returned,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # forward_ad compiles with it
@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_and_results(case):
    assert _agree(case) >= 3


def _converted_on_the_host(device: str, compiled: Compile) -> Iterator[Any]:
    """Contents of an argument that reach the program as another tensor, or as a number."""
    for convert in (
        lambda x: x.to(torch.float64).to(device),
        lambda x: x.to(device, torch.float16),
        lambda x: torch.ones(3, device=device) * x.to(torch.float64).sum().item(),
    ):
        step = compiled(lambda x, convert=convert: convert(x) * 2)
        for value in (1, 1, 1, 1, 1, 7):
            yield step(_full("cpu", value))


def _cpu_argument_written(device: str, compiled: Compile) -> Iterator[Any]:
    @compiled
    def step(x, y, z):
        x.copy_(y)
        return z * 2

    for number in range(6):
        x = torch.zeros(3)
        yield step(x, _full("cpu", number), _full(device, 1)), x


def _argument_with_a_hook(device: str, compiled: Compile) -> Iterator[Any]:
    config = {"scale": 2.0}
    x = _full(device, 1).requires_grad_()
    x.register_hook(lambda g: g * config["scale"])

    @compiled
    def step(x):
        x.grad = None
        (x * 2).sum().backward()
        return x.grad.clone()

    for scale in (2.0, 2.0, 2.0, 2.0, 5.0):
        config["scale"] = scale
        yield step(x)


def _seeds(device: str, compiled: Compile) -> Iterator[Any]:
    @compiled
    def step(x):
        torch.manual_seed(5)
        return x * 2

    for number in range(6):
        yield step(_full(device, number))
    torch.manual_seed(7)
    step(_full(device, 1))
    yield torch.rand(2)


# ---- learning rates --------------------------------------------------------------------------------------------------


def _optimizer(device: str, rate: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(_full(device, 1))], lr=rate)


READ_IN_C = {
    "sqrt": lambda x, lr: x * math.sqrt(lr),
    "tensor": lambda x, lr: x * torch.tensor(lr, device=x.device),
    "array": lambda x, lr: x * float(np.array([lr])[0]),
}


@pytest.mark.parametrize("name", READ_IN_C)
def test_rates_that_are_read_without_a_trace(name):
    def case(device, compiled):
        optimizer = _optimizer(device, 0.25)
        group = optimizer.param_groups[0]
        step = compiled(lambda x: READ_IN_C[name](x, optimizer.param_groups[0]["lr"]))
        for rate in (0.25,) * 5 + (0.04, 0.04, 0.09, 0.16, 0.25):
            group["lr"] = rate
            yield step(_full(device, 2))

    assert _agree(case) >= 3


def test_one_of_two_rates_changes_first():
    def case(device, compiled):
        optimizer = _optimizer(device, 0.25)
        optimizer.add_param_group({"params": [nn.Parameter(_full(device, 1))], "lr": 0.5})
        first, second = optimizer.param_groups

        @compiled
        def step(x):
            groups = optimizer.param_groups
            return x * groups[0]["lr"] + math.sqrt(groups[1]["lr"])

        for rates in [(0.25, 0.5)] * 4 + [(0.2, 0.5), (0.1, 0.5), (0.1, 0.5), (0.1, 0.3), (0.1, 0.2), (0.3, 0.5)]:
            first["lr"], second["lr"] = rates
            yield step(_full(device, 2))

    assert _agree(case) >= 3


@pytest.mark.parametrize("change", ["by a schedule", "by hand", "to a constant"])
def test_rates_that_change_in_the_step(change):
    def case(device, compiled):
        optimizer = _optimizer(device, 0.25)
        weight = optimizer.param_groups[0]["params"][0]
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        @compiled
        def step(x):
            group = optimizer.param_groups[0]
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()
            if change == "by a schedule":
                schedule.step()
            else:
                group["lr"] = group["lr"] * 0.5 if change == "by hand" else 0.125
            return x * 1

        for number in range(6):
            yield step(_full(device, number)), weight, optimizer.param_groups[0]["lr"]
            assert type(optimizer.param_groups[0]["lr"]) is float

    assert _agree(case) <= 2


@pytest.mark.parametrize("rates", [(1, 2), (torch.tensor(1.0), torch.tensor(0.25))])
def test_rates_that_are_no_floats(rates):
    def case(device, compiled):
        optimizer = _optimizer(device, rates[0])
        step = compiled(lambda x: x * optimizer.param_groups[0]["lr"])
        for rate in (rates[0],) * 5 + (rates[1],) * 4:
            optimizer.param_groups[0]["lr"] = rate
            yield step(_full(device, 2))

    _agree(case)


# ---- Python state ----------------------------------------------------------------------------------------------------


class Holder:
    """An object with attributes that code reads by names that it computes."""

    def __init__(self) -> None:
        self.scale, self.part_0, self.part_1 = 1.0, 1.0, 2.0


class Norm(nn.BatchNorm1d):
    """Code of torch reads its attributes."""


class Scaling(nn.Module):
    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Inheriting(Scaling):
    pass


def _set(where: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(where, name, value)


def _in_a_loop(x: torch.Tensor, holder: Holder) -> torch.Tensor:
    for name in ("part_0", "scale"):
        x = x * getattr(holder, name)
    return x


def _imports(x: torch.Tensor) -> torch.Tensor:
    import settings_of_a_frozen_step  # type: ignore[import-not-found]  # made by this test

    return x * settings_of_a_frozen_step.scale


def _state(name: str) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], Any]]:
    """A function, and a change of what it reads."""
    holder, config = Holder(), {"scale": 1.0}
    if name == "a tuple of names":
        return lambda x: _in_a_loop(x, holder), _set(holder, "part_0", 3.0)
    if name == "a computed name":
        return lambda x: x * sum(getattr(holder, f"part_{n}") for n in range(2)), _set(holder, "part_0", 3.0)
    if name == "vars":
        return lambda x: x * sum(vars(holder).values()), _set(holder, "part_0", 3.0)
    if name == "a method of a dict":
        get = config.get
        return lambda x: x * get("scale"), lambda: config.update(scale=3.0)
    if name == "a weak reference":
        reference = weakref.ref(holder)
        return lambda x: x * reference().scale, _set(holder, "scale", 3.0)
    if name == "a proxy":
        proxy = weakref.proxy(holder)
        return lambda x: x * proxy.scale, _set(holder, "scale", 3.0)
    if name == "a context variable":
        CONTEXT.set(1.0)
        return lambda x: x * CONTEXT.get(), lambda: CONTEXT.set(3.0)
    if name == "a variable of the thread":
        LOCAL.scale = 1.0
        return lambda x: x * LOCAL.scale, _set(LOCAL, "scale", 3.0)
    if name == "bytes":
        array = bytearray(b"\x01")
        return lambda x: x * array[0], lambda: array.__setitem__(0, 3)
    if name == "an attribute that code of torch reads":
        norm = Norm(3, affine=False, track_running_stats=False)
        return lambda x: norm(torch.stack([x, x * 2])), _set(norm, "eps", 0.5)
    if name == "an attribute of a subclass":
        child = type("Child", (Inheriting,), {})
        module = child()
        return lambda x: module(x), _set(child, "factor", 3.0)
    if name == "a method of a subclass":
        child = type("Child", (Inheriting,), {})
        module = child()
        return lambda x: module(x), _set(child, "forward", lambda self, x: x * 3)
    if name == "an imported module":
        return _imports, _set(sys.modules["settings_of_a_frozen_step"], "scale", 3.0)
    if name == "a CPU tensor":
        host = torch.ones(3)
        return lambda x: x * host.to(x.device), _set(host, "data", torch.full((3,), 3.0))
    if name == "a deleted variable":
        return _deleted()
    if name == "a global that hides a builtin":
        return lambda x: x * abs(-1), lambda: globals().update(abs=lambda number: 7.0)
    if name == "a function of torch":
        return lambda x: F.relu(x), lambda: setattr(F, "relu", lambda x: x * 5)
    if name == "anomaly detection":
        return lambda x: x * (2 if torch.is_anomaly_enabled() else 1), lambda: torch.autograd.set_detect_anomaly(True)
    raise ValueError(name)


def _deleted() -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], Any]]:
    scale = 1.0

    def step(x):
        try:
            return x * scale
        except NameError:
            return x * 3

    def change():
        nonlocal scale
        del scale

    return step, change


STATE = (
    "a tuple of names", "a computed name", "vars", "a method of a dict", "a weak reference", "a proxy", "a context variable",
    "a variable of the thread", "bytes", "an attribute that code of torch reads", "an attribute of a subclass",
    "a method of a subclass", "an imported module", "a CPU tensor", "a deleted variable", "a global that hides a builtin",
    "a function of torch", "anomaly detection",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", STATE)
def test_a_change_of_state_is_seen(name, monkeypatch):
    settings: Any = types.ModuleType("settings_of_a_frozen_step")
    settings.__file__ = __file__
    monkeypatch.setitem(sys.modules, settings.__name__, settings)

    def case(device, compiled):
        settings.scale = 1.0
        step, change = _state(name)
        step = compiled(step)
        for number in range(5):
            yield step(_full(device, number))
        with monkeypatch.context() as undone:
            undone.setattr(F, "relu", F.relu)
            undone.setitem(globals(), "abs", abs)
            del globals()["abs"]
            change()
            for number in range(4):
                yield step(_full(device, number + 1))
            torch.autograd.set_detect_anomaly(False)

    assert _agree(case) >= 3


def _own_generators(device: str, compiled: Compile) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(0)

    for draw in (
        random.Random(0).random, np.random.default_rng(0).random,
        lambda: torch.rand((), generator=generator).item(),
    ):  # fmt: skip
        step = compiled(lambda x, draw=draw: x * 2 if draw() < 0.8 else x * 0)
        for _ in range(12):
            yield step(_full(device, 1))


def _cpu_tensor_written(device: str, compiled: Compile) -> Iterator[Any]:
    count = torch.zeros(2)

    @compiled
    def step(x):
        count.data.add_(1)
        return x * 2

    for number in range(6):
        yield step(_full(device, number)), count


REFUSED: list[Case] = [
    _converted_on_the_host,
    _cpu_argument_written,
    _argument_with_a_hook,
    _seeds,
    _own_generators,
    _cpu_tensor_written,
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_never_frozen(case):
    assert _agree(case) == 0


class Doubles:
    def run(self, x):
        return x * 2


class Notes(Doubles):
    def run(self, x):
        self.noted = x.shape[0]  # set, and read by nobody
        return super().run(x)


def test_attributes_that_the_step_sets_are_guarded():
    notes = Notes()
    step = torch_xla.compile(notes.run, full_graph=True)
    for _ in range(5):
        step(torch.ones(2, device="xla"))
    for _ in range(4):
        notes.noted = None
        step(torch.ones(2, device="xla"))
        assert notes.noted == 2
