"""The functions of `xla_model`, `runtime`, `functions` and launching, in a world of one process on one device."""

from __future__ import annotations

import collections
import subprocess
import sys
import threading

import pytest
import torch

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla import _XLAC

DEVICE = torch.device("xla:0")


def arange(n=4):
    return torch.arange(float(n), device="xla")


# ---- collectives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce_type", ["sum", "mul", "and", "or", "min", "max"])
def test_all_reduce_gives_a_copy_of_a_tensor_and_the_list_itself(reduce_type):
    x = arange()
    result = xm.all_reduce(reduce_type, x, scale=0.5)
    assert result is not x
    assert result.tolist() == x.tolist() == [0, 1, 2, 3]
    result.zero_()
    assert x.tolist() == [0, 1, 2, 3]
    tensors = [x]
    assert xm.all_reduce(reduce_type, tensors, 0.5) is tensors
    assert x.tolist() == [0, 1, 2, 3]


def test_always_all_reduce_scales(monkeypatch):
    monkeypatch.setenv("XLA_ALWAYS_ALLREDUCE", "true")
    x = arange()
    assert xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5).tolist() == [0, 0.5, 1, 1.5]
    xm.all_reduce(xm.REDUCE_SUM, [x], scale=0.5, groups=[[0]])
    assert x.tolist() == [0, 0.5, 1, 1.5]


def test_all_gather():
    x = arange()
    assert xm.all_gather(x).tolist() == xm.all_gather(x, dim=-1, groups=[[0]]).tolist() == [0, 1, 2, 3]
    output = torch.zeros(4, device="xla")
    assert xm.all_gather(x, output=output) is output
    assert output.tolist() == [0, 1, 2, 3]
    assert [t.tolist() for t in xm.all_gather([x, x + 1], pin_layout=False)] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    with pytest.raises(RuntimeError, match="pin_layout=True is not yet supported"):
        xm.all_gather([x])
    for wrong in (3, [3], (x,)):
        with pytest.raises(TypeError, match="`value` needs to be a Tensor or a list of Tensors, but given"):
            xm.all_gather(wrong)
    with pytest.raises(TypeError, match="`output` needs to be a tensor"):
        xm.all_gather(x, output=[output])


def test_reduce_scatter():
    x = arange()
    assert xm.reduce_scatter(xm.REDUCE_SUM, x, 0.5, 0, 1).tolist() == [0, 0.5, 1, 1.5]
    assert xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 2).tolist() == [0, 1]
    assert [t.tolist() for t in xm.reduce_scatter(xm.REDUCE_SUM, [x, x], 2.0, 0, 1)] == [[0, 2, 4, 6]] * 2
    with pytest.raises(ValueError, match="dim 0 of size 4 does not divide into 3"):
        xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 3)


def test_other_collectives():
    x = arange()
    assert xm.all_to_all(x.view(2, 2), 0, 1, 1).tolist() == [[0, 1], [2, 3]]
    assert xm.collective_permute(x, [[0, 0]]).tolist() == [0, 1, 2, 3]
    assert xm.collective_permute(x, []).tolist() == [0, 0, 0, 0]
    bad = torch.tensor([float("nan"), float("inf")], device="xla")
    xm.collective_broadcast([bad])
    assert str(bad.tolist()) == "[nan, inf]"
    model = torch.nn.BatchNorm1d(2).to("xla")
    xm.broadcast_master_param(model)
    assert model.running_var.tolist() == [1, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: xm.all_reduce("sum", x, groups=[[0, 1]]),
        lambda x: xm.all_gather(x, groups=[[1]]),
        lambda x: xm.all_to_all(x, 0, 0, 2),
        lambda x: xm.collective_permute(x, [[0, 1]]),
        lambda x: xm.collective_broadcast([x], root_ordinal=1),
        lambda x: xm.rendezvous("tag", b"", [0, 1]),
        lambda x: xm.all_reduce("average", x),
    ],
)
def test_processes_that_do_not_exist_are_errors(call):
    with pytest.raises(ValueError, match=r"exist|none of|number of processes"):
        call(arange())


