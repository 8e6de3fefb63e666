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
from functools import cache
from typing import Any

import jax

from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import client

_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_DOTS_ONLY = "LIBRARY_FUSION_TYPE_DOT"
_LIVE_RANGES = "xla_cpu_copy_insertion_use_region_analysis"
_WITHOUT_LIBRARY = ("batch_norm", "adaptive_max_pool")  # a part of the names of ops


def of(rows: Sequence[Row]) -> dict[str, Any]:
    """The options to compile a recording with."""
    if client.device_type() != "CPU":
        return {}
    # bfloat16 results are rounded after every op, as PyTorch's CPU kernels do, not kept in float32 between ops.
    options: dict[str, Any] = {"xla_allow_excess_precision": False}
    if _knows(_LIVE_RANGES, True):
        options[_LIVE_RANGES] = True
    if _knows(_LIBRARY, _DOTS_ONLY) and any(name in row.op._schema.name for row in rows for name in _WITHOUT_LIBRARY):
        options[_LIBRARY] = _DOTS_ONLY
    return options


@cache
def _knows(option: str, value: Any) -> bool:
    """Whether this release of JAX knows an option."""
    try:
        with jax.default_device(client.default_device()):
            jax.jit(lambda x: x).lower(1.0).compile(compiler_options={option: value})
    except Exception:  # of whatever class the release raises
        return False
    return True
