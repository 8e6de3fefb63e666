"""Small public modules: utilities, serialization, DLPack, callbacks, profiler, helpers of sample scripts."""

from __future__ import annotations

import gc
import os
import re
import socket

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.utils.serialization as xser
import torch_xla.utils.utils as xu
from torch_xla._internal import jax_workarounds, tpu
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.spans import SPANS
from torch_xla.experimental import custom_kernel
from torch_xla.experimental.callback import on_ready_callback, on_ready_event
from torch_xla.experimental.pytreeify import pytreeify
from torch_xla.test import test_utils
from torch_xla.utils.dlpack import from_dlpack, to_dlpack

# ---- utilities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "on"),
    [("1", True), ("true", True), ("TRUE", True), ("yes", True), ("2", True), ("-1", True)]
    + [("0", False), ("false", False), ("no", False), ("", False), ("perhaps", False)],
)
def test_flags_in_the_environment(monkeypatch, text, on):
    monkeypatch.setenv("SOME_FLAG", text)
    assert xu.check_env_flag("SOME_FLAG") is on
    assert xu.getenv_as("SOME_FLAG", bool) is on


def test_getenv_as(monkeypatch):
    monkeypatch.setenv("SOME_NUMBER", "3")
    assert (xu.getenv_as("SOME_NUMBER", int), xu.getenv_as("NOT_SET", int, 5), xu.getenv_as("NOT_SET", int)) == (
        3,
        5,
        None,
    )


def test_generators():
    data = (torch.ones(2), torch.zeros(2))
    generator = xu.SampleGenerator(data, 3)
    assert len(generator) == len(list(generator)) == len(list(generator)) == 3
    assert next(iter(generator)) is data
    pairs = list(xu.FnDataGenerator(torch.neg, 2, torch.ones, dims=[3], count=2))
    assert [(x.shape, y.sum().item()) for x, y in pairs] == [((2, 3), -6)] * 2


def test_instances_in_nested_data():
    found = []
    xu.for_each_instance([1, (2, {"a": 3, "b": "x"}), {4}], lambda v: isinstance(v, int), found.append)
    assert found == [1, 2, 3, 4]
    data = [1, (2, {"a": 3, "b": "x"})]
    assert xu.for_each_instance_rewrite(data, lambda v: isinstance(v, int), lambda v: v * 10) == [
        10,
        [20, {"a": 30, "b": "x"}],
    ]
    assert data == [1, (2, {"a": 3, "b": "x"})]


def test_other_utilities(capsys):
    assert (xu.as_list(3), xu.as_list((3,)), xu.shape([[1, 2]] * 3)) == ([3], (3,), [3, 2])
    assert xu.parallel_work(2, lambda a, b: a + b, [1, 2], [3, 4]) == [4, 6]
    assert xu.flatten_nested_tuple((1, (2, (3,)), 4)) == (1, 2, 3, 4)
    assert xu.list_copy_append([1], 2) == [1, 2]
    made = []
    lazy = xu.LazyProperty(lambda: made.append(1) or 5)
    assert (lazy.value, lazy.value, made) == (5, 5, [1])
    assert xu.timed(lambda: 5, msg="took ", printfn=print) == 5
    xu.eprint("error")
    xu.null_print("nothing")
    out, err = capsys.readouterr()
    assert re.fullmatch(r"took [\d.]+ms\n", out)
    assert err == "error\n"
    cleaned = []
    cleaner = xu.Cleaner(lambda: cleaned.append(1))
    del cleaner
    gc.collect()
    assert cleaned == [1]
    with xu.TmpFolder() as path:
        assert os.path.isdir(path)
    assert not os.path.exists(path)
    for port in xu.get_free_tcp_ports(2):
        with socket.socket() as free:
            free.bind(("", port))


# ---- serialization --------------------------------------------------------------------------------------------------


def test_one_file_a_tensor(tmp_path):
    x = torch.arange(3.0, device="xla")
    data = {"a": x, "b": [torch.zeros(1), 3, (x, "text")], "c": torch.nn.Linear(2, 2).to("xla").state_dict()}
    path = tmp_path / "file"
    xser.save(data, path)
    assert sorted(f.name for f in (tmp_path / "file.tensors").iterdir()) == [f"tensor_{i}.pt" for i in range(4)]
    assert torch.load(tmp_path / "file.tensors" / "tensor_0.pt").tolist() == [0, 1, 2]
    loaded = xser.load(path)
    assert loaded["a"].device.type == "cpu"
    assert loaded["a"] is loaded["b"][2][0]
    assert (loaded["b"][1], loaded["b"][2][1]) == (3, "text")
    torch.nn.Linear(2, 2).load_state_dict(loaded["c"])
    assert data["a"].is_xla
    xser.save([x], path)  # again, with fewer tensors
    assert len(list((tmp_path / "file.tensors").iterdir())) == 1


# ---- DLPack ---------------------------------------------------------------------------------------------------------


def test_dlpack_copies_both_ways_also_what_is_pending():
    x = torch.arange(3.0, device="xla") + 1
    host = torch.utils.dlpack.from_dlpack(to_dlpack(x))
    host.zero_()
    assert x.tolist() == [1, 2, 3]
    for source in (np.arange(3), torch.arange(3), torch.utils.dlpack.to_dlpack(torch.arange(3))):
        y = from_dlpack(source)
        assert (y.device.type, y.tolist()) == ("xla", [0, 1, 2])
    with pytest.raises(TypeError, match="needs a tensor on device xla"):
        to_dlpack(torch.ones(1))


# ---- callbacks ------------------------------------------------------------------------------------------------------


