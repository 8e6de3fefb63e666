"""What is said about programs on request: analyses, graphs in files, texts of what is pending."""

from __future__ import annotations

import re

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import _XLAC
from torch_xla._src.compile import causes, compile_log
from torch_xla.debug.graph_saver import save_tensors_graph
from torch_xla.report import report

VARIABLES = """PT_XLA_DEBUG PT_XLA_DEBUG_LEVEL PT_XLA_DEBUG_FILE PT_XLA_DEBUG_MAX_FRAME XLA_SAVE_TENSORS_FILE
XLA_SAVE_TENSORS_FMT XLA_IR_DEBUG XLA_HLO_DEBUG"""


@pytest.fixture(autouse=True)
def _start(monkeypatch):
    for name in VARIABLES.split():
        monkeypatch.delenv(name, raising=False)
    torch_xla.sync(wait=True)


_sizes = iter(range(1000, 2000))


def something_new():
    """A pending tensor whose program has not been compiled before."""
    return torch.ones(next(_sizes), device="xla") * 2


# ---- analyses -------------------------------------------------------------------------------------------------------


def analyses(text, title):
    """The blocks of an analysis, as lists of lines."""
    lines = [line.partition(f"{title}: ")[2] for line in text.splitlines() if line.startswith(f"{title}: ")]
    blocks, rule = [], "=" * 80
    for line in lines:
        if line == rule and (not blocks or blocks[-1][-1:] == [rule]):
            blocks.append([])
        blocks[-1].append(line)
    return blocks


def test_the_analysis_of_a_compile(monkeypatch, capsys):
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    x = something_new()
    torch_xla.sync()
    err = capsys.readouterr().err
    [block] = analyses(err, "Compilation Analysis")
    here = next(i for i, line in enumerate(block) if line.startswith("  test_the_analysis_of_a_compile ("))
    assert block[:3] == ["=" * 80, "Compilation Cause", "  user torch_xla.sync"]
    assert block[3] == "Graph Info: "
    assert re.fullmatch(r"  Graph Hash: [0-9a-f]{32}", block[4])
    assert block[5:8] == [
        "  Number of Graph Inputs: 0",
        "  Number of Graph Outputs: 1",
        "Python Frame Triggered Execution: ",
    ]
    assert here == 8  # innermost first
    assert re.fullmatch(rf"  test_the_analysis_of_a_compile \({re.escape(__file__)}:\d+\)", block[here])
    assert block[-2:] == ["-" * 80, "=" * 80]
    assert re.search(r"^Computation hash: [0-9a-f]{32}$", err, re.MULTILINE)
    [memory] = analyses(err, "Post Compilation Analysis")
    assert [line.partition(":")[0] for line in memory[1:-2]] == [
        "Graph input size", "Graph output size", "Aliased Input size", "Intermediate tensor size", "Compiled program size",
    ]  # fmt: skip
    assert "Execution Analysis" not in err
    assert x.sum().item() == 2 * len(x)


def test_executions_are_analysed_at_level_two_each_time(monkeypatch, capsys):
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "2")
    size = next(_sizes)
    hashes = set()
    for _ in range(2):
        y = torch.ones(size, device="xla") * 3
        torch_xla.sync()
    text = capsys.readouterr().err
    assert len(analyses(text, "Compilation Analysis")) == 1
    blocks = analyses(text, "Execution Analysis")
    assert [block[1:3] for block in blocks] == [["Execution Cause", "  user torch_xla.sync"]] * 2
    hashes.update(line for block in blocks for line in block if "Graph Hash" in line)
    assert len(hashes) == 1
    assert y[0].item() == 3


def test_causes(monkeypatch, capsys):
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")

    def cause():
        return analyses(capsys.readouterr().err, "Compilation Analysis")[-1][2].strip()

    something_new().sum().item()
    assert cause() == "most likely user code trying to access tensor value before torch_xla.sync"
    keep = something_new()
    next(iter(torch_xla.distributed.parallel_loader.MpDeviceLoader([], "xla")), None)
    assert cause() == "torch_xla.sync in parallel loader at step end"
    with torch_xla.debug.profiler.StepTrace("step", step_num=1):
        keep = something_new()
    assert cause() == "torch_xla.sync when exiting a profiler StepTrace region"
    with torch_xla.compile(name="mine"):
        keep = something_new()
    assert cause() == "torch_xla.compile"
    pending = something_new()
    with torch_xla.compile():
        pass
    assert cause() == "torch_xla.compile clear the pending graph prior calling the target function"
    weight = torch.nn.Parameter(something_new())
    torch_xla.sync()
    weight.sum().backward()
    capsys.readouterr()
    torch.optim.SGD([weight], lr=0.1).step()
    assert cause() == "the end of an optimizer's step()"
    assert keep is not pending


