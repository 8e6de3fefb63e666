"""Counters, metrics and their report."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import time

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src import step_end
from torch_xla._src.runtime import executions, memory, metrics, metrics_report
from torch_xla._src.runtime.metrics import Metric
from torch_xla.debug import metrics_compare_utils


@pytest.fixture(autouse=True)
def _clear():
    torch_xla.sync(wait=True)
    met.clear_all()


def model_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


# ---- counters -------------------------------------------------------------------------------------------------------


def test_ops_are_counted_before_and_after_the_launch_and_in_replays():
    x = torch.ones(3, device="xla")
    for n in range(1, 4):
        y = x.mul(2).add(1).add(1)
        assert (met.counter_value("xla::mul"), met.counter_value("xla::add")) == (n, 2 * n)
        torch_xla.sync()
        assert (met.counter_value("xla::mul"), met.counter_value("xla::add")) == (n, 2 * n)
    assert y.tolist() == [4, 4, 4]


def test_a_clear_in_the_middle_of_a_recording_forgets_what_was_before():
    x = torch.ones(3, device="xla")
    y = x * 2
    met.clear_counters()
    assert met.counter_value("xla::mul") is None
    y = y * 3
    assert met.counter_value("xla::mul") == 1
    torch_xla.sync()
    assert met.counter_value("xla::mul") == 1


def test_counts_of_many_recordings_are_added_up():
    for n in range(1, 100):
        torch_xla.sync()
        torch.ones(n, device="xla").neg_()
    assert met.counter_value("xla::neg") == 99


def test_compiles_executions_and_steps():
    model = torch.nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(3, 4).to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    for _ in range(5):
        model_step(model, optimizer, x)
        torch_xla.sync(wait=True)
    assert met.counter_value("MarkStep") == 5
    assert met.counter_value("ExecuteComputation") == 5
    compiled, cached = met.counter_value("UncachedCompile"), met.counter_value("CachedCompile")
    assert compiled <= 2
    assert compiled + cached == 5
    assert met.metric_data("CompileTime")[0] == compiled == met.counter_value("CreateCompileHandles")
    assert met.metric_data("ExecuteTime")[0] == 5
    assert met.metric_data("TensorsGraphSize")[0] == 5
    assert met.metric_data("InputOutputAliasCount")[1] >= 4  # weight, bias and their momenta


def test_transfers_in_bytes():
    x = torch.ones(5, 2).to("xla")
    x.cpu()
    assert met.metric_data("OutboundData")[:2] == (1, 40)
    assert met.metric_data("InboundData")[:2] == (1, 40)
    assert met.metric_data("TransferToDeviceTime")[0] == met.metric_data("TransferFromDeviceTime")[0] == 1


def test_reads_and_fallbacks_are_counted_as_aten():
    torch.ones(3, device="xla").sum().item()
    assert met.executed_fallback_ops() == ["aten::_local_scalar_dense"]


def test_what_has_not_moved_is_absent():
    assert met.counter_names() == met.metric_names() == []
    assert met.metrics_report() == ""
    assert met.counter_value("UncachedCompile") is None
    assert met.metric_data("CompileTime") is None


# ---- the time programs take -----------------------------------------------------------------------------------------


class Slow:
    """An output that is ready when told."""

    size = 1

    def __init__(self):
        self.done = threading.Event()

    def addressable_data(self, index):
        return self

    def block_until_ready(self):
        self.done.wait()

    def is_ready(self):
        return self.done.is_set()

    def is_deleted(self):
        return False


def test_a_program_takes_until_the_device_has_finished_and_nobody_waits_for_it():
    output = Slow()
    executions.started(time.perf_counter_ns(), [output])  # returns at once
    assert met.metric_data("ExecuteTime") is None
    time.sleep(0.02)
    output.done.set()
    count, total, _ = met.metric_data("ExecuteTime")
    assert count == 1
    assert total >= 20e6  # nanoseconds


def test_a_program_that_runs_across_a_clear_leaves_no_sample():
    output = Slow()
    executions.started(time.perf_counter_ns(), [output])
    met.clear_all()
    output.done.set()
    assert met.metric_data("ExecuteTime") is None
    executions.started(time.perf_counter_ns(), [output])
    assert met.metric_data("ExecuteTime")[0] == 1


def test_what_watches_programs_is_no_memory_and_prevents_no_donation():
    x = torch.ones(1000, device="xla")
    torch_xla.sync(wait=True)
    gc.collect()
    before = memory.live_bytes()
    for _ in range(20):
        x.add_(1)
        torch_xla.sync()
        assert memory.live_bytes() == before
    assert met.metric_data("InputOutputAliasCount")[1] >= 1


def test_a_process_that_ends_while_programs_run_ends_well():
    code = """
import torch
x = torch.ones(300, 300, device="xla")
for _ in range(30):
    x = x @ x / 300
    import torch_xla; torch_xla.sync()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- the report -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (303_280, "303.280us"),
        (3_628_060, "003ms628.060us"),
        (91, "000.091us"),
        (3_368_559_137, "03s368ms559.137us"),
        (369_401_746_001, "06m09s401ms746.001us"),
        (3_600_000_000_000 * 25, "01d01h00m00s000ms000.000us"),
        (0, "000.000us"),
    ],
)
def test_times(nanoseconds, text):
    assert metrics_report.format_time(nanoseconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(36, "36.00B"), (1536, "1.50KB"), (0, "0.00B"), (3 * 2**20, "3.00MB"), (2**30, "1.00GB")]
)
def test_sizes(count, text):
    assert metrics_report.format_bytes(count) == text


def metric(*samples):
    found = Metric()
    for when, value in samples:
        found.count += 1
        found.total += value
        found.samples.append((when, value))
    return found


