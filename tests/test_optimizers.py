"""Every optimizer of torch.optim, in every form it has, follows the CPU."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.same import assert_same
from torch_xla._src.graph.recorder import RECORDER

OPTIMIZERS = sorted(
    (
        o
        for o in vars(torch.optim).values()
        if inspect.isclass(o) and issubclass(o, torch.optim.Optimizer) and o is not torch.optim.Optimizer
    ),
    key=lambda o: o.__name__,
)
# The default is foreach already; "loop" is the form without it.
FORMS = {
    "default": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True},
    "capturable": {"capturable": True}, "maximize": {"maximize": True}, "amsgrad": {"amsgrad": True},
    "fused amsgrad": {"amsgrad": True, "fused": True}, "nesterov": {"nesterov": True, "momentum": 0.9},
    "fused momentum": {"momentum": 0.9, "fused": True}, "centered": {"centered": True, "momentum": 0.9},
    "weight decay": {"weight_decay": 0.1, "maximize": True}, "tensor lr": {"lr": torch.tensor(0.01)},
}  # fmt: skip
STEPS = 3
# What does not work, and why.
SPARSE = "sparse gradients need sparse tensors, which device xla has none of"


def forms(optimizer):
    """The forms that an optimizer has."""
    known = set(inspect.signature(optimizer).parameters)
    for name, form in FORMS.items():
        if not set(form) <= known or ("nesterov" in form and optimizer is not torch.optim.SGD):
            continue
        if optimizer in (torch.optim.LBFGS, torch.optim.Muon) and form:
            continue
        yield name, form


CASES = [
    pytest.param(o, form, id=f"{o.__name__}-{name}", marks=pytest.mark.xfail(strict=True, reason=SPARSE))
    if o is torch.optim.SparseAdam
    else pytest.param(o, form, id=f"{o.__name__}-{name}")
    for o in OPTIMIZERS
    for name, form in forms(o)
]


def run(optimizer, form, device):
    """Parameters after a few steps, on gradients that were made on the CPU: only the optimizer's own program compiles."""
    shapes = [(4, 3)] if optimizer is torch.optim.Muon else [(4, 3), (3,)]
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape).to(device)) for shape in shapes]
    gradients = [[torch.randn(shape).to(device) for shape in shapes] for _ in range(STEPS)]
    made = optimizer(parameters, **form)
    if optimizer is torch.optim.LBFGS:

        def closure():
            made.zero_grad()
            loss = sum((p**4).sum() for p in parameters)
            loss.backward()
            return loss

        made.step(closure)
        return parameters
    for step in gradients:
        made.zero_grad()
        if optimizer is torch.optim.SparseAdam:
            F.embedding(torch.tensor([0, 2], device=device), parameters[0], sparse=True).sum().backward()
        else:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.clone()
        made.step()
    return parameters


@pytest.mark.parametrize(("optimizer", "form"), CASES)
def test_follows_the_cpu(optimizer, form):
    host_form = {k: v for k, v in form.items() if k != "capturable"}  # the CPU has no such form
    try:
        want = run(optimizer, host_form, "cpu")
    except (RuntimeError, ValueError) as refused:  # a combination that torch itself refuses
        with pytest.raises(type(refused)):
            run(optimizer, form, "xla")
        return
    assert_same(run(optimizer, form, "xla"), want, 1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW], ids=lambda o: o.__name__)
def test_foreach_is_what_runs(optimizer):
    """One row for all parameters, not one for each."""
    from torch_xla._src.graph.recorder import RECORDER

    parameters = [nn.Parameter(torch.ones(2, device="xla")) for _ in range(20)]
    made = optimizer(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones(2, device="xla")
    made.step()  # makes the state
    before = RECORDER.replayed + RECORDER.rebuilt
    made.step()
    assert RECORDER.replayed + RECORDER.rebuilt - before < 20


def test_parameter_groups_and_state():
    w, v = (nn.Parameter(torch.ones(2, device="xla")) for _ in range(2))
    made = torch.optim.Adam([{"params": [w], "lr": 0.5}, {"params": [v]}], lr=0.1)
    for p in (w, v):
        p.grad = torch.ones(2, device="xla")
    made.step()
    assert w.detach().cpu().allclose(torch.full((2,), 0.5))
    assert v.detach().cpu().allclose(torch.full((2,), 0.9))
    assert made.state[w]["exp_avg"].is_xla
    made.add_param_group({"params": [nn.Parameter(torch.ones(1, device="xla"))]})
    made.zero_grad(set_to_none=False)
    assert w.grad.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("make", "form"),
    [
        ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "fused": True}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("RMSprop", {"momentum": 0.9}),
        ("RAdam", {}), ("NAdam", {}), ("Adamax", {}), ("Adadelta", {}),
    ],
    ids=str,
)  # fmt: skip
def test_the_second_step_is_the_first_again(make, form):
    """One program for all steps: Note [State is there before the first step]."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model.to("xla")
    x = torch.randn(4, 3).to("xla")
    optimizer = getattr(torch.optim, make)(model.parameters(), lr=0.01, **form)
    torch_xla.sync()
    counts = []
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        counts.append((RECORDER.rebuilt, met.counter_value("UncachedCompile")))
    assert counts == [counts[0]] * 3


def test_momentum_that_is_no_sum_of_gradients():
    """With dampening, with a closure, and for a parameter whose gradient comes late, the first buffer is the gradient."""

    def run(device):
        torch.manual_seed(0)
        model, late = nn.Linear(3, 2), nn.Linear(3, 2)
        model.to(device), late.to(device)
        x = torch.randn(4, 3).to(device)
        parameters = [*model.parameters(), *late.parameters()]
        damped = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.5)
        closed = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        plain = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

        def closure():
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for step in range(3):
            closed.step(closure)
            for optimizer in (damped, plain):
                optimizer.zero_grad()
                (model(x) + (late(x) if step else 0)).square().mean().backward()
                optimizer.step()
        states = [optimizer.state_dict()["state"] for optimizer in (damped, closed, plain)]
        return [p.detach() for p in parameters], states

    assert_same(run("xla"), run("cpu"), 1e-5)