def test_rendezvous_and_mesh_reduce():
    assert xm.rendezvous("tag") == [b""]
    assert xm.rendezvous("tag", b"payload", [0]) == xm.xla_rendezvous(b"payload") == [b"payload"]
    with pytest.raises(TypeError, match="`payload` must be bytes, not <class 'str'>"):
        xm.rendezvous("tag", "payload")
    assert xm.mesh_reduce("tag", 3, sum) == 3
    reduced = xm.mesh_reduce("tag", arange(), torch.cat)
    assert (reduced.device.type, reduced.tolist()) == ("cpu", [0, 1, 2, 3])
    data = {"a": [arange()], "b": _Own(5), "c": arange().cpu().numpy()[1]}
    [copy] = xm.mesh_reduce("tag", data, lambda parts: parts)
    assert (copy["a"][0].device.type, copy["b"].number, copy["c"]) == ("cpu", 5, 1.0)
    assert copy["b"] is not data["b"]
    assert data["a"][0].is_xla


class _Own:
    def __init__(self, number):
        self.number = number


def test_do_on_ordinals():
    assert xm.do_on_ordinals(lambda t, n: (t.device.type, n), (arange(), 2)) == ("cpu", 2)
    assert xm.do_on_ordinals(lambda: 1, ordinals=(1,)) is None


def test_differentiable_collectives():
    for function in (
        lambda x: xf.all_gather(x),
        lambda x: xf.all_reduce("sum", x, scale=0.5),
        xf.AllReduceSumLayer.apply,
    ):
        x = arange().requires_grad_()
        (function(x) * arange()).sum().backward()
        assert x.grad.tolist() == [0, 1, 2, 3]
    w, x = torch.randn(3, 4), torch.randn(4, 6)
    for split in (1, 3):
        torch.testing.assert_close(xf.distributed_mm(w.to("xla"), x.to("xla"), split).cpu(), w @ x)
    with pytest.raises(ValueError, match="split=4 does not divide the 6 columns"):
        xf.distributed_mm(w, x, 4)


def test_sync_batch_norm_is_batch_norm():
    ours, theirs, x = xf.SyncBatchNorm(3), torch.nn.BatchNorm1d(3), torch.randn(5, 3)
    ours = ours.to("xla")
    for _ in range(2):
        torch.testing.assert_close(ours(x.to("xla")).cpu(), theirs(x))
    torch.testing.assert_close(ours.running_var.cpu(), theirs.running_var)
    torch.testing.assert_close(ours.eval()(x.to("xla")).cpu(), theirs.eval()(x))


# ---- training -------------------------------------------------------------------------------------------------------


def test_optimizer_step_returns_what_the_optimizer_does_and_passes_arguments():
    w = torch.nn.Parameter(arange())
    optimizer = torch.optim.SGD([w], lr=1.0)

    def closure():
        optimizer.zero_grad()
        loss = w.sum()
        loss.backward()
        return loss

    met.clear_all()
    assert xm.optimizer_step(optimizer, optimizer_args={"closure": closure}).item() == 6
    assert met.counter_value("MarkStep") is None
    assert w.tolist() == [-1, 0, 1, 2]
    assert [g.tolist() for g in xm._fetch_gradients(optimizer)] == [[1, 1, 1, 1]]
    xm.optimizer_step(optimizer, barrier=True)
    assert met.counter_value("MarkStep") == 1
    xm.reduce_gradients(optimizer)
    assert w.grad.tolist() == [1, 1, 1, 1]


def test_step_closures():
    seen = []
    x = arange()
    xm.add_step_closure(lambda t: seen.append(t.sum().item()), args=(x,))
    assert seen == []
    torch_xla.sync()
    torch_xla.sync()
    assert seen == [6]
    done = threading.Event()
    xm.add_step_closure(done.set, run_async=True)
    xm._run_step_closures()
    assert done.wait(10)


