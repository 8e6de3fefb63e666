"""Checks that what torch_xla stands on is there and new enough, without importing JAX."""

from __future__ import annotations

import importlib.metadata
import sys

MINIMUM = {"torch": (2, 9), "jax": (0, 10)}
MINIMUM_PYTHON = (3, 11)


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" gives (2, 13, 0)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def check() -> None:
    """ImportError naming what is missing or too old, and what to do."""
    if sys.version_info < MINIMUM_PYTHON:
        raise ImportError(f"torch_xla needs Python {'.'.join(map(str, MINIMUM_PYTHON))} or newer")
    for package, minimum in MINIMUM.items():
        wanted = ".".join(map(str, minimum))
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ImportError(f"torch_xla needs {package} >= {wanted}: pip install '{package}>={wanted}'") from None
        if _release(found)[:2] < minimum:
            raise ImportError(f"torch_xla needs {package} >= {wanted}, found {found}: pip install -U {package}")
