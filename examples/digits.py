"""A small convolutional network learns the handwritten digits that ship with scikit-learn.

Run:
    python examples/digits.py                   on device xla
    python examples/digits.py --device=cpu      the same loop, batches and initial weights on the CPU
"""

from __future__ import annotations

import common
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "xla"
seed = 0
epochs = 12  # accuracy stops rising at about ten
batch_size = 64
max_lr = 5e-3  # at the top of the one-cycle schedule
width = 32  # channels of the first convolution
record = ""  # where to write the run as JSON, if anywhere
common.override(globals())

images, labels = load_digits(return_X_y=True)
split = train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)
x_train, x_test = (torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 for x in split[:2])  # (N, 1, 8, 8)
y_train, y_test = (torch.tensor(y) for y in split[2:])  # (N,)
# The order of the batches comes from a generator of its own, so that every device sees the same ones. The last batch of
# an epoch is smaller: a second program, compiled once.
order = torch.Generator().manual_seed(seed)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size, shuffle=True, generator=order)

torch.manual_seed(seed)
model = nn.Sequential(
    nn.Conv2d(1, width, 3, padding=1, bias=False),  # (B, width, 8, 8)
    nn.BatchNorm2d(width),
    nn.ReLU(),
    nn.MaxPool2d(2),  # (B, width, 4, 4)
    nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),  # (B, 2 width, 4, 4)
    nn.BatchNorm2d(2 * width),
    nn.ReLU(),
    nn.MaxPool2d(2),  # (B, 2 width, 2, 2)
    nn.Flatten(),
    nn.Linear(8 * width, 10),  # (B, 10)
).to(device)  # the weights are drawn on the CPU, so they are the same on every device
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=epochs * len(loader))
x_test, y_test = x_test.to(device), y_test.to(device)


@torch.no_grad()
def evaluate() -> tuple[float, float]:
    """Loss and accuracy on the test set."""
    model.eval()
    logits = model(x_test)
    loss = F.cross_entropy(logits, y_test)
    accuracy = (logits.argmax(1) == y_test).float().mean()
    model.train()
    return loss.item(), accuracy.item()


run = common.Run("digits", device, epochs * len(loader))
for _ in range(epochs):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.step(loss.item())
    test_loss, test_accuracy = evaluate()
    run.resume()
run.finish(record, test_loss=test_loss, test_accuracy=test_accuracy)
