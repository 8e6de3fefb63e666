"""Checkpoints go straight to the device: bit for bit, one tensor at a time, and independent of the file afterwards."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import torch_xla
from torch_xla.utils import load_checkpoint

FLOAT8 = [getattr(torch, n) for n in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, n)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


def tensors(dtypes=(*DTYPES, *FLOAT8)):
    torch.manual_seed(0)
    made = {str(d): (torch.randn(3, 5) * 9).to(d) for d in dtypes}
    made |= {
        "scalar": torch.tensor(-0.0),
        "empty": torch.empty(0, 4),
        "nan": torch.tensor([float("nan"), float("inf")]),
    }
    return made


def bits(x):
    return x.cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def assert_bits(ours, theirs):
    assert list(ours) == list(theirs)
    for name, x in ours.items():
        assert x.is_xla, name
        assert (x.dtype, x.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert bits(x) == bits(theirs[name]), name


def through_load_file(given, path):
    save_file(given, path)
    return load_file(path, device="xla")


def through_safe_open(given, path):
    save_file(given, path)
    with safe_open(path, "pt", device="xla") as file:
        return {name: file.get_tensor(name) for name in given}


def through_mmap(given, path):
    torch.save(given, path)
    return torch.load(path, mmap=True, map_location="xla")


@pytest.mark.parametrize("through", [through_load_file, through_safe_open, through_mmap])
def test_tensors_arrive_bit_for_bit_and_do_not_depend_on_the_file(through, tmp_path):
    given = {name: x.clone() for name, x in tensors().items()} | {"large": torch.randn(300, 200)}
    path = tmp_path / "given"
    loaded = through(given, path)
    loaded = {name: loaded[name] for name in given}
    path.write_bytes(bytes(path.stat().st_size))  # the same file: what is mapped would change
    assert_bits(loaded, given)


def test_strided_and_shared_tensors_of_a_mapped_file(tmp_path):
    whole = torch.arange(24.0).reshape(4, 6)
    torch.save({"t": whole.t(), "row": whole[1], "step": whole[:, ::2], "whole": whole}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", mmap=True, map_location="xla")
    assert torch.equal(loaded["t"].cpu(), whole.t())
    assert torch.equal(loaded["step"].cpu(), whole[:, ::2])
    loaded["row"].fill_(-1)
    assert loaded["whole"][1].tolist() == [-1.0] * 6


def test_pages_of_a_private_mapping_that_were_written_to_are_kept(tmp_path):
    data = torch.arange(1 << 16, dtype=torch.float32)  # 64 pages
    data.numpy().tofile(tmp_path / "data")
    mapped = torch.from_file(str(tmp_path / "data"), shared=False, size=data.numel())
    mapped[30_000:30_010] = -1
    uploaded = mapped.to("xla")
    assert mapped[30_000:30_010].tolist() == [-1] * 10
    assert torch.equal(uploaded.cpu(), mapped)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are a file's")
def test_unchanged_pages_leave_the_process(tmp_path):
    (tmp_path / "data").write_bytes(bytes(64 * mmap.PAGESIZE))
    mapped = torch.from_file(str(tmp_path / "data"), shared=False, size=16 * mmap.PAGESIZE)
    mapped.sum()
    assert resident(mapped) == 64
    mapped.to("xla")
    assert resident(mapped) == 0
    assert mapped.sum() == 0


def resident(tensor):
    """Pages of the tensor that are in this process."""
    from torch_xla._src.runtime import mapped_files

    entries = mapped_files._entries(tensor.data_ptr() // mmap.PAGESIZE, tensor.nbytes // mmap.PAGESIZE)
    return int(((entries & mapped_files._PRESENT) != 0).sum())


# ---- models ---------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, tied=True, counted=False):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if counted:
            self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


def saved(tmp_path, name="model.safetensors", tied=True):
    torch.manual_seed(1)
    model = Model(tied)
    state = model.state_dict()
    if name.endswith(".safetensors"):
        save_file({n: x for n, x in state.items() if not (tied and n == "head.weight")}, tmp_path / name)
    else:
        torch.save(state, tmp_path / name)
    return model, tmp_path / name


def meta(**options):
    with torch.device("meta"):
        return Model(**options)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
@pytest.mark.parametrize("start", [meta, Model, lambda: Model().to("xla")], ids=["meta", "cpu", "xla"])
def test_a_model_is_loaded_from_wherever_it_starts(name, start, tmp_path):
    theirs, path = saved(tmp_path, name)
    ours = start()
    before = list(ours.parameters())
    result = load_checkpoint(ours, path)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert ours.head.weight is ours.embed.weight
    assert_bits(ours.state_dict(), theirs.state_dict())
    assert all(p.requires_grad and p.is_leaf for p in ours.parameters())
    if before[0].is_xla:
        assert all(a is b for a, b in zip(before, ours.parameters(), strict=True))
    x = torch.arange(6)
    theirs(x).sum().backward()
    ours(x.to("xla")).sum().backward()
    torch.testing.assert_close(ours.head.weight.grad.cpu(), theirs.head.weight.grad, rtol=1e-4, atol=1e-5)


def test_names_that_the_model_does_not_tie_stay_independent(tmp_path):
    _, path = saved(tmp_path, "tied.pt")
    ours = meta(tied=False)
    load_checkpoint(ours, path)
    with torch.no_grad():
        ours.head.weight.zero_()
    assert ours.embed.weight.abs().sum() > 0


@pytest.mark.parametrize("start", [meta, lambda: Model().to("xla")], ids=["meta", "xla"])
@pytest.mark.parametrize(
    ("dtype", "found"), [(None, torch.float32), (torch.bfloat16, torch.bfloat16), ("auto", torch.float16)]
)
def test_dtypes(start, dtype, found, tmp_path):
    theirs, _ = saved(tmp_path)
    save_file({n: x.clone() for n, x in theirs.half().state_dict().items()}, tmp_path / "half.safetensors")
    ours = start()
    load_checkpoint(ours, tmp_path / "half.safetensors", dtype=dtype)
    assert {p.dtype for p in ours.parameters()} == {found}
    assert ours.norm.num_batches_tracked.dtype is torch.int64
    assert bits(ours.embed.weight) == bits(theirs.embed.weight.to(found))


def test_shards_by_index_by_directory_and_by_list(tmp_path):
    theirs, _ = saved(tmp_path, tied=False, name="whole.pt")
    state = theirs.state_dict()
    halves = {"a.safetensors": dict(list(state.items())[:2]), "b.safetensors": dict(list(state.items())[2:])}
    for file, part in halves.items():
        save_file(part, tmp_path / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    paths = [tmp_path / file for file in halves]
    for path in (tmp_path, str(tmp_path / "model.safetensors.index.json"), paths):
        ours = meta(tied=False)
        load_checkpoint(ours, path)
        assert_bits(ours.state_dict(), state)


def test_old_files_and_training_checkpoints(tmp_path):
    theirs, _ = saved(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"step": 3, "state_dict": theirs.state_dict()}, tmp_path / "run.pt")
    for name in ("old.pt", "run.pt"):
        ours = meta()
        load_checkpoint(ours, tmp_path / name)
        assert_bits(ours.state_dict(), theirs.state_dict())


def test_missing_and_unexpected_names_are_as_in_load_state_dict(tmp_path):
    save_file({"embed.weight": torch.ones(6, 4), "extra": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"extra"'):
        load_checkpoint(Model(), tmp_path / "x.safetensors")
    ours = Model()
    result = load_checkpoint(ours, tmp_path / "x.safetensors", strict=False)
    assert result.unexpected_keys == ["extra"]
    assert "norm.weight" in result.missing_keys
    assert all(t.is_xla for t in ours.state_dict().values())
    assert ours.head.weight is ours.embed.weight
    assert ours.embed.weight.sum() == 24


def test_buffers_that_no_checkpoint_holds(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(RuntimeError, match="count: on device meta"):
        load_checkpoint(meta(counted=True), path)
    ours = meta(counted=True)
    ours.count = torch.tensor(5.0)
    load_checkpoint(ours, path)
    assert (ours.count.item(), ours.count.is_xla) == (5, True)


def test_what_is_refused_loses_nothing(tmp_path):
    pending = torch.ones(3, device="xla") + 1
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    (tmp_path / "x.json").write_text("[]")
    torch.save([1], tmp_path / "x.pt")
    save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    save_file({"embed.weight": torch.ones(2, 2)}, tmp_path / "shape.safetensors")
    for path, error, text in (
        ("x.safetensors", ValueError, "is no safetensors file"),
        ("x.json", ValueError, "no weight_map"),
        ("x.pt", ValueError, "holds no state dict"),
        ("absent", FileNotFoundError, "there is no checkpoint"),
        (".", FileNotFoundError, "holds none of"),
        ("shape.safetensors", RuntimeError, "size mismatch for embed.weight"),
    ):
        with pytest.raises(error, match=text):
            load_checkpoint(Model(), tmp_path / path)
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    with pytest.raises(ValueError, match="and in a file before it"):
        load_checkpoint(Model(), [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    for options in ({"dtype": torch.int8}, {"dtype": "best"}, {"device": "cpu"}):
        with pytest.raises(ValueError, match=r"dtype is|onto device xla"):
            load_checkpoint(Model(), tmp_path / "a.safetensors", **options)
    with pytest.raises(ValueError, match="list of paths is empty"):
        load_checkpoint(Model(), [])
    assert pending.tolist() == [2, 2, 2]


def test_a_model_made_on_meta_or_skipped_is_filled_without_a_program(tmp_path):
    import torch_xla.debug.metrics as met

    theirs, path = saved(tmp_path, "model.pt")
    torch_xla.sync()
    met.clear_all()
    ours = meta().to_empty(device="xla")
    ours.load_state_dict(torch.load(path, mmap=True))
    skipped = nn.utils.skip_init(nn.Linear, 4, 6, bias=False, device="xla")
    skipped.weight.data.copy_(theirs.head.weight.data)
    torch_xla.sync()
    assert met.counter_value("UncachedCompile") is None
    assert_bits(ours.state_dict(), theirs.state_dict())
    assert torch.equal(skipped.weight.cpu(), theirs.head.weight)


# ---- memory ---------------------------------------------------------------------------------------------------------

WAYS = {
    "load_file": "keep = load_file(d + '/model.safetensors', device='xla')",
    "torch.load": "keep = torch.load(d + '/model.pt', mmap=True, map_location='xla')",
    "assign": "keep = model(); keep.load_state_dict(load_file(d + '/model.safetensors', device='xla'), assign=True)",
    "to_empty": "keep = model().to_empty(device='xla'); keep.load_state_dict(torch.load(d + '/model.pt', mmap=True))",
    "load_checkpoint": "keep = model(); load_checkpoint(keep, d + '/model.safetensors')",
    "cast": "keep = model(); load_checkpoint(keep, d + '/model.pt', dtype=torch.bfloat16)",
}
MEASURED = """
import sys, threading
import jax, torch, torch_xla
from safetensors.torch import load_file
from torch_xla.utils import load_checkpoint
from tests.test_load_checkpoint import large as model
d = sys.argv[1]
torch.ones(2048, 1024).to("xla").to(torch.bfloat16).cpu()  # compiles, which takes memory of its own