def test_callbacks_come_when_the_tensor_has_been_computed():
    x = torch.ones(100, 100, device="xla")
    y = x @ x
    event = on_ready_event(y)
    assert event.wait(30)
    assert y[0, 0].item() == 100
    seen = []
    on_ready_callback(x, lambda t: seen.append(t is x))
    for _ in range(3):
        x.add_(1)  # may be donated meanwhile
        torch_xla.sync(wait=True)
    with pytest.raises(ValueError, match="needs a tensor on device xla"):
        on_ready_event(torch.ones(1))
    assert x[0, 0].item() == 4


# ---- autograd functions on nested data ------------------------------------------------------------------------------


@pytreeify
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensors, factor):
        ctx.factor = factor
        return {"first": tensors["a"] * factor, "rest": [t * factor for t in tensors["b"]]}

    @staticmethod
    def backward(ctx, grads):
        return {"a": grads["first"] * ctx.factor, "b": [g * ctx.factor for g in grads["rest"]]}, None


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_pytreeify(device):
    a, b = (torch.ones(2, device=device, requires_grad=True) for _ in range(2))
    result = Scale.apply({"a": a, "b": [b]}, 3.0)
    assert result["first"].tolist() == [3, 3]
    (result["first"].sum() + 2 * result["rest"][0].sum()).backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([3, 3], [6, 6])


# ---- the profiler ---------------------------------------------------------------------------------------------------


def test_traces(tmp_path):
    with pytest.raises(RuntimeError, match="No profile started"):
        xp.stop_trace()
    xp.start_trace(tmp_path / "one")
    with pytest.raises(RuntimeError, match="Profile has already been started"):
        xp.start_trace(tmp_path / "two")
    met.clear_all()

    @xp.trace_me("a_function")
    def function(x):
        return x + 1

    with xp.StepTrace("a_step", step_num=3):
        x = function(torch.ones(3, device="xla"))
        with xp.Trace("a_part"):
            x = x * 2
    assert met.counter_value("MarkStep") == 1
    with xp.StepTrace("another_step"):
        torch_xla.sync()
        xp.set_tracer_marked_step(True)
    assert met.counter_value("MarkStep") == 2
    assert xp.get_tracer_marked_step()
    xp.stop_trace()
    [plane] = (tmp_path / "one").glob("plugins/profile/*/*.xplane.pb")
    for name in (b"a_function", b"a_step", b"a_part"):
        assert name in plane.read_bytes()
    assert x.tolist() == [4, 4, 4]


def test_a_server_of_this_process_can_be_asked_for_a_trace(tmp_path):
    [port] = xu.get_free_tcp_ports()
    with pytest.raises(ValueError, match="is no profiler server of this process"):
        xp.trace(f"localhost:{port}", str(tmp_path))
    server = xp.start_server(port)
    try:
        assert "record" in vars(RECORDER)  # a trace, which shows what it does, may be asked for at any time
        xp.trace(f"localhost:{port}", str(tmp_path), duration_ms=10)
        assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
        assert server is not None
        assert "record" in vars(RECORDER)
    finally:
        xp._served_ports.clear()
        SPANS.remove()


# ---- helpers --------------------------------------------------------------------------------------------------------


def test_progress_lines(capsys):
    test_utils.print_training_update("xla:0", 3, 0.5, 10.0, 20.0, epoch=1)
    test_utils.print_test_update("xla:0", 98.7, epoch=2)
    first, second = capsys.readouterr().out.splitlines()
    time = r"\d\d:\d\d:\d\d"
    assert re.fullmatch(
        rf"\| Training Device=xla:0/0 Epoch=1 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=20.00 Time={time}", first
    )
    assert re.fullmatch(rf"\| Test Device=xla:0/0 Epoch=2 Accuracy=98.70 Time={time}", second)


def test_summaries():
    class Writer:
        def __init__(self):
            self.scalars = {}

        def add_scalar(self, name, value, step):
            self.scalars[name] = value, step

    torch_xla.sync()
    writer = Writer()
    test_utils.write_to_summary(writer, 5, {"a": 1.0}, write_xla_metrics=True)
    assert writer.scalars["a"] == (1.0, 5)
    assert writer.scalars["counters/MarkStep"][0] >= 1
    test_utils.write_to_summary(None, 5, {"a": 1.0})
    test_utils.close_summary_writer(test_utils.get_summary_writer(None))


def test_a_machine_without_tpus(monkeypatch):
    monkeypatch.setattr(tpu, "_chips", list)
    assert tpu.num_available_chips() == tpu.num_available_devices() == 0
    with pytest.raises(RuntimeError, match="no TPU"):
        tpu.version()
    monkeypatch.setattr(tpu, "_chips", lambda: [(3, 2)] * 4)
    assert (tpu.num_available_devices(), tpu.version(), tpu.num_logical_cores_per_chip()) == (8, 3, 2)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    assert tpu.get_tpu_env()["TYPE"] == tpu.get_tpu_type() == "v5litepod-8"
    monkeypatch.delenv("CLOUD_TPU_TASK_ID", raising=False)
    assert tpu.task_id() is None


def test_what_jax_needs_no_workaround_for():
    jax_workarounds.jax_import_guard()
    with jax_workarounds.jax_env_context():
        assert jax_workarounds.requires_jax(lambda x: x + 1)(2) == 3
    assert jax_workarounds.maybe_get_jax().__name__ == "jax"
    struct = custom_kernel.to_jax_shape_dtype_struct(torch.ones(2, 3, dtype=torch.bfloat16))
    assert (struct.shape, str(struct.dtype)) == ((2, 3), "bfloat16")
