"""Small models of the kinds that people train, with a batch of inputs and a loss each."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, 16] -> [batch, 4]
        return self.layers(x)


class Block(nn.Module):
    """The basic block of ResNet-18 (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18's shape at a quarter of its depth and a sixteenth of its width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2), Block(8, 16, 2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, 3, 16, 16] -> [batch, 4]
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(11, 8),
            nn.LSTM(8, 12, num_layers=2, batch_first=True),
            nn.Linear(12, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, time] -> [batch, 4]
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, time, 16] -> [batch, 4]
        return self.head(self.encoder(x).mean(1))


class Gpt(nn.Module):
    """A decoder with causal attention and tied input and output embeddings (Radford et al. 2019)."""

    def __init__(
        self, vocabulary: int = 11, width: int = 16, heads: int = 2, layers: int = 2, context: int = 12
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, time] -> [batch, time, vocabulary]
        x = self.tokens(x) + self.positions(torch.arange(x.size(1), device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def checkpointed(model: Gpt, kind: str) -> Gpt:
    """The model, with each block under gradient checkpointing; `kind` is a key of CHECKPOINTS."""
    for block in model.blocks:
        block.forward = functools.partial(CHECKPOINTS[kind], block.forward)  # type: ignore[method-assign]  # wraps it on purpose
    return model


_products = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
CHECKPOINTS: dict[str, Callable[..., torch.Tensor]] = {
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "not reentrant": functools.partial(checkpoint, use_reentrant=False),
    "closure": lambda block, x: checkpoint(lambda: block(x), use_reentrant=False),
    "keyword": lambda block, x: checkpoint(block, x=x, use_reentrant=False),
    "selective": functools.partial(
        checkpoint, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(list(_products))
    ),
}


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def _classes() -> torch.Tensor:
    return torch.randint(0, 4, (8,))


def _language_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


MODELS: dict[
    str, tuple[type[nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]], Callable[..., torch.Tensor]]
] = {
    "mlp": (Mlp, lambda: (torch.randn(8, 16), _classes()), F.cross_entropy),
    "resnet": (ResNet, lambda: (torch.randn(8, 3, 16, 16), _classes()), F.cross_entropy),
    "lstm": (Lstm, lambda: (torch.randint(0, 11, (8, 5)), _classes()), F.cross_entropy),
    "encoder": (Encoder, lambda: (torch.randn(8, 6, 16), _classes()), F.cross_entropy),
    "gpt": (Gpt, lambda: (torch.randint(0, 11, (4, 12)), torch.randint(0, 11, (4, 12))), _language_loss),
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=3e-3, fused=True),
}