def on_device():
    return sum({b.unsafe_buffer_pointer(): b.nbytes for b in jax.live_arrays() if not b.is_deleted()}.values())

def on_host():
    before = on_device()
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
    return resident - max(before, on_device())

start, peak, done = on_host(), 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.0005):
        try:
            peak = max(peak, on_host() - start)
        except Exception:  # a buffer that goes while it is counted
            pass
watcher = threading.Thread(target=watch)
watcher.start()
exec(sys.argv[2])
torch_xla.sync(wait=True)
done.set()
watcher.join()
print(peak)
"""
LARGEST = 8 << 20  # bytes


def large(device="meta"):
    with torch.device(device):
        return nn.Sequential(*[nn.Linear(1024, 2048, bias=False) for _ in range(12)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    state = large("cpu").state_dict()
    save_file(state, path / "model.safetensors")
    torch.save(state, path / "model.pt")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", WAYS)
def test_the_host_holds_about_one_tensor_at_a_time(way, directory):
    command = [sys.executable, "-c", MEASURED, str(directory), WAYS[way]]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    # A part is not the tensor: what is imported, the buffer that is being filled, what the allocator keeps.
    assert int(done.stdout.split()[-1]) < 1.3 * LARGEST + 2 * LARGEST


def test_a_model_is_left_as_it_was_by_a_file_that_does_not_fit(tmp_path):
    torch.save({"0.weight": torch.zeros(2, 2), "other": torch.zeros(1)}, tmp_path / "wrong.pt")
    (tmp_path / "empty.pt").touch()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = list(model.parameters())
    with pytest.raises(RuntimeError, match="Missing key"):
        load_checkpoint(model, tmp_path / "wrong.pt")
    with pytest.raises(ValueError, match="no whole file of"):
        load_checkpoint(model, tmp_path / "empty.pt")
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
