"""The models that are timed, in plain PyTorch: the same code runs under every contender that takes PyTorch code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A model with a batch and a loss; `loss(model, batch)` is what a training step differentiates.

    trains: if not, a step is `loss` alone, without gradients, which changes buffers of the model (a decoding loop).
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], Tensors]
    loss: Callable[[nn.Module, Tensors], torch.Tensor]
    trains: bool = True


def _mean_square(model: nn.Module, batch: Tensors) -> torch.Tensor:
    return model(batch[0]).pow(2).mean()


def _classes(model: nn.Module, batch: Tensors) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _next_token(model: nn.Module, batch: Tensors) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


class ResBlock(nn.Module):
    """The basic block of ResNet-18 (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        widths = [64, 64, 128, 256, 512]
        self.blocks = nn.Sequential(
            *(
                ResBlock(w if i else before, w, 2 if i == 0 and w > 64 else 1)
                for before, w in pairwise(widths)
                for i in range(2)
            )
        )
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


class Attention(nn.Module):
    """A transformer block, normalised first (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """GPT if causal, else the encoder of BERT; tokens in, logits out, embeddings tied."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int, causal: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Attention(width, heads, causal) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.size(1), device=x.device))
        return self.head(self.norm(self.blocks(x)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 128, num_layers=2, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Decoder(nn.Module):
    """Takes one token a call, keeps keys and values in buffers of fixed size, and returns the next token."""

    def __init__(self, layers: int = 6, width: int = 256, heads: int = 4, vocabulary: int = 256, context: int = 256):
        super().__init__()
        self.model = Transformer(layers, width, heads, vocabulary, context, causal=True)
        shape = (layers, 1, heads, context, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("token", torch.zeros(1, dtype=torch.int64))

    def forward(self) -> torch.Tensor:
        model, context = self.model, self.keys.size(3)
        x = model.tokens(self.token) + model.positions(self.position)  # [1, width]
        mask = torch.arange(context, device=x.device) <= self.position
        for number, block in enumerate(model.blocks):
            q, k, v = (t.view(1, block.heads, 1, -1) for t in block.qkv(block.norm1(x)).chunk(3, -1))
            keys, values = self.keys[number], self.values[number]
            keys.index_copy_(2, self.position, k)
            values.index_copy_(2, self.position, v)
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None])
            x = x + block.out(attended.flatten(1))
            x = x + block.down(F.gelu(block.up(block.norm2(x)), approximate="tanh"))
        logits = model.head(model.norm(x))
        self.token.copy_(logits.argmax(-1))
        self.position.copy_((self.position + 1) % context)
        return logits.max()


def _tokens(batch: int, time: int, vocabulary: int) -> Tensors:
    return torch.randint(0, vocabulary, (batch, time)), torch.randint(0, vocabulary, (batch, time))


CASES: dict[str, Case] = {
    "mlp20": Case(
        lambda: nn.Sequential(*(nn.Linear(256, 256) for _ in range(20))), lambda: (torch.randn(32, 256),), _mean_square
    ),
    "many_small": Case(
        lambda: nn.Sequential(*(m for _ in range(100) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()))),
        lambda: (torch.randn(32, 8),),
        _mean_square,
    ),
    "resnet18": Case(ResNet18, lambda: (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))), _classes),
    "gpt": Case(lambda: Transformer(6, 256, 4, 256, 128, True), lambda: _tokens(4, 128, 256), _next_token),
    "bert": Case(lambda: Transformer(4, 256, 4, 256, 64, False), lambda: _tokens(8, 64, 256), _next_token),
    "lstm": Case(Lstm, lambda: (torch.randn(16, 64, 64), torch.randint(0, 10, (16,))), _classes),
    "decode": Case(Decoder, lambda: (), lambda model, batch: model(), trains=False),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
