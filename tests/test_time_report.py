"""Where the time of a loop goes, with a clock that tests move on."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import torch_xla
from torch_xla._src import time_report
from torch_xla._src.compile import launch
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.runtime import transfer
from torch_xla._src.time_report import CATEGORIES, Stopwatch, Summary, TimeReport
from torch_xla.debug import time_report as report_of


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def test_each_moment_counts_once():
    clock = Clock()
    watch = Stopwatch(clock)

    def passes(n):
        clock.now += n

    passes(1)  # idle
    watch.active()
    passes(10)  # recording
    watch.enter("compiling")
    passes(100)
    watch.enter("transfer")
    passes(1000)
    watch.leave()
    passes(200)  # compiling again
    watch.leave()
    passes(20)
    watch.step_ends()
    watch.enter("waiting")  # a read after the step does not begin the next
    passes(10_000)
    watch.leave()
    passes(2)
    assert watch.take() == {"recording": 30, "compiling": 300, "transfer": 1000, "waiting": 10_000, "idle": 3}
    assert sum(watch.take().values()) == 0


def loop(steps, report=None, pause=lambda: None, read=False, sync=False):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.ones(2, 4).to("xla")
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if sync:
            torch_xla.sync()
        if read:
            loss.item()
        pause()


@pytest.mark.parametrize("sync", [False, True])
def test_steps_reads_and_shares(sync):
    loop(2)
    with report_of() as report:
        loop(6, read=True, sync=sync)
    total = report.total
    assert total.steps == 6
    assert sum(total.shares.values()) == pytest.approx(1)
    assert set(total.shares) == set(CATEGORIES)
    ((place, reads),) = total.reads.items()
    assert reads == 6
    assert place.startswith(__file__)
    assert place.endswith("(loop)")
    assert total.compiles == 0
    assert f"1 host reads a step at {place}" in str(report)
    assert f"1 a step: host read at {place}" in str(report)


def test_the_time_between_steps_is_idle():
    clock = Clock()
    with TimeReport(clock=clock) as report:
        loop(3, pause=lambda: setattr(clock, "now", clock.now + 10**9), read=True)
    assert report.total.seconds == {"recording": 0, "compiling": 0, "transfer": 0, "waiting": 0, "idle": 3}
    assert report.total.verdict.startswith("input-bound: 100% between steps")


def test_a_compile_and_a_fallback_are_told():
    matrices, vectors = torch.eye(3).expand(2, 3, 3).to("xla"), torch.ones(1, 3, 1).to("xla")
    with warnings.catch_warnings(), report_of() as report:
        warnings.simplefilter("ignore")  # that it runs on the CPU, which is told once
        torch.linalg.lstsq(matrices.exp2(), vectors)
        torch_xla.sync()
    assert report.total.compiles >= 1
    ((place, count),) = report.total.fallbacks.items()
    assert count == 1
    assert __file__ in place
    assert not report.total.reads
    assert "ops on the CPU" in report.total.verdict


@pytest.mark.parametrize(
    ("category", "verdict"),
    [
        ("recording", "host-bound"), ("compiling", "compile-bound"), ("transfer", "transfer-bound"), ("waiting", "device-bound"),
        ("idle", "input-bound"),
    ],
)  # fmt: skip
def test_verdicts(category, verdict):
    summary = Summary()
    assert summary.verdict == "no step has been seen"
    assert sum(summary.shares.values()) == 0
    summary.seconds = dict.fromkeys(CATEGORIES, 1.0) | {category: 6.0}
    summary.steps = 4
    summary.reads["eval.py:17 (f)"] = 16
    assert summary.verdict.startswith(f"{verdict}: 60%")
    assert "4 host reads a step at eval.py:17 (f)" in summary.verdict


def test_it_is_printed_every_so_many_steps(capsys):
    loop(1)
    report = report_of(every=2)
    report.start()
    with pytest.raises(RuntimeError, match="stop"):
        report_of().start()
    loop(5)
    report.stop()
    report.stop()
    assert capsys.readouterr().err.count("time report: 2 steps") == 2
    assert report.total.steps == 5
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="integer >= 1"):
            report_of(every=wrong)


def test_nothing_is_wrapped_when_it_is_off():
    names = [
        (launch.Launch, "build"),
        (launch.Launch, "run"),
        (transfer, "upload"),
        (transfer, "download"),
        (launch, "wait"),
    ]
    before = [getattr(home, name) for home, name in names]
    report = report_of()
    report.start()
    assert [getattr(home, name) for home, name in names] != before
    report.__exit__(KeyError, KeyError(), None)
    assert [getattr(home, name) for home, name in names] == before
    assert "record" not in vars(RECORDER)
    assert time_report.TimeReport._running is None


def test_frozen_steps_are_steps():
    model = nn.Linear(4, 3).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch_xla.compile(full_graph=True)
    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.ones(2, 4).to("xla")
    for _ in range(4):
        step(x)
    with report_of() as report:
        for _ in range(5):
            step(x)
    assert step.status().startswith(("7 of 9", "6 of 9"))
    assert report.total.steps == 5


def test_other_threads_are_not_told():
    import threading

    with report_of() as report:
        thread = threading.Thread(target=loop, args=(2,), kwargs={"read": True})
        thread.start()
        thread.join()
    assert report.total.steps == 0
    assert not report.total.reads


def test_a_whole_process():
    script = """
import torch, torch_xla
x = torch.ones(3, device="xla")
for _ in range(4):
    x = x * 2
    torch_xla.sync()
"""
    environment = os.environ | {"TORCH_XLA_TIME_REPORT": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("time report: 2 steps") == 2
