"""Each compile after the first says what differs, where, and what to do."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.compile.difference import Kind
from torch_xla._src.runtime import names
from torch_xla.debug import CompileLimitError, limit_compiles, why_compiled

WIDTHS = itertools.count(16)


class Loop:
    """A training loop whose steps can be made to differ; unlike others in one size, so that its first step compiles."""

    def __init__(self):
        torch.manual_seed(0)
        width = next(WIDTHS)
        self.model = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.5), nn.Linear(width, 4)).to("xla")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.kept = []

    def step(self, batch=4, dtype=torch.float32, scale=1.5, extra=False, keep=False, group=2):
        x = torch.ones(batch, 8, dtype=dtype).to("xla")
        self.optimizer.zero_grad()
        y = self.model(x.float())  # the line of the forward pass
        if extra:
            y = y.tanh().sin()  # the line of the extra ops
        scaled = y * scale  # the line of the scale
        if keep:
            self.kept.append(scaled)
        loss = scaled.unflatten(1, (group, -1)).square().mean()  # the line of the groups
        del y, scaled
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def line_of(comment):
    lines, first = inspect.getsourcelines(Loop)
    (number,) = [first + n for n, line in enumerate(lines) if line.rstrip().endswith(comment)]
    return f"{__file__}:{number} (step)"


def last():
    (found,) = why_compiled(1)
    return found


@pytest.mark.parametrize(
    ("change", "kind", "place", "text"),
    [
        ({"batch": 3}, Kind.SHAPE, "forward pass", "dim 0 of `x` was 4, now 3"),
        ({"extra": True}, Kind.OPS, "extra ops", "new: 2 ops (aten::tanh, aten::sin)"),
        ({"scale": 2.5}, Kind.NUMBER, "scale", "scalar 1.5 became 2.5: it is an input of the program from now on"),
        ({"group": 4}, Kind.NUMBER, "groups", "was [4, 2, 2], now [4, 4, 1]"),
        ({"keep": True}, Kind.OUTPUT, "scale", "the result of aten::mul was dead before when the step ended: now held"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_one_difference(change, kind, place, text):
    loop = Loop()
    loop.step()
    before = last().number
    loop.step()
    assert last().number == before  # a step that is the same compiles nothing
    loop.step(**change)
    found = last()
    assert (found.number, found.relative, found.kind) == (before + 1, before, kind)
    assert found.line == line_of("the line of the " + place)
    assert text in found.difference
    assert found.remedy
    assert f"program {before + 1}, nearest to program {before}: {found.difference}\n  at {found.line}" in str(found)


def test_a_dtype():
    for dtype in (torch.float32, torch.float64):
        values = torch.ones(5, dtype=dtype).to("xla")
        (values.sin() + 1).sum().item()
    assert (last().kind, last().difference) == (Kind.DTYPE, "`values` was float32, now float64")


def test_a_mode():
    loop = Loop()
    loop.step()
    loop.model.eval()
    loop.step()
    assert last().kind is Kind.OPS
    assert last().difference.startswith("not recorded this time:")
    assert "aten::bernoulli" in last().difference
    loop.model.train()
    number = last().number
    loop.step()
    assert last().number == number


def test_where_a_read_ends_the_recording_earlier():
    def step(early):
        y = torch.ones(3, 3, device="xla").cos()
        if early:
            y.sum().item()
        return (y @ y).exp()

    for early in (False, True):
        step(early)
        torch_xla.sync()
    assert last().kind is Kind.INPUT or last().kind is Kind.OPS or last().kind is Kind.UNLIKE
    assert last().remedy


def test_a_held_buffer():
    from torch_xla._src.graph.tensor import value_of

    loop = Loop()
    loop.step()
    buffer = value_of(loop.model[0].weight).buffer
    loop.step()
    assert last().kind is Kind.DONATION
    assert "now somebody holds it" in last().difference
    del buffer


def test_the_precision_of_products():
    loop = Loop()
    loop.step()
    before = torch_xla.backends.get_mat_mul_precision()
    try:
        torch_xla.backends.set_mat_mul_precision("high")
        loop.step()
    finally:
        torch_xla.backends.set_mat_mul_precision(before)
    assert (last().kind, last().difference) == (Kind.SETTING, f"the precision of products was {before}, now high")


def test_what_has_nothing_to_do_with_earlier_programs():
    a = torch.ones(3, 2, device="xla")
    (a.logcumsumexp(0) + a.erfinv().i0()).sum().item()
    assert last().kind is Kind.UNLIKE
    assert last().relative == 0


def test_a_limit_is_an_error_that_explains_and_loses_nothing():
    loop = Loop()
    loop.step()
    compiled = met.counter_value("UncachedCompile")
    with limit_compiles(0):
        loop.step()  # the same again
        with pytest.raises(CompileLimitError, match=r"dim 0 of `x` was 4, now 9") as caught:
            loop.step(batch=9)
        assert caught.value.explanation.kind is Kind.SHAPE
        assert met.counter_value("UncachedCompile") == compiled
    torch_xla.sync()  # what was pending
    assert met.counter_value("UncachedCompile") == compiled + 1
    assert all(p.isfinite().all() for p in loop.model.parameters())
    with limit_compiles(1):
        loop.step(batch=10)
        with pytest.raises(CompileLimitError, match=r"limit_compiles\(1\)"):
            loop.step(batch=11)
    torch_xla.sync()
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="integer >= 0"):
            limit_compiles(wrong)


def test_too_many_graphs_of_a_function_are_explained():
    @torch_xla.compile(max_different_graphs=1)
    def double(values):
        return (values * 2).cosh()

    double(torch.ones(3, device="xla"))
    with pytest.raises(RuntimeError, match=r"Expected: at most 1\nprogram .*\bdim 0 of .* was 3, now 4"):
        double(torch.ones(4, device="xla"))


def test_names_are_looked_up_without_holding_anything():
    import weakref

    from torch_xla._src.graph.tensor import inner_of

    def look():
        tensors = [torch.ones(2, device="xla")]
        held = torch.zeros(1, device="xla")
        by_name = {"a": held}
        found = names.of_values({1: inner_of(tensors[0]).value, 2: inner_of(held).value})
        value = weakref.ref(inner_of(held).value)
        del held, by_name
        return found, value()

    assert look() == ({1: "tensors[0]", 2: "held"}, None)


def test_the_limit_of_a_process():
    script = """
import torch, torch_xla
for n in (2, 3, 4):
    print(torch.ones(n, device="xla").sin().sum().item())
"""
    environment = os.environ | {"TORCH_XLA_MAX_COMPILES": "2", "XLA_PERSISTENT_CACHE_PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert len(done.stdout.split()) == 2
    assert "TORCH_XLA_MAX_COMPILES=2 does not allow another program to be compiled" in done.stderr
    assert "was [3], now [4]" in done.stderr


def test_a_decorated_function_may_compile_so_much_at_each_call():
    @limit_compiles(1)
    def run(sizes):
        return [float((torch.ones(n, device="xla") + n).sum()) for n in sizes]

    assert run([301]) == [301 * 302]
    assert run([302]) == [302 * 303]
    with pytest.raises(CompileLimitError, match="limit_compiles"):
        run([303, 304])
    assert run([303]) == [303 * 304]
    with pytest.raises(ValueError, match="not -1"):
        why_compiled(-1)
