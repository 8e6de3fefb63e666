"""Watches how the aten ops that reach xla tensors are computed: by a lowering, a decomposition, or the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch_xla._src.compile.recovery import CompileWarning
from torch_xla._src.graph import dispatch as dispatching
from torch_xla._src.graph import tensor as tensors
from torch_xla._src.ops.lower import how
from torch_xla._src.runtime import metrics

_READS = {"aten::_local_scalar_dense"}  # counted, because it waits for the device; it computes nothing


@dataclass
class Served:
    """The aten ops that were called, those that no lowering of ours computed, and what did not compile and ran on the CPU
    for that reason."""

    ops: set[str] = field(default_factory=set)
    decomposed: set[str] = field(default_factory=set)
    fallback: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)

    @property
    def worst(self) -> str:
        """One word for all."""
        return "fallback" if self.fallback or self.broken else "decomposed" if self.decomposed else "native"

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Adds the ops called in the block."""
        seen: set[Any] = set()
        before, inner = dict(metrics.counters), tensors.dispatch

        def dispatch(op: Any, args: Any, kwargs: Any) -> Any:
            seen.add(op)
            return inner(op, args, kwargs)

        tensors.dispatch = dispatch
        try:
            yield
        finally:
            tensors.dispatch = inner
            self.ops |= {op._schema.name.replace("::", ".") for op in seen}
            self.decomposed |= {str(op) for op in seen if _recorded(op) and how(op) == "decomposed"}
            self.fallback |= {
                name.replace("::", ".")
                for name, count in metrics.counters.items()
                if name.startswith("aten::") and name not in _READS and count > before.get(name, 0)
            }

    @contextmanager
    def watch_compilation(self) -> Iterator[None]:
        """Adds the compile failures in the block."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", CompileWarning)
            yield
        self.broken += [str(warning.message)[:400] for warning in caught]


# Handlers of ops that nothing special is done for; other handlers compute nothing, or call `dispatch` again.
_GENERIC = {"_record", "_record_random", "checked"}


def _recorded(op: Any) -> bool:
    """Whether the op becomes a row of the recording."""
    return getattr(dispatching.HANDLERS.get(op), "__name__", "") in _GENERIC
