"""Memory of a training loop: nothing grows, and a step needs no more than hand-written JAX does."""

from __future__ import annotations

import gc

import jax
import pytest
import torch
from torch import nn

import torch_xla
from benchmarks import by_hand, models
from torch_xla._src.compile import donation
from torch_xla._src.compile.program import bytes_needed
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.value import Value


def _counts() -> dict[str, int]:
    torch_xla.sync(wait=True)
    gc.collect()
    objects = gc.get_objects()
    return {
        "device buffers": len(jax.live_arrays()),
        "values": sum(type(x) is Value for x in objects),
        "tensors": sum(issubclass(type(x), torch.Tensor) for x in objects),
        "rows": RECORDER.rebuilt,
        "objects": len(objects),
    }


@pytest.mark.parametrize("full_graph", [False, True], ids=["recorded", "frozen"])
def test_nothing_grows_over_a_thousand_steps(full_graph):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def train(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = torch_xla.compile(train, full_graph=True) if full_graph else train
    counted = []
    for number in range(1_100):
        loss = step(torch.randn(3, 4).to("xla"), torch.randint(0, 2, (3,)).to("xla"))
        schedule.step()
        if number in (99, 1_099):
            loss.item()
            counted.append(_counts())
    before, after = counted
    assert after.pop("objects") - before.pop("objects") < 200  # samples of metrics
    assert after == before


def _bytes_of_step(name: str, optimizer: str) -> int:
    """Bytes of the program of a training step: arguments, results and temporaries, what is reused counted once."""
    torch.manual_seed(0)
    case = models.CASES[name]
    model, batch = case.model().to("xla"), [t.to("xla") for t in case.batch()]
    made = models.OPTIMIZERS[optimizer](model.parameters())
    for _ in range(3):
        with torch_xla.step():
            case.loss(model, batch).backward()
            made.step()
            made.zero_grad()  # as in JAX, gradients do not outlive the step
    assert donation._last is not None
    return donation._last.program.bytes_needed


@pytest.mark.parametrize(("name", "optimizer"), [("mlp20", "sgd"), ("mlp20", "adamw"), ("gpt", "sgd")])
def test_a_step_takes_no_more_than_hand_written_jax(name, optimizer):
    trainer = by_hand.Trainer(name, optimizer)
    theirs = bytes_needed(trainer.function.lower(*trainer.arguments()).compile())
    assert _bytes_of_step(name, optimizer) <= 1.1 * theirs
