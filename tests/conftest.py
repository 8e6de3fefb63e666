"""Settings of the whole test run: one device, one disk cache, one thread a worker, one seed a test."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile

import numpy as np
import pytest

# Set before torch or JAX is imported, and by the first process of a run: the workers of pytest-xdist inherit them.
# The disk cache is shared by the workers and by the processes that tests start, but not with other runs, whose programs
# an older state of the package may have compiled.
_CACHE = "XLA_PERSISTENT_CACHE_PATH"
_owned_cache = None if _CACHE in os.environ else tempfile.mkdtemp(prefix="torch_xla_tests_")
if _owned_cache:
    os.environ[_CACHE] = _owned_cache
os.environ.setdefault("PJRT_DEVICE", "CPU")
# Workers already keep all cores busy; OpenMP threads that wait for a core burn the time of those that have one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402  (only after the environment is set)

import torch_xla  # noqa: E402  (only after the environment is set)

torch.set_num_threads(1)
pytest.register_assert_rewrite("tests.same", "tests.ops.database")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-dtype", action="store_true", help="ask all operators what they do with dtypes they refuse"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the disk cache when the process that made it ends."""
    if _owned_cache:
        shutil.rmtree(_owned_cache, ignore_errors=True)


@pytest.fixture(autouse=True)
def fixed_start() -> None:
    """Every test starts with the same seeds, and with nothing pending on the device from the test before it."""
    with contextlib.suppress(Exception):  # an error of what another test left behind is no matter of this one
        torch_xla.sync()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def unnoticed(monkeypatch):
    """Flags look as if the device were still busy, until somebody waits."""

    class Busy:
        def __init__(self, flags):
            self.flags = flags

        def is_ready(self):
            return False

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.flags)

    from torch_xla._src.compile import poison  # imports JAX

    original = poison.remember

    def remember(*args):
        *most, flags, checks = args
        original(*most, None if flags is None else Busy(flags), checks)

    monkeypatch.setattr(poison, "remember", remember)