def test_rate_tracker(monkeypatch):
    import torch_xla._src.rate as rate

    now = [100.0]
    monkeypatch.setattr(rate.time, "time", lambda: now[0])
    tracker = xm.RateTracker(smooth_factor=0.25)
    found = []
    for seconds, count in ((1, 10), (1, 20), (2, 10)):
        now[0] += seconds
        tracker.add(count)
        found.append((tracker.rate(), tracker.global_rate()))
    assert found == [(10.0, 10.0), (17.5, 15.0), (8.125, 10.0)]
    assert tracker.rate() == 8.125  # no time has passed


def test_optimization_barrier():
    x = arange()
    y = x * 2
    view = y[1:]
    xm.optimization_barrier_([y, view])
    assert xm.get_stablehlo([y]).count("optimization_barrier") == 1
    y.add_(1)
    assert (y.tolist(), view.tolist()) == ([1, 3, 5, 7], [3, 5, 7])
    w = arange().requires_grad_()
    z = w * 3
    xm.optimization_barrier_([z])
    z.sum().backward()
    assert w.grad.tolist() == [3, 3, 3, 3]
    xm.optimization_barrier_([])


# ---- random state ---------------------------------------------------------------------------------------------------


def test_random_state():
    xm.set_rng_state(42)
    assert xm.get_rng_state() == 42
    for _ in range(20):
        first = torch.rand(2, device="xla").tolist()
        state = xm.get_rng_state()
        assert torch.tensor(state).item() == state  # fits an int64
    xm.set_rng_state(state)
    again = torch.rand(2, device="xla").tolist()
    xm.set_rng_state(state)
    assert torch.rand(2, device="xla").tolist() == again != first
    xm.set_rng_state(7)
    with xm.fork_rng():
        torch.rand(1, device="xla")
    assert xm.get_rng_state() == 7
    with xm.fork_rng(enabled=False):
        torch.rand(1, device="xla")
    assert xm.get_rng_state() != 7
    torch_xla.manual_seed(5)
    assert xm.get_rng_state() == 5


# ---- moving and saving ----------------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "x y")


class Batch(torch_xla.xu.DataWrapper):
    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor

    def get_tensors(self):
        return [self.tensor]

    def from_tensors(self, tensors):
        return Batch(*tensors)


def test_send_cpu_data_to_device():
    one = torch.ones(2)
    assert [t.device for t in xm.send_cpu_data_to_device(one, DEVICE)] == [DEVICE]
    data = {
        "a": one,
        "b": [one, {"c": (one, 3)}],
        "d": Pair(one, "text"),
        "e": Batch(one),
        "f": collections.OrderedDict(g=one),
    }
    moved = xm.send_cpu_data_to_device(data, "xla")
    assert data["a"] is data["b"][0] is one  # what was given stays
    tensors = [moved["a"], moved["b"][0], moved["b"][1]["c"][0], moved["d"].x, moved["e"].tensor, moved["f"]["g"]]
    assert all(t is tensors[0] for t in tensors)  # one tensor is moved once
    assert tensors[0].device == DEVICE
    assert (moved["b"][1]["c"][1], moved["d"].y, type(moved["f"])) == (3, "text", collections.OrderedDict)
    with pytest.raises(NotImplementedError, match="sharding over several devices"):
        xm.send_cpu_data_to_device(one, DEVICE, input_sharding=object())


def test_objects_of_other_classes_are_moved_in_place():
    own = _Own([torch.ones(1), {"k": torch.ones(2)}])
    own.sizes = (1, 2)
    own.me = own
    assert xm.send_cpu_data_to_device([own], DEVICE)[0] is own
    assert own.number[0].device == own.number[1]["k"].device == DEVICE
    assert own.sizes == (1, 2)


