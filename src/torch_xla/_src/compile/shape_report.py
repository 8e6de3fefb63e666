"""Tells the user, once for each place, that programs are compiled again and again because a size keeps changing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from torch_xla._src.graph import families
from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import metrics

_ENOUGH = 4  # shapes of one place that are no coincidence any more
_log = logging.getLogger("torch_xla")


@dataclass
class _Seen:
    """Shapes that a structure was compiled for. shapes: hashes of all of them; samples: the first ones."""

    shapes: set[int] = field(default_factory=set)
    samples: list[families.Sample] = field(default_factory=list)


_seen: dict[int, _Seen] = {}
_reported: set[str] = set()


def note(node: Row) -> None:
    """Takes note that the recording which ends with `node` was compiled as it is; logs a warning if it is time.

    Counts `RecompiledForShape` if the same recording was compiled for other sizes before.
    """
    described, sample = families.describe(node.path(), any_leaves=True)
    seen = _seen.setdefault(hash(described), _Seen())
    shapes = hash((sample.shapes, sample.leaf_shapes))
    if shapes in seen.shapes:
        return
    if seen.shapes:
        metrics.count("RecompiledForShape")
    seen.shapes.add(shapes)
    if len(seen.samples) < _ENOUGH:
        seen.samples.append(sample)
        if len(seen.samples) == _ENOUGH:
            _report(seen.samples)


def _report(samples: list[families.Sample]) -> None:
    line, what = _what_varies(samples)
    if line in _reported:
        return
    _reported.add(line)
    _log.warning(
        "%s: what is recorded here has been compiled for %d different shapes; %s. Each new shape compiles once more. Call "
        "torch_xla.mark_dynamic on tensors whose size varies, or pad them to a few sizes",
        line or "an unknown line",
        len(samples),
        what,
    )


def _what_varies(samples: list[families.Sample]) -> tuple[str, str]:
    """The line that meets the first size which varies, and that size in words."""
    for row in samples[-1].rows:
        for leaf in range(row.leaf_base, row.leaf_base + len(row.leaves)):
            found = _varying_dim([s.leaf_shapes[leaf] for s in samples])
            if found:
                return row.line, found
        for number, spec in enumerate(row.outs, row.base):
            found = _varying_dim([s.shapes[number] or () for s in samples]) if spec is not None else ""
            if found:
                return row.line, f"{found}, which {row.op._schema.name} gives"
    raise AssertionError("the shapes of two recordings differ nowhere")


def _varying_dim(shapes: list[Any]) -> str:
    for dim, sizes in enumerate(zip(*shapes, strict=True)):
        if len(set(sizes)) > 1:
            took = ", ".join(map(str, dict.fromkeys(sizes)))
            return f"dim {dim} of a tensor of shape {list(shapes[-1])} took {took}"
    return ""
