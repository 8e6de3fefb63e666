"""Training on device xla follows the CPU: same weights, same batches, same loss curve."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.models import MODELS, OPTIMIZERS

STEPS = 30


def train(model, make_optimizer, batches, loss_function, device):
    """Loss of every step of a plain loop."""
    model = model.to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for step in range(STEPS):
        inputs, target = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = loss_function(model(inputs.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_loss_curve_follows_the_cpu(name, optimizer):
    kind, make_batch, loss_function = MODELS[name]
    torch.manual_seed(0)
    model = kind()
    batches = [make_batch() for _ in range(3)]
    expected = train(copy.deepcopy(model), OPTIMIZERS[optimizer], batches, loss_function, "cpu")
    actual = train(model, OPTIMIZERS[optimizer], batches, loss_function, "xla")
    assert expected[-3:].min() < expected[:3].max()  # it learns, so the comparison says something
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)