def test_to_cpu_keeps_sharing_and_the_original():
    x = arange()
    data = [x, {"a": x}, torch.ones(1), 3]
    converted = xm._maybe_convert_to_cpu(data)
    assert converted[0] is converted[1]["a"]
    assert converted[0].device.type == "cpu"
    assert converted[2] is data[2]
    assert data[0].is_xla
    assert xm._maybe_convert_to_cpu(data, convert=False) is data


def test_save(tmp_path):
    model = torch.nn.Linear(2, 2).to("xla")
    xm.save({"model": model.state_dict(), "step": 3}, tmp_path / "file", master_only=True, global_master=True)
    loaded = torch.load(tmp_path / "file")
    assert loaded["step"] == 3
    assert loaded["model"]["weight"].device.type == "cpu"
    assert loaded["model"]["weight"].tolist() == model.weight.tolist()


def test_arena():
    arena = xm.ToXlaTensorArena(lambda tensors: [t * 2 for t in tensors], lambda t: t.device.type == "cpu")
    x = torch.ones(1)
    assert arena.transform({"a": [x, x], "b": arange()})["a"][0].item() == 2
    assert arena.transform([]) == []


def test_unlazy_and_views():
    y = arange() + 1
    xm.unlazy([y])
    assert not _XLAC._check_tensor_need_materialization([y])[0]
    xm.check_view_sharing([y, y[1:]])


# ---- devices --------------------------------------------------------------------------------------------------------


def test_names_of_devices():
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xm.get_xla_supported_devices(max_devices=0) == []
    assert xm.xla_real_devices() == xm.xla_real_devices(["xla:0"]) == torch_xla.real_devices() == ["CPU:0"]
    assert xm.xla_replication_devices([DEVICE]) == ["CPU:0"]
    with pytest.raises(RuntimeError, match=r"Cannot replicate if number of devices \(0\) is different from 1"):
        xm.xla_replication_devices([])
    assert (xm.xla_device_hw(DEVICE), xm.xla_device_hw("cpu"), xm.xla_device_kind()) == ("CPU", "CPU", "cpu")
    for devices in ([], None, ["xla:0"], [DEVICE]):
        xm.set_replication(DEVICE, devices)
    assert torch_xla.device(0) == DEVICE
    with pytest.raises(IndexError, match=r"Device index 10 out of range in \['xla:0'\]"):
        torch_xla.device(10)


def test_counts_and_ordinals():
    counts = (xr.world_size, xr.local_process_count, xr.local_device_count, xr.addressable_device_count)
    counts += (xr.global_device_count, xr.process_count, xr.global_runtime_device_count)
    assert [count() for count in (*counts, xr.addressable_runtime_device_count)] == [1] * 8
    ordinals = (xr.global_ordinal, xr.local_ordinal, xr.process_index, xr.host_index, xm.get_local_ordinal)
    assert [ordinal() for ordinal in ordinals] == [0] * 5
    assert xm.is_master_ordinal()
    assert xm.is_master_ordinal(local=False)
    assert xr.runtime_device_attributes("CPU:0") == xr.runtime_device_attributes("xla:0") == {"name": "CPU:0"}
    assert xr.global_runtime_device_attributes() == [{"name": "CPU:0"}]
    with pytest.raises(ValueError, match="no device CPU:7"):
        xr.runtime_device_attributes("CPU:7")
    with pytest.raises(RuntimeError, match="IP discovery not supported for device: CPU"):
        xr.get_master_ip()
    assert xr.is_bf16_supported()
    assert not xr.is_spmd()
    arange().cpu()
    assert xr.get_num_cached_compilation_graph() > 0
    with pytest.raises(RuntimeError, match="already runs on CPU"):
        xr.set_device_type("TPU")
    xr.set_device_type("CPU")
    with pytest.raises(AssertionError, match="already been initialized"):
        xr.initialize_cache("/nonexistent")


