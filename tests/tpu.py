"""Compiles what is pending for a TPU that is not there, and reports what the TPU compiler says about memory.

Needs libtpu, which is never a dependency: `python -m tests.tpu offload host` (or `device`) prints what keeping activations in
the host's memory saves, and `python -m tests.tpu CHECKPOINT` the temporaries, in bytes, of the
backward pass of a 12-layer GPT on a TPU v5e with gradient checkpointing or ("plain") without. A process of its own,
because libtpu is loaded once, and wants its environment before JAX.
"""

from __future__ import annotations

import os
import sys
from typing import Any

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


def compile_pending(topology: str) -> Any:
    """The executable that the pending recording would be on a device of `topology`; the recording is dropped."""
    import jax
    import numpy as np
    from jax.experimental import topologies

    from torch_xla._src.compile.launch import Launch
    from torch_xla._src.compile.program import Program
    from torch_xla._src.graph.recorder import RECORDER

    devices = topologies.get_topology_desc(topology, "tpu").devices
    sharding = jax.sharding.SingleDeviceSharding(devices[0])

    def aval(shape: Any, dtype: Any, **options: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, **options)

    class OnTpu(Program):
        def _compile(self, leaf_buffers: Any, counts: Any) -> Any:
            floats, ints, keys = counts
            with jax.enable_x64(True):
                lowered = jax.jit(self._function).lower(
                    [],
                    [aval(b.shape, b.dtype) for b in leaf_buffers],
                    aval((floats,), np.float64, weak_type=True),
                    aval((ints,), np.int64, weak_type=True),
                    aval((keys, 2), np.uint32),
                    [],
                )
                return lowered.compile()

    launch = Launch(RECORDER.node, RECORDER.values, RECORDER.leaf_values, RECORDER.leaf_buffers, {})
    numbers = tuple(number for number, _ in launch.live)
    counts = len(RECORDER.floats), len(RECORDER.ints), len(RECORDER.keys)
    program = OnTpu(launch.node.path(), launch.leaf_buffers, numbers, frozenset(), counts, {}, False)
    RECORDER._restart()
    return program.executable


def main() -> None:
    if sys.argv[1] == "offload":
        _offload(sys.argv[2])
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


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main()
