"""Files of the disk cache: whole or not there at all, whatever happens to a process that writes them."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb
from torch_xla._src.compile import fingerprint
from torch_xla._src.compile.disk_cache import ProgramFiles
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of
from torch_xla._src.graph.value import FLOAT_SLOT, INT_SLOT, Ref
from torch_xla._src.ops import registry

SCRIPT = """
import torch, torch_xla
import torch_xla.debug.metrics as met

x = torch.arange(6.0, device="xla")
print((x * x + 1).sum().item(), met.counter_value("PersistentCacheHit") or 0)
"""

# Reads a seed, draws random numbers, looks up rows, fails a lookup (whose step is undone), and changes the learning rate.
TRAINING = """
import sys, torch, torch_xla
from torch import nn
import torch_xla.debug.metrics as met
from torch_xla._src.compile import program

traced = []
function = program.Program._function
program.Program._function = lambda self, *args: traced.append(self) or function(self, *args)

torch.manual_seed(3)
model = nn.Sequential(nn.Embedding(8, 4), nn.Dropout(0.3), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 1))
model.to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
losses = []
for step in range(5):
    index = torch.arange(5) + (step == 2) * 100
    try:
        optimizer.zero_grad()
        loss = model(index.to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    except IndexError as error:
        losses.append(str(error).split(":")[0])
    schedule.step()
losses.append(float(sum(p.detach().double().abs().sum() for p in model.parameters())))
print((losses, len(traced), met.counter_value("UncachedCompile"), met.counter_value("PersistentCacheHit") or 0))
"""


def run_script(script: str, directory: Path, **variables: str) -> str:
    """What a script prints, run in a process of its own that keeps programs in `directory`."""
    environment = os.environ | {"XLA_PERSISTENT_CACHE_PATH": str(directory), **variables}
    command = [sys.executable, "-W", "error::UserWarning", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def run(directory: Path) -> tuple[float, int]:
    """Runs a small program in a process of its own; its result and the number of programs found in `directory`."""
    value, hits = run_script(SCRIPT, directory).split()
    return float(value), int(hits)


def test_second_process_compiles_nothing_and_damaged_files_are_replaced(tmp_path: Path) -> None:
    value, hits = run(tmp_path)
    assert (value, hits) == (61.0, 0)
    files = sorted(tmp_path.glob("*.program"))
    assert files
    assert sorted(f for f in tmp_path.iterdir() if f.name != ".compiles") == files  # and nothing half written
    assert run(tmp_path) == (61.0, len(files))
    whole = [file.read_bytes() for file in files]
    for file, data in zip(files, whole, strict=True):
        file.write_bytes(data[: len(data) // 2])
    assert run(tmp_path) == (61.0, 0)
    assert sorted(f for f in tmp_path.iterdir() if f.name != ".compiles") == files  # and nothing half written
    assert all(len(file.read_bytes()) > len(data) // 2 for file, data in zip(files, whole))
    assert run(tmp_path) == (61.0, len(files))


def test_second_process_of_a_training_traces_nothing(tmp_path: Path) -> None:
    losses, traced, compiled, hits = ast.literal_eval(run_script(TRAINING, tmp_path))
    assert (traced, hits) == (compiled, 0)
    assert isinstance(losses[2], str)
    assert ast.literal_eval(run_script(TRAINING, tmp_path)) == (losses, 0, compiled, compiled)
    # Settings that change what is compiled find none of these.
    assert ast.literal_eval(run_script(TRAINING, tmp_path, XLA_USE_32BIT_LONG="1"))[1:] == (compiled, compiled, 0)


def test_what_jax_has_kept_is_not_kept_once_more(tmp_path: Path) -> None:
    """An executable that was loaded has no machine code to write. See Note [Loaded programs are not kept]."""
    without_recordings = (
        "from torch_xla._src.compile import fingerprint\nfingerprint.of = lambda *args: None\n" + SCRIPT
    )
    assert run_script(without_recordings, tmp_path).split() == ["61.0", "0"]
    assert not list(tmp_path.glob("recording-*"))
    assert run_script(without_recordings, tmp_path).split()[0] == "61.0"
    assert run(tmp_path) == (61.0, 0)  # as after an update of this package: compiled, not taken from JAX's entries
    assert list(tmp_path.glob("recording-*"))
    value, hits = run(tmp_path)
    assert value == 61.0
    assert hits > 0


LINALG = """
import torch, torch_xla
import torch_xla.debug.metrics as met

x = torch.tensor([[4.0, 1.0], [1.0, 3.0]]).to("xla")
results = [
    torch.linalg.cholesky(x), torch.linalg.eigh(x)[0], torch.linalg.svd(x)[1], torch.linalg.qr(x)[1].abs(),
    torch.linalg.lu(x)[2], torch.linalg.inv(x), torch.linalg.solve(x, x), torch.linalg.det(x), torch.linalg.eigvals(x).real,
]
print(([round(r.sum().item(), 4) for r in results], met.counter_value("PersistentCacheHit") or 0))
"""


def test_a_second_process_finds_the_libraries_that_a_program_calls(tmp_path: Path) -> None:
    first, second = (ast.literal_eval(run_script(LINALG, tmp_path)) for _ in range(2))
    assert first[0] == second[0]
    assert second[1] >= len(first[0])


def test_fingerprints_tell_apart_arguments() -> None:
    nan = float("nan")
    arguments = [1, 1.0, True, "1", 0.0, -0.0, nan, 1j, None, (1,), [1], (), [], Ref(1), Ref(-1), FLOAT_SLOT, INT_SLOT]
    arguments += [
        torch.float32,
        torch.device("cpu"),
        torch.strided,
        torch.contiguous_format,
        torch.Size([1]),
        ((1,), 2),
    ]
    assert len(set(map(fingerprint._text, arguments))) == len(arguments)
    assert fingerprint._text((1.5, [nan, Ref(2)])) == fingerprint._text((1.5, [nan, Ref(2)]))
    with pytest.raises(fingerprint.Unknown):
        fingerprint._text((object(),))


def test_fingerprints_tell_apart_what_compiles_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(make: Callable[[torch.Tensor], torch.Tensor], also: object = (), size: int = 3) -> str | None:
        x = torch.ones(size, device="xla")
        torch_xla.sync()
        y = make(x)
        rows, buffers = RECORDER.node.path(), [value_of(x).buffer]
        del y
        torch_xla.sync()
        return fingerprint.of(rows, buffers, also)

    sine = digest(torch.sin)
    assert sine is not None
    makes = [torch.cos, lambda x: x.sum(0), lambda x: x.sum(0, keepdim=True), lambda x: x.sum(0, dtype=torch.float64)]
    others = [*map(digest, makes), digest(torch.sin, size=4), digest(torch.sin, also=(1,))]
    assert len({sine, None, *others}) == len(others) + 2
    assert digest(makes[1]) == digest(lambda x: x.sum([0]))
    assert digest(torch.sin) == sine
    with jax.numpy_dtype_promotion("strict"):
        assert digest(torch.sin) != sine
    monkeypatch.setenv("XLA_FLAGS", "--xla_something")
    assert digest(torch.sin) != sine
    monkeypatch.delenv("XLA_FLAGS")
    assert digest(torch.sin) == sine
    assert digest(lambda x: xb.call_jax(lambda a: a + 1, (x,))) is None  # a function of this process
    table = registry._TABLE
    monkeypatch.setitem(table, "aten.cos", dataclasses.replace(table["aten.cos"], fn=lambda x: x))
    assert digest(torch.sin) is None  # a lowering that is not ours


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:40] + b"\0" + data[41:]]
)
def test_a_damaged_file_is_no_entry(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    files = ProgramFiles(tmp_path)
    assert files.get("key") is None
    files.put("key", b"contents" * 10)
    assert files.get("key") == b"contents" * 10
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert files.get("key") is None
    assert not file.exists()
    files.put("key", b"other")
    assert files.get("key") == b"other"


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path: Path) -> None:
    files = ProgramFiles(tmp_path / "missing")
    files.put("key", b"contents")
    assert files.get("key") is None
