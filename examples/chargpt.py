"""A small GPT learns to write, character by character, from the language reference that ships with Python.

Run:
    python examples/chargpt.py                  on device xla
    python examples/chargpt.py --device=cpu     the same loop, batches and initial weights on the CPU
"""

from __future__ import annotations

import math
import pydoc_data.topics
import textwrap

import common
import torch
import torch.nn.functional as F
from torch import nn

device = "xla"
seed = 0
steps = 400  # about one pass over the text: enough for words and its look; more is better
batch_size = 16  # small: at this size of model, many noisy steps teach more than few exact ones
context = 64  # characters the model sees
width = 128
num_layers = 4
num_heads = 4
max_lr = 6e-3  # high, because the run is short and the model small
warm_up = 20  # steps to reach it: Adam's first estimates are noisy
sample_length = 400
temperature = 0.7  # below 1: likelier characters, fewer invented words
record = ""  # where to write the run as JSON, if anywhere
common.override(globals())

text = "\n".join(pydoc_data.topics.topics.values())
alphabet = sorted(set(text))
codes = {c: i for i, c in enumerate(alphabet)}
data = torch.tensor([codes[c] for c in text])  # (characters,)
held_out = len(data) // 10
train_windows = data[:-held_out].unfold(0, context + 1, 1)  # (W, T + 1): every stretch of the text, as views
test_windows = data[-held_out:].unfold(0, context + 1, context)[: 4 * batch_size]


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, C) -> (B, T, C)
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, num_heads, -1))  # (B, T, 3, H, C / H)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, H, T, C / H) each
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, C / H)
        x = x + self.merge(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    """Logits of the next character after each position."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(alphabet), width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(alphabet), bias=False)
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.1)  # less learns slowly; with more, the tied head starts badly
        self.head.weight = self.characters.weight
        self.register_buffer("positions", torch.arange(context))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T) -> (B, T, V)
        return self.head(self.norm(self.blocks(self.characters(x) + self.places(self.positions))))


def loss_of(windows: torch.Tensor) -> torch.Tensor:
    """Mean loss of predicting each character of (B, T + 1) windows from those before it."""
    windows = windows.to(device)
    logits = model(windows[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def schedule(step: int) -> float:
    """Share of the highest learning rate: a linear warm-up, then a cosine down to a tenth."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))


torch.manual_seed(seed)
model = CharGPT().to(device)  # the weights are drawn on the CPU, so they are the same on every device
optimizer = torch.optim.AdamW(model.parameters(), max_lr, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
order = torch.Generator().manual_seed(seed)  # of the batches: the same on every device

run = common.Run("chargpt", device, steps)
for _ in range(steps):
    batch = train_windows[torch.randint(len(train_windows), (batch_size,), generator=order)]  # (B, T + 1)
    loss = loss_of(batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    run.step(loss.item())

model.eval()
with torch.no_grad():
    test_loss = sum(loss_of(windows).item() for windows in test_windows.split(batch_size)) / 4
    window = test_windows[:1, :context].to(device)  # (1, T): a prompt from the held-out text
    written = ""
    for _ in range(sample_length):  # the window keeps its size while it slides, so one program serves every character
        chances = F.softmax(model(window)[:, -1] / temperature, dim=-1)  # (1, V)
        following = torch.multinomial(chances, 1)  # (1, 1)
        window = torch.cat([window[:, 1:], following], dim=1)
        written += alphabet[following.item()]
run.finish(record, test_loss=test_loss)
print(textwrap.indent(written, "    | ", lambda line: True))