def test_the_text_of_a_report():
    found = metrics_report.report(
        {"CompileTime": metric((10.0, 1e6), (12.0, 3e6)), "InboundData": metric((1.0, 36.0))}, {"MarkStep": 2}
    )
    percentiles = (1, 5, 10, 20, 50, 80, 90, 95, 99)
    of_times = "; ".join(f"{p}%={'001ms' if p < 50 else '003ms'}000.000us" for p in percentiles)
    of_sizes = "; ".join(f"{p}%=36.00B" for p in percentiles)
    assert found == (
        "Metric: CompileTime\n  TotalSamples: 2\n  Accumulator: 004ms000.000us\n"
        "  ValueRate: 002ms000.000us / second\n  Rate: 1 / second\n"
        f"  Percentiles: {of_times}\n"
        "Metric: InboundData\n  TotalSamples: 1\n  Accumulator: 36.00B\n"
        f"  Percentiles: {of_sizes}\n"
        "Counter: MarkStep\n  Value: 2\n"
    )


def test_percentiles_and_number_of_samples_can_be_chosen(monkeypatch):
    monkeypatch.setenv("XLA_METRICS_PERCENTILES", "0.25:0.75")
    monkeypatch.setenv("XLA_METRICS_SAMPLES", "3")
    for value in range(10):
        metrics.sample("Some", value)
    count, total, samples = met.metric_data("Some")
    assert (count, total, [value for _, value in samples]) == (10, 45, [7, 8, 9])
    assert "Percentiles: 25%=000.007us; 75%=000.009us\n" in met.metrics_report()


def test_the_short_report_has_what_matters_and_all_fallbacks():
    metrics.count("Other")
    metrics.count("MarkStep")
    metrics.count("torchvision::nms")
    torch.ones(7, device="xla").sum().item()
    torch_xla.sync(wait=True)
    report = met.short_metrics_report()
    assert re.findall(r"Counter: (\S+)", report) == ["MarkStep", "aten::_local_scalar_dense", "torchvision::nms"]
    assert "Metric: ExecuteTime" in report
    assert "Metric: TensorsGraphSize" not in report
    named = met.short_metrics_report(counter_names=["Other"], metric_names=["TensorsGraphSize"])
    assert re.findall(r"(?:Counter|Metric): (\S+)", named) == [
        "TensorsGraphSize",
        "Other",
        "aten::_local_scalar_dense",
        "torchvision::nms",
    ]


def test_a_report_can_be_parsed_and_compared():
    text = metrics_report.report(
        {"CompileTime": metric((1.0, 369_401_746_001.0)), "OutboundData": metric((1.0, 1536.0))}, {"MarkStep": 3}
    )
    parsed = metrics_compare_utils.parse_metrics_report(text)
    assert parsed["CompileTime__Accumulator_sec"] == pytest.approx(369.401746001)
    assert parsed["OutboundData__Percentile_50_mb"] == pytest.approx(0.001536)
    assert parsed["MarkStep__Value"] == 3
    as_written = metrics_compare_utils.parse_metrics_report(text, dehumanize=False)
    assert as_written["CompileTime__Accumulator_sec"][1] == "06m09s401ms746.001us"
    points = metrics_compare_utils.get_data_points_from_metrics_reports([text, text])
    assert points["MarkStep__Value"] == [3, 3]
    assert metrics_compare_utils.compare_metrics(points, text) == ""
    worse = text.replace("Value: 3", "Value: 30")
    assert metrics_compare_utils.compare_metrics(points, worse).startswith(
        "MarkStep__Value failed its expression check"
    )
    assert metrics_compare_utils.compare_metrics(points, worse, {"MarkStep__Value_expression": "v < 100"}) == ""


# ---- at the end of a step -------------------------------------------------------------------------------------------


def test_the_metrics_file_gets_a_report_at_each_sync(tmp_path, monkeypatch):
    file = tmp_path / "metrics"
    monkeypatch.setenv("XLA_METRICS_FILE", str(file))
    x = torch.ones(3, device="xla")
    for _ in range(2):
        x = x + 1
        torch_xla.sync()
    steps = re.findall(r"^\[MetricsData; step=(\d+)\]\nMetric: ", file.read_text(), re.MULTILINE)
    assert [int(steps[1]) - int(steps[0])] == [1]
    assert "Counter: MarkStep\n  Value: 2" in file.read_text()


@pytest.mark.parametrize("stream", ["STDERR", "STDOUT"])
def test_the_metrics_file_may_be_a_stream(stream, monkeypatch, capsys):
    monkeypatch.setenv("XLA_METRICS_FILE", stream)
    torch_xla.sync()
    out, err = capsys.readouterr()
    assert (err if stream == "STDERR" else out).startswith("[MetricsData; step=")


def test_remarks():
    for _ in range(12):
        metrics.count("MarkStep")
        metrics.sample("CompileTime", 1e6)
        metrics.sample("TransferFromDeviceTime", 1e3)
    metrics.sample("CompileTime", 301e9)
    metrics.sample("ExecuteTime", 29e9)
    metrics.count("aten::geqrf")
    metrics.count("aten::_local_scalar_dense")
    assert step_end.remarks() == [
        "CompileTime too frequent: 13 counts during 12 steps",
        "TransferFromDeviceTime too frequent: 12 counts during 12 steps",
        "CompileTime too slow: longest instance took 05m01s000ms000.000us. Please open a GitHub issue with the graph dump for "
        "our team to optimize.",
        "Op(s) not lowered: aten::geqrf,  Please open a GitHub issue with the above op lowering requests.",
    ]


def test_nothing_is_remarked_on_a_good_program():
    for _ in range(20):
        metrics.count("MarkStep")
    metrics.sample("CompileTime", 1e9)
    assert step_end.remarks() == []