def test_what_runs_inside_a_full_graph_is_always_told(capsys):
    @torch_xla.compile(full_graph=True)
    def reads(x):
        return x * 2 if (x.sum() > 0).item() else x

    for _ in range(2):
        with pytest.raises(RuntimeError, match="Unexpected execution happens inside the compiled function"):
            reads(torch.ones(next(_sizes), device="xla"))
        [block] = analyses(capsys.readouterr().err, "Unexpected Execution Analysis")
        assert block[1:3] == ["Execution Cause", f"  {causes.READ}"]
        assert any(line.startswith("  reads (") for line in block)
    x = something_new()
    torch_xla.sync()
    assert x.sum().item() == 2 * len(x)
    assert capsys.readouterr().err == ""


def test_the_name_of_a_compiled_function_is_shown(monkeypatch, capsys):
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    pending = something_new()
    with torch_xla.compile(name="mine"):
        inside = something_new()
    names = re.findall(r"Graph Name: (.*)", capsys.readouterr().err)
    assert names == ["mine_clear_pending", "mine"]
    assert pending is not inside


def test_the_analysis_can_go_to_a_file_and_true_is_a_flag(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PT_XLA_DEBUG", "true")
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(tmp_path / "analysis"))
    monkeypatch.setenv("PT_XLA_DEBUG_MAX_FRAME", "1")
    x = something_new()

    def inner():
        torch_xla.sync()

    inner()
    text = (tmp_path / "analysis").read_text()
    assert len(analyses(text, "Compilation Analysis")) == len(analyses(text, "Execution Analysis")) == 1
    assert "Compilation Analysis:   ..........\n" in text  # more frames than one
    assert capsys.readouterr().err == ""
    assert x.is_xla


# ---- graphs in files ------------------------------------------------------------------------------------------------


