"""64 bits are kept, unless the environment asks the device to hold less. See Note [Narrowed dtypes] in ops/dtypes.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, torch, torch_xla
from torch_xla._src.graph.tensor import inner_of
import torch.nn.functional as F

def held(t):
    torch_xla.sync()
    return str(inner_of(t).value.buffer.dtype)

longs = torch.arange(5).to("xla")
doubles = torch.ones(3, dtype=torch.float64, device="xla") + 2.0**-30
weight = torch.nn.Parameter(torch.full((3, 2), 0.5).to("xla"))
optimizer = torch.optim.AdamW([weight], lr=0.1)
for _ in range(3):
    loss = F.cross_entropy(torch.ones(4, 3).to("xla") @ weight, torch.zeros(4, dtype=torch.int64).to("xla"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({
    "held": [held(longs), held(doubles), held(weight)],
    "seen": [str(t.dtype) for t in (longs, doubles, weight, longs.cpu(), doubles.cpu(), weight.cpu(), longs.sum())],
    "doubles": (doubles - 1).tolist(),
    "sum": longs.sum().item(),
    "argmax": torch.ones(4, 3).to("xla").argmax(1).tolist(),
    "weight": weight.tolist(),
}))
"""

SEEN = ["torch.int64", "torch.float64", "torch.float32"] * 2 + ["torch.int64"]


@pytest.mark.parametrize(
    ("variable", "held"),
    [
        ("", ["int64", "float64", "float32"]),
        ("XLA_USE_32BIT_LONG", ["int32", "float64", "float32"]),
        ("XLA_DOWNCAST_BF16", ["int64", "float32", "bfloat16"]),
        ("XLA_USE_BF16", ["int64", "bfloat16", "bfloat16"]),
    ],
    ids=["none", "32bit_long", "downcast_bf16", "use_bf16"],
)
def test_what_the_device_holds(variable, held):
    environment = os.environ | ({variable: "1"} if variable else {})
    output = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    result = json.loads(output.stdout.splitlines()[-1])
    assert result["held"] == held
    assert result["seen"] == SEEN
    assert result["doubles"] == ([2.0**-30] * 3 if held[1] == "float64" else [0.0] * 3)
    assert result["sum"] == 10
    assert result["argmax"] == [0] * 4
    column = [row[0] for row in result["weight"]]
    assert column == pytest.approx([0.8] * 3, abs=0.02)  # three steps of 0.1 towards the class
