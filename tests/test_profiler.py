"""Traces hold the user's annotations, steps, our spans and module names, in the layout that TensorBoard reads."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from torch import nn

import torch_xla.debug.profiler as xp
from torch_xla._src import spans
from torch_xla._src.compile import launch
from torch_xla._src.graph.recorder import RECORDER


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(7, 5), nn.Tanh())

    def forward(self, x):
        return self.inner(x)


def step(net, optimizer, number):
    with xp.StepTrace("train", step_num=number):
        with xp.Trace("forward pass"):
            loss = net(torch.ones(3, 7).to("xla")).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_what_a_trace_holds(tmp_path):
    network = Net().to("xla")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before = launch.Launch.run
    xp.start_trace(tmp_path, perfetto=True)
    try:
        with pytest.raises(RuntimeError, match="already been started"):
            xp.start_trace(tmp_path)
        for number in range(3):
            step(network, optimizer, number)
    finally:
        xp.stop_trace()
    (folder,) = (tmp_path / "plugins" / "profile").iterdir()  # what TensorBoard looks for
    (xplane,) = folder.glob("*.xplane.pb")
    data = xplane.read_bytes()
    names = [spans.RECORDING, spans.COMPILE, spans.LAUNCH, spans.UPLOAD, spans.DOWNLOAD, "train", "forward pass"]
    for name in [*names, "net.inner.0/aten.linear", "optimizer: SGD"]:
        assert name.encode() in data, name
    (perfetto,) = folder.glob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    found = {event["name"].split("#")[0] for event in events if "name" in event}
    assert set(names) <= found
    assert launch.Launch.run is before  # as it was, and at no cost
    assert "record" not in vars(RECORDER)
    assert "cut" not in vars(RECORDER)
