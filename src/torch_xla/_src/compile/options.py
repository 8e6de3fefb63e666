"""XLA options of a program, chosen by measurement (benchmarks/).

Note [Library calls on CPU]
XLA on CPU hands reductions, with what is broadcast from them, to the library YNNPACK. Over the last dim that is a gain:
a training step of a GPT takes 8 % less time, one of a small convolutional network 20 %. Over the channels of a batch norm,
or the windows of an adaptive max pool, it costs far more than it saves, since it writes out what is broadcast: without it
a ResNet-18 step takes 0.7 of the time, an adaptive max pool a seventh. So programs that hold such an op do without.

Note [Copies before updates]
An output in the buffer of a donated input may be written when all readers of the input are done. Without analysis of
live ranges XLA copies the input first unless each reader is needed for the output, and the product with a weight in the
backward pass is not: every weight is copied in every step. With it there are no copies (see also Note [Buffers of
outputs]).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import client

_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_DOTS_ONLY = "LIBRARY_FUSION_TYPE_DOT"
_LIVE_RANGES = "xla_cpu_copy_insertion_use_region_analysis"
_unknown: set[str] = set()  # options that this release of JAX has refused
_WITHOUT_LIBRARY = ("batch_norm", "adaptive_max_pool")  # a part of the names of ops


def of(rows: Sequence[Row]) -> dict[str, Any]:
    """The options to compile a recording with."""
    if client.device_type() != "CPU":
        return {}
    # bfloat16 results are rounded after every op, as PyTorch's CPU kernels do, not kept in float32 between ops.
    options: dict[str, Any] = {"xla_allow_excess_precision": False, _LIVE_RANGES: True}
    if any(name in row.op._schema.name for row in rows for name in _WITHOUT_LIBRARY):
        options[_LIBRARY] = _DOTS_ONLY
    return {name: value for name, value in options.items() if name not in _unknown}


def compiled(lowered: Any, rows: Sequence[Row]) -> Any:
    """What JAX has lowered, compiled with the options for these rows that this release of JAX knows."""
    while True:
        options = of(rows)
        try:
            return lowered.compile(compiler_options=options)
        except Exception as error:  # of whatever class the release raises
            unknown = {name for name in options if f"'{name}'" in str(error)}
            if not unknown:
                raise
            _unknown.update(unknown)