def test_spmd_that_is_not_there_is_no_silent_replication(monkeypatch):
    monkeypatch.setenv("XLA_USE_SPMD", "1")
    with pytest.raises(NotImplementedError, match="XLA_USE_SPMD is set"):
        xr.is_spmd()


def test_initialize_cache_keeps_programs_where_it_is_told(tmp_path):
    code = """
import sys, torch, torch_xla, torch_xla.runtime as xr, torch_xla.debug.metrics as met
xr.initialize_cache(sys.argv[1], readonly=sys.argv[2] == "True")
print((torch.ones(3, device="xla") + 1).tolist(), met.counter_value("PersistentCacheHit"))
"""

    def run(readonly):
        command = [sys.executable, "-c", code, str(tmp_path), str(readonly)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run(True) == "[2.0, 2.0, 2.0] None\n"
    assert list(tmp_path.glob("*.program")) == []
    assert run(False) == "[2.0, 2.0, 2.0] None\n"
    files = len(list(tmp_path.glob("*.program")))
    assert run(True) == f"[2.0, 2.0, 2.0] {files}\n"
    assert files


def test_sync_wait_is_a_flag_like_any_other(monkeypatch):
    monkeypatch.setenv("XLA_SYNC_WAIT", "true")
    torch_xla.sync()


def test_master_print(capsys):
    xm.master_print("a", 1, flush=True)
    xm.master_print("b", fd=sys.stderr)
    assert tuple(capsys.readouterr()) == ("a 1\n", "b\n")


# ---- tensors' numbers -----------------------------------------------------------------------------------------------


def test_tensor_ids_are_those_of_tensors():
    x, y = arange(), arange()
    number = _XLAC._xla_get_tensor_id
    assert number(x) == number(x.detach()) == number(torch.nn.Parameter(x))
    assert len({number(x), number(y), number(x[1:]), number(x.view(2, 2))}) == 4
    linear = torch.nn.Linear(2, 2).to("xla")
    tied = torch.nn.Linear(2, 2).to("xla")
    tied.weight = linear.weight
    assert number(linear.weight) == number(tied.weight) != number(linear.bias)
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        number(torch.ones(1))


# ---- launching ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [torch_xla.launch, xmp.spawn, torch_xla._internal.pjrt.spawn])
def test_one_device_is_this_process(start):
    seen = []
    assert start(lambda index, word: seen.append((index, word)), args=("hello",)) is None
    assert seen == [(0, "hello")]

    def fail(index):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        start(fail)


def test_how_many_processes(monkeypatch):
    xmp.spawn(lambda index: None, nprocs=1, join=False, daemon=True, start_method="fork")
    with pytest.raises(ValueError, match=r"Unsupported nprocs \(4\)"):
        xmp.spawn(lambda index: None, nprocs=4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(NotImplementedError, match="WORLD_SIZE=2: several processes"):
        torch_xla.launch(lambda index: None)


def test_several_devices_are_not_silently_one():
    code = """
import torch_xla
try:
    torch_xla.launch(print)
except NotImplementedError as error:
    print(error)
torch_xla.launch(print, debug_single_process=True)
"""
    command = ["env", "PJRT_DEVICE=CPU", "CPU_NUM_DEVICES=4", sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.startswith("there are 4 devices")
    assert out.endswith("\n0\n")


def test_helpers_of_launching():
    model = torch.nn.Linear(1, 1)
    assert xmp.MpModelWrapper(model).to(DEVICE) is model
    assert model.weight.is_xla
    assert xmp.MpSerialExecutor().run(lambda: 3) == 3


def test_memory_of_a_device_that_is_not_there():
    assert xm.get_memory_info("xla:0").keys() == xm.get_memory_info().keys() == xm.get_memory_info(0).keys()
    with pytest.raises(ValueError, match="not that of cpu"):
        xm.get_memory_info("cpu")
    with pytest.raises(RuntimeError, match="there is no device xla:7"):
        xm.get_memory_info("xla:7")
