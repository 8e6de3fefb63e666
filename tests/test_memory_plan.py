"""The memory plan of a program: XLA's figures, an estimate of what they are made of, and nothing is run for it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.compile import donation
from torch_xla._src.compile.program import bytes_needed
from torch_xla._src.graph.recorder import RECORDER
from torch_xla.debug import memory, program

MEGABYTE = 1 << 20


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to("xla")
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(32, 64).to("xla")


def test_a_plan_runs_nothing_and_the_launch_takes_the_program_that_it_compiled():
    model, optimizer, x = training()
    torch_xla.sync()
    met.clear_all()
    with torch_xla.step():
        step(model, optimizer, x)
        pending, cuts = RECORDER.pending, RECORDER.num_cuts
        plan, again = memory.plan(), memory.plan()
        assert (RECORDER.pending, RECORDER.num_cuts) == (pending, cuts)
        assert plan == again
        assert met.counter_value("UncachedCompile") == 1
        assert met.counter_value("ExecuteComputation") is None
    assert met.counter_value("UncachedCompile") == 1
    assert donation._last.program.donated
    assert plan.peak == bytes_needed(donation._last.program.executable)
    assert plan == memory.last()
    weights = [p.detach().cpu() for p in model.parameters()]
    model, optimizer, x = training()
    with torch_xla.step():
        step(model, optimizer, x)
    for ours, unplanned in zip(weights, model.parameters(), strict=True):
        assert torch.equal(ours, unplanned.detach().cpu())


def test_the_figures_of_a_program_that_can_be_counted_by_hand():
    x = torch.zeros(MEGABYTE // 4, device="xla")
    torch_xla.sync()
    y = torch.sort(x).values
    plan = memory.plan()
    assert (plan.outputs, plan.aliased, plan.fits) == (MEGABYTE, 0, True)
    assert MEGABYTE <= plan.arguments < MEGABYTE + 100
    assert plan.estimated_peak >= 2 * MEGABYTE
    assert plan.limit == torch_xla.core.xla_model.get_memory_info()["bytes_limit"]
    del y


def test_the_estimate_frees_what_is_read_for_the_last_time():
    x = torch.zeros(MEGABYTE // 4, device="xla")
    torch_xla.sync()
    y = x
    for _ in range(10):
        y = y.view(2, -1).sin().view(-1)  # views take nothing
    plan = memory.plan()
    assert plan.estimated_peak == 3 * MEGABYTE  # x, and the two of a row
    assert sum(plan.at_peak().values()) == plan.estimated_peak
    assert all("test_memory_plan.py" in p.line for p in plan.positions)


def test_table_and_pictures(tmp_path):
    model, optimizer, x = training()
    with torch_xla.step():
        step(model, optimizer, x)
        plan = memory.plan()
    text = str(plan)
    assert f"{plan.peak:,}" in text
    assert "by XLA" in text
    assert "Estimate" in text
    plan.save_html(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<polygon") == len(plan.series()) > 1
    assert "(&lt;" not in text
    plan.save_png(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_png_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    y = torch.ones(2, device="xla") + 1
    plan = memory.plan(y)
    with pytest.raises(ImportError, match="install it, or use save_html"):
        plan.save_png(tmp_path / "plan.png")


def test_nothing_pending():
    torch_xla.sync()
    with pytest.raises(ValueError, match="nothing is pending"):
        memory.plan()
    x = torch.ones(2, device="xla") + 1
    torch_xla.sync()
    with pytest.raises(ValueError, match="nothing to plan"):
        memory.plan(x)


def test_a_limit_of_compiles_leaves_all_pending():
    y = torch.ones(2, 7, 3, device="xla").cosh() + 41
    with torch_xla.debug.limit_compiles(0), pytest.raises(torch_xla.debug.CompileLimitError):
        memory.plan()
    memory.plan()
    assert y[0, 0, 0].item() == pytest.approx(42.543, abs=1e-3)


def test_what_is_live_by_line_and_name():
    torch_xla.sync()
    layer = torch.nn.Linear(37, 3).to("xla")
    made = layer.weight.detach() * 2  # the line
    torch_xla.sync()
    found = memory.live()
    mine = {name: t for t in found for name in t.names if name in ("made", "layer.weight", "layer.bias")}
    assert (mine["made"].shape, mine["made"].num_bytes, mine["made"].op) == ((3, 37), 444, "aten::mul")
    assert mine["layer.weight"].op == ""
    line = mine["made"].line
    assert line.startswith(__file__)
    assert found.by_line()[line] >= 444
    assert sum(found.by_line().values()) == sum(t.num_bytes for t in found)
    assert [t.num_bytes for t in found] == sorted((t.num_bytes for t in found), reverse=True)
    assert f"in {len(found)} tensors" in str(found).splitlines()[0]
    count = len(found)
    del made
    assert len(memory.live()) == count - 1


def test_plans_of_programs_to_look_at():
    model, optimizer, x = training()
    torch_xla.sync()
    with torch_xla.step():
        step(model, optimizer, x)
        view = program.pending()
        rows, compiled = RECORDER.pending, met.counter_value("UncachedCompile")
        shown = memory.plan(view)
        assert (RECORDER.pending, met.counter_value("UncachedCompile")) == (rows, compiled)
        pending = memory.plan()
    assert memory.plan(program.compiled()[-1]) == memory.last() == pending
    assert shown.aliased == 0 < pending.aliased
    assert shown.peak > 0
    assert memory.plan(view) == shown  # after it has been launched
    for one in program.compiled():
        assert memory.plan(one).known


def test_plans_of_what_some_tensors_wait_for():
    x = torch.zeros(MEGABYTE // 4, device="xla")
    torch_xla.sync()
    y, z = torch.sort(x).values, x.cumsum(0)
    plan = memory.plan(program.pending(y))
    assert plan.outputs == MEGABYTE
    both = memory.plan(program.pending([y, z])).outputs
    assert 2 * MEGABYTE <= both < 2 * MEGABYTE + 100  # a table of the outputs
    assert memory.plan(y).outputs == both
    del z


def test_plans_of_nothing_and_of_other_things():
    x = torch.ones(2, device="xla")
    torch_xla.sync()
    with pytest.raises(ValueError, match="nothing was pending"):
        memory.plan(program.pending(x))
    for wrong, said in ((3, "int"), (torch.ones(2), "cpu"), ([x], "list")):
        with pytest.raises(TypeError, match=f"not {said}"):
            memory.plan(wrong)


def test_the_plan_of_a_program_over_padded_buffers():
    for length in (5, 6, 7):
        x = torch.ones(length).to("xla")
        torch_xla.mark_dynamic(x, 0, min=1, max=8)
        assert (x * 2).sum().item() == 2 * length
    for one in program.compiled():
        assert memory.plan(one).arguments >= 0


def test_the_plan_of_a_program_with_empty_tensors():
    empty = torch.ones(2, 0, device="xla") + torch.ones(1, 0, device="xla")
    y = torch.cat([empty.sum(0), torch.ones(3, device="xla")])
    assert memory.plan().known
    assert y.tolist() == [1, 1, 1]
    assert memory.plan(program.compiled()[-1]).known
