"""Names of PyTorch/XLA's `torch_xla.backends`: how precise products of float32 matrices are."""

from __future__ import annotations

from torch_xla._src.runtime import precision as _precision

__all__ = ["get_mat_mul_precision", "set_mat_mul_precision"]


def set_mat_mul_precision(precision: str) -> None:
    """How matrix products and convolutions of float32 are computed, for programs that are launched from now on.

    precision: "default" (as fast as the device can: in bfloat16 on TPUs), "high" (three bfloat16 passes there, TensorFloat-32
    on GPUs) or "highest" (float32). ValueError for anything else. Without effect on the CPU. The same setting as
    `torch.set_float32_matmul_precision`, where "default" is called "medium"; the last call counts.
    """
    _precision.set_(precision)


def get_mat_mul_precision() -> str:
    """What `set_mat_mul_precision` has set; "default" at first."""
    return _precision.get()
