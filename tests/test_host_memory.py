"""Memory of programs on CPU is used again, not taken from the operating system in every step."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# A result of 48 MiB in every run, which glibc by itself maps anew: 12288 pages. Prints how many the system mapped in a run.
_PROGRAM = """
import resource
import torch

x = torch.ones(3072, 4096, device="xla")
runs = 4
for number in range(16 + runs):
    if number == 16:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    y = x + number
    assert y[0, 0].item() == 1 + number
    del y
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // runs)
"""


def pages_mapped(**variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | variables
    output = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return int(output.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_freed_memory_is_kept_unless_the_user_says_otherwise():
    assert pages_mapped() < 4000
    assert pages_mapped(TORCH_XLA_KEEP_FREED_MEMORY="0") > 10000
    assert pages_mapped(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 10000
