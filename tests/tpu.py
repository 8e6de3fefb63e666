"""Compiles what is pending for a TPU that is not there, and reports what the TPU compiler says about memory.

Needs libtpu, which is never a dependency. `python -m tests.tpu offload host` (or `device`) prints what keeping activations in
the host's memory saves; `state OPTIMIZER` (of torch.optim, or "plain") where a training step has the state of an optimizer;
`scan REMAT` (or "None") what a scan keeps; and `python -m tests.tpu CHECKPOINT` the temporaries, in bytes, of the backward
pass of a 12-layer GPT on a TPU v5e with gradient checkpointing or ("plain") without. A process of its own,
because libtpu is loaded once, and wants its environment before JAX.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_OPTIMIZATION_LEVEL": "O0",  # compiles several times faster
    "JAX_PLATFORMS": "cpu",
    "PJRT_DEVICE": "CPU",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


_HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(not _HAS_LIBTPU, reason="the TPU compiler is in libtpu, which is not installed")


def figures(*arguments: str) -> list[int]:
    """What `python -m tests.tpu` prints with these arguments."""
    run = [sys.executable, "-m", "tests.tpu", *arguments]
    text = subprocess.run(run, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    return [int(word) for word in text.splitlines()[-1].split()]


def compile_pending(topology: str, donates: bool = False) -> Any:
    """The executable that the pending recording would be on a device of `topology`; the recording is dropped.

    donates: whether it consumes leaves that no tensor holds, as the launch would.
    """
    import jax
    import numpy as np
    from jax.experimental import topologies

    from torch_xla._src.compile.launch import Launch
    from torch_xla._src.compile.program import Program, donatable
    from torch_xla._src.graph.recorder import RECORDER

    devices = topologies.get_topology_desc(topology, "tpu").devices
    sharding = jax.sharding.SingleDeviceSharding(devices[0])

    def aval(shape: Any, dtype: Any, **options: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, **options)

    def like(buffer: Any) -> Any:
        kind = "pinned_host" if buffer.sharding.memory_kind == "pinned_host" else "device"
        return jax.ShapeDtypeStruct(buffer.shape, buffer.dtype, sharding=sharding.with_memory_kind(kind))

    class OnTpu(Program):
        def _compile(self, leaf_buffers: Any, counts: Any) -> Any:
            floats, ints, keys = counts
            with jax.enable_x64(True):
                lowered = jax.jit(self._function, donate_argnums=0).lower(
                    [like(leaf_buffers[i]) for i in self.given],
                    [like(leaf_buffers[i]) for i in self.kept],
                    aval((floats,), np.float64, weak_type=True),
                    aval((ints,), np.int64, weak_type=True),
                    aval((keys, 2), np.uint32),
                    [],
                )
                return lowered.compile()

    launch = Launch(RECORDER.node, RECORDER.values, RECORDER.leaf_values, RECORDER.leaf_buffers, {})
    numbers = tuple(number for number, _ in launch.live)
    counts = len(RECORDER.floats), len(RECORDER.ints), len(RECORDER.keys)
    dead = [i for i, ref in enumerate(launch.leaf_values) if ref() is None] if donates else []
    donated = donatable([value.spec for _, value in launch.live], dead, launch.leaf_buffers)
    program = OnTpu(launch.node.path(), launch.leaf_buffers, numbers, donated, counts, launch.replaced, False)
    RECORDER._restart()
    return program.executable


def main() -> None:
    if sys.argv[1] == "offload":
        _offload(sys.argv[2])
    elif sys.argv[1] == "state":
        _state(sys.argv[2])
    elif sys.argv[1] == "scan":
        _scan(None if sys.argv[2] == "None" else sys.argv[2])
    else:
        _checkpointed(sys.argv[1])


def _checkpointed(how: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.models import Gpt, checkpointed

    model = Gpt(vocabulary=256, width=256, heads=4, layers=12, context=512).to("xla")
    if how != "plain":
        checkpointed(model, how)
    tokens = torch.randint(0, 256, (8, 512)).to("xla")
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    print(compile_pending("v5e:2x2").memory_analysis().temp_size_in_bytes)


def _offload(how: str) -> None:
    """Prints device temporaries, host temporaries, and how often the HLO names host memory, with activations placed or not."""
    import torch

    from torch_xla._src.ops import placement
    from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host

    placement.has_one_memory = lambda: False  # as on the TPU that this is compiled for
    x = torch.ones(4096, 4096).to("xla").requires_grad_()
    weights = [torch.ones(4096, 4096).to("xla") for _ in range(6)]
    kept, y = [], x
    for weight in weights:
        y = (y @ weight).tanh()
        kept.append(place_to_host(y) if how == "host" else y)
    for weight, held in zip(weights, reversed(kept), strict=True):
        y = y @ weight + (place_to_device(held) if how == "host" else held)
    loss = y.sum()
    del kept, y
    executable = compile_pending("v5e:2x2")
    plan = executable.memory_analysis()
    assert loss.shape == ()
    print(plan.temp_size_in_bytes, plan.host_temp_size_in_bytes, executable.as_text().count("S(5)"))


def _state(how: str) -> None:
    """Prints, of a training step of two layers and an embedding, bytes: of inputs and of outputs in host memory, of inputs in
    device memory, of outputs written over inputs of either; and how often the HLO names host memory. how: "plain", or a name
    in torch.optim, whose state is offloaded."""
    import torch

    import torch_xla
    from torch_xla._src.ops import placement
    from torch_xla.utils import offload_optimizer_state

    placement.has_one_memory = lambda: False
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(128, 1024)  # its checks undo writes
    model = torch.nn.Sequential(embedding, torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)).to("xla")
    options = {"momentum": 0.9} if how == "SGD" else {}
    optimizer = getattr(torch.optim, "Adam" if how == "plain" else how)(model.parameters(), lr=0.01, **options)
    if how != "plain":
        offload_optimizer_state(optimizer)
    tokens = torch.randint(0, 128, (4, 16)).to("xla")
    with torch_xla.step():
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        executable = compile_pending("v5e:2x2", donates=True)
    plan = executable.memory_analysis()
    print(
        plan.host_argument_size_in_bytes, plan.host_output_size_in_bytes, plan.argument_size_in_bytes,
        plan.host_alias_size_in_bytes, plan.alias_size_in_bytes, executable.as_text().count("S(5)"),
    )  # fmt: skip


def _scan(remat: str | None) -> None:
    """Prints device temporaries, host temporaries, and how often the HLO names host memory, of a loop over eight layers."""
    import torch

    from torch_xla._src.ops import placement
    from torch_xla.experimental.scan import scan

    placement.has_one_memory = lambda: False
    weights = torch.ones(8, 1024, 1024).to("xla").requires_grad_()
    x = torch.ones(4096, 1024).to("xla")
    y, _ = scan(lambda x, weight: (((x @ weight).sin() @ weight).tanh(), None), x, weights, remat=remat)
    y.sum().backward()
    gradient = weights.grad
    del y
    executable = compile_pending("v5e:2x2")
    plan = executable.memory_analysis()
    assert gradient.shape == weights.shape
    print(plan.temp_size_in_bytes, plan.host_temp_size_in_bytes, executable.as_text().count("S(5)"))


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main()
