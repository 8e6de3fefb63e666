"""The order of the rows of a matrix, which `unique(dim=...)` needs; aten has no op for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._src.ops.registry import lowers

_library = torch.library.Library("torch_xla", "FRAGMENT")
_library.define("lexsort(Tensor rows) -> Tensor")

_COMPARED_AT_ONCE = 8  # more keys than this in one sort would cost more to compile than to sort column by column


def _lexsort_on_host(rows: torch.Tensor) -> torch.Tensor:
    order = torch.arange(rows.shape[0])
    for column in reversed(range(rows.shape[1])):
        order = order[torch.sort(rows[order, column], stable=True).indices]
    return order


def _lexsort_of_meta(rows: torch.Tensor) -> torch.Tensor:
    return torch.empty(rows.shape[:1], dtype=torch.int64, device="meta")


_library.impl("lexsort", _lexsort_on_host, "CPU")
_library.impl("lexsort", _lexsort_of_meta, "Meta")


@lowers("torch_xla.lexsort")
def lexsort(rows: jax.Array) -> jax.Array:
    """[n, m] -> int64 [n]: the stable order in which the first column counts most; NaN comes last."""
    num_rows, num_columns = rows.shape
    rows = rows.astype(np.uint8) if rows.dtype == np.dtype(bool) else rows
    order = lax.iota(np.int64, num_rows)
    if num_columns <= _COMPARED_AT_ONCE:
        return lax.sort([*rows.T, order], num_keys=num_columns, is_stable=True)[-1]

    def by_column(i: jax.Array, order: jax.Array) -> jax.Array:
        key = jnp.take(jnp.take(rows, num_columns - 1 - i, axis=1), order)
        return lax.sort([key, order], num_keys=1, is_stable=True)[1]

    return lax.fori_loop(0, num_columns, by_column, order)
