"""The oracle of most tests: a function of a device gives on xla what it gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def facts(x: torch.Tensor) -> dict[str, Any]:
    """What a tensor says about itself that must not depend on the device."""
    return {
        "shape": tuple(x.shape), "dtype": x.dtype, "requires_grad": x.requires_grad, "is_leaf": x.is_leaf, "type": type(x),
    }  # fmt: skip


def to_host(x: torch.Tensor) -> torch.Tensor:
    """A CPU tensor that assert_close can compare: small floats widened, since not all of their ops exist on the CPU."""
    x = x.detach().cpu()
    return x.float() if x.dtype.itemsize == 1 and x.is_floating_point() else x


def assert_same(got: Any, want: Any, tolerance: float = 0.0, strides: bool = False) -> None:
    """Compares nested results: tensors by facts and contents, everything else by equality."""
    got, got_tree = pytree.tree_flatten(got)
    want, want_tree = pytree.tree_flatten(want)
    assert got_tree == want_tree
    for position, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"result {position}: xla gave {g!r}, the CPU {w!r}"
        if isinstance(w, torch.Tensor):
            assert facts(g) == facts(w), where
            assert not strides or g.stride() == w.stride(), f"strides {g.stride()} and {w.stride()} of {where}"
            torch.testing.assert_close(to_host(g), to_host(w), rtol=tolerance, atol=tolerance, equal_nan=True)
        elif isinstance(w, float) and tolerance:
            assert abs(g - w) <= tolerance, where
        else:
            assert type(g) is type(w), where
            assert g == w or (g != g and w != w), where  # NaN is NaN


def same(fn: Callable[[str], Any], tolerance: float = 0.0, strides: bool = False) -> None:
    """`fn("xla")` is `fn("cpu")`; strides: those too."""
    assert_same(fn("xla"), fn("cpu"), tolerance, strides)


def raised(fn: Callable[[], Any]) -> BaseException:
    """The exception that `fn()` raises."""
    try:
        fn()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
