"""`scaled_dot_product_attention` on device xla is one op, with a lowering and a closed-form backward.

PyTorch has an op for backends with an attention of their own, with its derivative declared; it is called here in place
of the composition of matmuls and softmax that stock torch would send.
"""

from __future__ import annotations


def install() -> None:
    """Registers the attention kernel."""
