"""What is saved on device xla is a file of CPU tensors, and what is loaded can go straight to xla."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from tests.same import assert_same


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(4))


def _trained():
    model = Tied().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model.second(model.first(torch.ones(2, 4, device="xla"))).sum().backward()
    optimizer.step()
    return model, optimizer


def _everything():
    """(name, what is saved) of each kind of thing that people save."""
    model, optimizer = _trained()
    base = torch.arange(6.0, device="xla").reshape(2, 3)
    yield "tensor", torch.ones(3, device="xla")
    yield "parameter", nn.Parameter(torch.ones(3, device="xla"))
    yield "requires grad", torch.ones(3, device="xla", requires_grad=True)
    yield "view", base.t()[1:]
    yield "bfloat16", torch.ones(3, device="xla", dtype=torch.bfloat16)
    yield "int64 scalar", torch.tensor(7, device="xla")
    yield "empty", torch.empty(0, 2, device="xla")
    yield "state dict", model.state_dict()
    yield "optimizer", optimizer.state_dict()
    yield (
        "checkpoint",
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "losses": [base.sum()]},
    )


def to_host(x):
    return torch.utils._pytree.tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def saved(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_files_hold_cpu_tensors_and_load_anywhere(options):
    for name, thing in _everything():
        data = saved(thing, **options)
        assert b"xla" not in data, name
        loaded = torch.load(io.BytesIO(data), weights_only=True)
        leaves = [t for t in torch.utils._pytree.tree_leaves(loaded) if isinstance(t, torch.Tensor)]
        assert leaves, name
        assert all(t.device.type == "cpu" for t in leaves), name
        assert_same(to_host(loaded), to_host(thing))
        for location in ("xla", "xla:0", torch.device("xla")):
            moved = torch.load(io.BytesIO(data), map_location=location, weights_only=True)
            assert all(t.is_xla for t in torch.utils._pytree.tree_leaves(moved) if isinstance(t, torch.Tensor)), name
        assert_same(to_host(moved), to_host(thing))
    assert isinstance(
        torch.load(io.BytesIO(saved(nn.Parameter(torch.ones(1, device="xla")))), map_location="xla"), nn.Parameter
    )


def test_saving_leaves_the_tensors_where_they_are():
    model, optimizer = _trained()
    saved((model.state_dict(), optimizer.state_dict()))
    assert all(p.is_xla for p in model.parameters())
    assert all(s["exp_avg"].is_xla for s in optimizer.state.values())


def test_ties_survive():
    model, _ = _trained()
    state = torch.load(io.BytesIO(saved({"a": model.first.weight, "b": model.first.weight})))
    assert state["a"] is state["b"]
    for location in ("cpu", "xla"):
        whole = torch.load(io.BytesIO(saved(model)), map_location=location, weights_only=False)
        assert whole.first.weight is whole.second.weight
        assert whole.first.weight.device.type == location
        assert isinstance(whole.first.weight, nn.Parameter)


def test_a_whole_module_saved_on_the_cpu_loads_on_xla():
    whole = torch.load(io.BytesIO(saved(Tied())), map_location="xla", weights_only=False)
    assert whole.scale.is_xla
    assert whole.first(torch.ones(1, 4, device="xla")).shape == (1, 4)


def test_training_goes_on_from_a_file():
    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            model.second(model.first(torch.ones(2, 4, device="xla"))).pow(2).sum().backward()
            optimizer.step()

    model, optimizer = _trained()
    data = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    steps(model, optimizer, 2)
    for location in ("cpu", "xla"):
        fresh = Tied().to("xla")
        fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.5)
        state = torch.load(io.BytesIO(data), map_location=location)
        fresh.load_state_dict(state["model"])
        fresh_optimizer.load_state_dict(state["optimizer"])
        assert fresh_optimizer.param_groups[0]["lr"] == 0.01
        steps(fresh, fresh_optimizer, 2)
        assert_same(to_host(dict(fresh.state_dict())), to_host(dict(model.state_dict())), 1e-6)


_STOCK = """
import sys, torch
assert "torch_xla" not in sys.modules and "jax" not in sys.modules
state = torch.load(sys.argv[1], weights_only=True)
assert state["step"] == 3 and state["model"]["first.weight"].device.type == "cpu"
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW([model.weight, model.bias], lr=1.0)
model.load_state_dict({"weight": state["model"]["first.weight"], "bias": state["model"]["first.bias"]})
from safetensors.torch import load_file
assert load_file(sys.argv[2])["first.weight"].shape == (4, 4)
print("loaded", float(state["model"]["first.weight"].sum()))
"""


def test_files_load_with_torch_alone(tmp_path):
    model, optimizer = _trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, tmp_path / "file.pt")
    save_model(model, str(tmp_path / "file.safetensors"))
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    files = [str(tmp_path / "file.pt"), str(tmp_path / "file.safetensors")]
    # -c runs in the folder of the files, so that the checkout is not importable by accident.
    done = subprocess.run(
        [sys.executable, "-c", _STOCK, *files],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loaded", str(float(model.first.weight.detach().cpu().sum()))]


def test_memory_mapped_loading(tmp_path):
    torch.save(_trained()[0].state_dict(), tmp_path / "file.pt")
    for location in ("cpu", "xla"):
        state = torch.load(tmp_path / "file.pt", mmap=True, map_location=location)
        assert state["scale"].device.type == location
        assert state["scale"].tolist() == [1, 1, 1, 1]


def test_safetensors(tmp_path):
    path = str(tmp_path / "file.safetensors")
    tensors = {"a": torch.arange(3.0, device="xla"), "b": torch.ones(2, 2, device="xla", dtype=torch.bfloat16)}
    save_file(tensors, path)
    for device in ("cpu", "xla"):
        loaded = load_file(path, device=device)
        assert loaded["a"].device.type == device
        assert_same({k: v.cpu() for k, v in loaded.items()}, {k: v.cpu() for k, v in tensors.items()})
    model, _ = _trained()
    save_model(model, path)
    for device in ("cpu", "xla"):
        fresh = Tied().to(device)
        load_model(fresh, path)
        assert fresh.first.weight is fresh.second.weight
        assert fresh.first.weight.device.type == device
        assert torch.equal(fresh.first.weight.cpu(), model.first.weight.cpu())
    with open(path, "rb") as file:
        assert b"xla" not in file.read()


def test_pickle_and_deepcopy_keep_the_device():
    x = torch.arange(3.0, device="xla", requires_grad=True)
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert twin.is_xla
        assert twin.requires_grad
        assert twin is not x
        assert torch.equal(twin, x)
    model = pickle.loads(pickle.dumps(_trained()[0]))
    assert model.first.weight is model.second.weight
    assert model.first.weight.is_xla


def test_queue_to_another_process():
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    queue.put(torch.ones(2).numpy())  # a host copy is what travels cheaply
    assert queue.get().tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch's own, in 2.9
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # what no_dist means
def test_distributed_checkpoint_in_one_process(tmp_path):
    import torch.distributed.checkpoint as dcp

    model, _ = _trained()
    dcp.save({"model": model.state_dict(), "step": 5}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for device in ("cpu", "xla"):
        torch.manual_seed(5)
        fresh = Tied().to(device)
        state = {"model": fresh.state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
        fresh.load_state_dict(state["model"])
        assert state["step"] == 5
        assert fresh.first.weight.device.type == device
        assert torch.equal(fresh.first.weight.cpu(), model.first.weight.cpu())
    assert all(b"xla" not in path.read_bytes() for path in (tmp_path / "dcp").iterdir())


@pytest.mark.parametrize("target", ["xla", "xla:0"])
def test_a_location_may_be_mapped_to_xla(target):
    base = torch.arange(6.0)
    data = saved({"whole": base, "part": base[2:4], "bit": torch.tensor([1 + 2j, 3 - 4j]).conj().imag})
    loaded = torch.load(io.BytesIO(data), map_location={"cpu": target, "cuda:0": "cpu"})
    assert {x.device.type for x in loaded.values()} == {"xla"}
    assert (loaded["whole"].tolist(), loaded["bit"].tolist()) == ([0, 1, 2, 3, 4, 5], [-2, 4])
    loaded["whole"].zero_()
    assert loaded["part"].tolist() == [0, 0]
    assert torch.load(io.BytesIO(data), map_location={"cuda:0": target})["part"].device.type == "cpu"


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize(
    "part",
    [lambda x: x.real, lambda x: x.imag, lambda x: x.conj(), lambda x: x.conj().imag],
    ids=["real", "imag", "conj", "neg"],
)
def test_parts_and_conjugates_of_complex_tensors(part, device):
    x = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    file = io.BytesIO()
    torch.save(part(x.to(device)), file)
    file.seek(0)
    loaded = torch.load(file, map_location="xla")
    assert loaded.is_xla
    assert loaded.tolist() == part(x).tolist()
