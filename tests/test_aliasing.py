"""Random programs of views, writes and reads do on device xla what they do on the CPU. See tests/aliasing."""

from __future__ import annotations

import pytest

from tests.aliasing.check import check
from torch_xla._src.compile import launch

PROGRAMS, SHARDS = 500, 10


@pytest.mark.filterwarnings("ignore")  # both devices warn of the same misuse; the programs are full of it
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_programs(shard, monkeypatch):
    if shard % 2:  # views have no buffers after a cut, whatever their size: Note [Views at a cut]
        monkeypatch.setattr(launch, "_LARGE", 0)
    failure = check(seed=shard, programs=PROGRAMS // SHARDS)
    assert failure is None, failure
