"""Random programs of views, writes and reads do on device xla what they do on the CPU. See tests/aliasing."""

from __future__ import annotations

import pytest

from tests.aliasing.check import check

PROGRAMS, SHARDS = 500, 10


@pytest.mark.filterwarnings("ignore")  # both devices warn of the same misuse; the programs are full of it
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_programs(shard):
    failure = check(seed=shard, programs=PROGRAMS // SHARDS)
    assert failure is None, failure
