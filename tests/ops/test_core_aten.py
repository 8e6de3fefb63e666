"""Every overload of the Core ATen operator set has a lowering, or a decomposition into ops that have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ops.harness import functional_variant
from torch_xla._src.ops.lower import how

# Overloads that no program contains, and why.
NOT_LOWERED = {
    "aten._local_scalar_dense.default": "a host read: it cuts the recording",
    "aten.nonzero.default": "the size of the result depends on data: the recorder reads it back",
    "aten.sym_numel.default": "metadata",
    "aten.sym_size.int": "metadata",
    "aten.sym_storage_offset.default": "metadata",
    "aten.sym_stride.int": "metadata",
}

# The functional form, where its name does not follow from the schema.
FUNCTIONAL_FORM = {"aten._native_batch_norm_legit.default": torch.ops.aten._native_batch_norm_legit_functional.default}


def core_overloads() -> Iterator[Any]:
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload_name in packet.overloads() if hasattr(packet, "overloads") else ():
            overload = getattr(packet, overload_name)
            if torch.Tag.core in overload.tags and not any(a.is_out for a in overload._schema.arguments):
                yield overload


OVERLOADS = {str(overload): overload for overload in core_overloads()}


def test_the_set_is_there() -> None:
    assert len(OVERLOADS) > 150


@pytest.mark.parametrize("name", sorted(OVERLOADS.keys() - NOT_LOWERED.keys()))
def test_core_overload_is_lowered(name: str) -> None:
    """Views reach a device as copies (C++ functionalization), so it is the copy that counts."""
    overload = OVERLOADS[name]
    assert how(FUNCTIONAL_FORM.get(name) or functional_variant(overload)) in ("native", "decomposed")


@pytest.mark.parametrize("name", sorted(OVERLOADS.keys() & NOT_LOWERED.keys()))
def test_exceptions_are_still_needed(name: str) -> None:
    overload = OVERLOADS[name]
    metadata = not any(isinstance(r.type, torch.TensorType) for r in overload._schema.returns)
    assert metadata or how(overload) == "fallback"