def test_graphs_are_saved(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    for _ in range(2):  # a replay too
        x = torch.ones(3, device="xla") * 2
        torch_xla.sync()
    text = (tmp_path / "graphs.0").read_text()
    assert text.count("[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n  test_graphs_are_saved (") == 2
    assert text.count("## BEGIN_GRAPH\nIR {\n") == text.count("\n}\n\nGraph Hash: ") == text.count("## END_GRAPH") == 2
    assert len(set(re.findall(r"Graph Hash: (\w+)", text))) == 1
    assert "%1 = f32[3]{0} aten::mul(%0), xla_shape=f32[3]{0}, other=2, ROOT=0" in text
    assert x.is_xla


@pytest.mark.parametrize(
    ("form", "sign"), [("hlo", "HloModule"), ("dot", "digraph G {"), ("stablehlo", "func.func public @main")]
)
def test_forms_of_saved_graphs(monkeypatch, tmp_path, form, sign):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", form)
    x = torch.ones(3, device="xla") * 2
    torch_xla.sync()
    assert sign in (tmp_path / "graphs.0").read_text()
    assert x.is_xla


def test_an_unknown_form_is_an_error_and_nothing_is_lost(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "pdf")
    x = torch.ones(3, device="xla") * 2
    with pytest.raises(ValueError, match="XLA_SAVE_TENSORS_FMT=pdf is none of text, hlo, dot, stablehlo"):
        torch_xla.sync()
    monkeypatch.delenv("XLA_SAVE_TENSORS_FILE")
    assert x.tolist() == [2, 2, 2]


# ---- what is pending ------------------------------------------------------------------------------------------------


def test_texts_of_what_is_pending_launch_nothing_and_show_what_is_asked_for():
    x = torch.ones(2, 3).to("xla")
    torch_xla.sync()
    y, other = (x.t() @ x).sum(), x * 7
    text = _XLAC._get_xla_tensors_text([y])
    assert text.startswith("IR {\n  %0 = f32[2,3]{1,0} xla::device_data(), xla_shape=f32[2,3]{1,0}\n")
    assert re.search(r"%\d = f32\[\] aten::sum\(%\d\), xla_shape=f32\[\], ROOT=0\n}\n$", text)
    assert "other=7" not in text
    assert "aten::mul" in _XLAC._get_xla_tensors_text([y, other])
    assert _XLAC._get_xla_tensors_hlo([y]).startswith("HloModule")
    assert _XLAC._get_xla_tensors_dot([y]).startswith("digraph G {")
    assert xm.get_stablehlo([y]).count("stablehlo.dot_general") == 1
    assert "stablehlo.multiply" not in xm.get_stablehlo([y])
    assert "stablehlo.multiply" in xm.get_stablehlo()
    assert xm.get_stablehlo_bytecode([y])[:4] == b"ML\xefR"
    assert _XLAC._check_tensor_need_materialization([x, y, torch.ones(1)]) == [False, True, False]
    assert y.item() == 18
    assert _XLAC._check_tensor_need_materialization([y]) == [False]
    assert "ROOT=0" in _XLAC._get_xla_tensors_text([y])


def test_hashes_tell_computations_apart():
    def pending(n):
        return _XLAC._get_graph_hash([torch.ones(3, device="xla") * n])

    assert pending(2) == pending(2) != pending(3)
    assert len(pending(2)) == 16


def test_places_of_ops(monkeypatch):
    monkeypatch.setenv("XLA_IR_DEBUG", "1")
    y = torch.ones(next(_sizes), device="xla") * 2  # a row that another test made first has the place there
    where = r"location=test_places_of_ops@test_debug_output\.py:\d+"
    assert re.search(rf"aten::mul\(%0\), {where}", _XLAC._get_xla_tensors_text([y]))
    monkeypatch.delenv("XLA_IR_DEBUG")
    assert "location" not in _XLAC._get_xla_tensors_text([y])
    _XLAC._set_ir_debug(True)
    assert "location" in _XLAC._get_xla_tensors_text([y])
    _XLAC._set_ir_debug(False)
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    assert re.search(r"aten\.mul\[test_places_of_ops:test_debug_output\.py:\d+\]", xm.get_stablehlo([y]))
    assert "aten.mul[test_places_of_ops:test_debug_output.py:" in _XLAC._get_xla_tensors_hlo([y])


def test_save_tensors_graph(tmp_path, monkeypatch):
    y = torch.ones(3, device="xla") * 2
    save_tensors_graph(str(tmp_path), "y", [y])
    monkeypatch.setenv("SAVE_GRAPH_FMT", "hlo")
    save_tensors_graph(str(tmp_path), "y", [y])
    first, second = sorted(tmp_path.iterdir())
    assert first.read_text().startswith("IR {")
    assert second.read_text().startswith("HloModule")


# ---- the report -----------------------------------------------------------------------------------------------------


def test_the_report_says_what_an_issue_needs(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS_TOKEN", "hush")
    x = something_new()
    torch_xla.sync()
    text = report()
    for line in (
        f"  torch {torch.__version__}",
        "  xla:0 cpu cpu",
        "  PJRT_DEVICE=CPU",
        "  XLA_FLAGS_TOKEN=(hidden)",
        "  of this process",
    ):
        assert line + "\n" in text
    assert re.search(rf" s, 2 ops, 0 inputs, 1 outputs: user torch_xla.sync, at {re.escape(__file__)}:\d+", text)
    assert x.is_xla


def test_another_process_finds_the_last_compiles(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path))
    one = causes.Compile("a cause", "file.py:3 (f)", 5, 2, 1, 0.5)
    for _ in range(3):
        compile_log.add(one)
    with (tmp_path / ".compiles").open("a") as file:
        file.write('{"cause": "half wri')
    assert compile_log.read() == [one] * 3
    monkeypatch.setattr(causes, "history", [])
    assert report().count("5 ops, 2 inputs, 1 outputs: a cause, at file.py:3 (f)") == 3


def test_the_log_of_compiles_stays_small(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path))
    monkeypatch.setattr(compile_log, "_LIMIT", 1000)
    for n in range(50):
        compile_log.add(causes.Compile("a cause", "file.py:3 (f)", n, 2, 1, 0.5))
    assert (tmp_path / ".compiles").stat().st_size < 2000
    assert compile_log.read()[-1].num_rows == 49
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")
    compile_log.add(causes.Compile("a cause", "", 0, 0, 0, 0.0))
    assert compile_log.read() == []
