"""Random programs over tensors of varying length: compositions of ops that have rules, drawn from a seed.

A program is a list of steps, each of which takes tensors of the kinds it names and gives one of another kind, so that it
means something for every length. Kinds: "bnd" is [batch, n, D], "nd" is [batch * n, D], "bnn" is [batch, n, n], and so on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

BATCH, WIDTH = 2, 4
Step = tuple[str, str, Callable[..., torch.Tensor]]


def _like(x: torch.Tensor, *size: int) -> torch.Tensor:
    """The same numbers on every device, not varying much."""
    count = 1
    for n in size:
        count *= n
    return (torch.arange(count, device=x.device, dtype=torch.float32) % 7 - 3).reshape(size) / 3


def _linear(x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, _like(x, WIDTH, WIDTH), _like(x, WIDTH))


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1], 2, WIDTH // 2).transpose(1, 2)


def _attention(q: torch.Tensor, k: torch.Tensor, causal: bool) -> torch.Tensor:
    out = F.scaled_dot_product_attention(_heads(q), _heads(k), _heads(k), is_causal=causal)
    return out.transpose(1, 2).reshape(q.shape)


def _causal(scores: torch.Tensor) -> torch.Tensor:
    n = scores.shape[-1]
    hidden = torch.ones(n, n, device=scores.device).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Tames numbers so that long programs stay comparable."""
    return F.layer_norm(x, (WIDTH,)) if x.shape[-1] == WIDTH else torch.tanh(x)


def _positions(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[1], device=x.device)[None, :, None] / x.shape[1]


def _first_zero(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 0] = 0
    y[:, 1:] += 1
    return y


# (kinds it takes, kind it gives, function)
STEPS: list[Step] = [
    ("bnd", "bnd", _linear),
    ("bnd", "bnd", _spread),
    ("bnd", "bnd", lambda x: F.gelu(x) + x.sigmoid() * x.abs().sqrt()),
    ("bnd", "bnd", lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=0.1)),
    ("bnd", "bnd", lambda x: x - x.mean(1, keepdim=True)),
    ("bnd", "bnd", lambda x: x / (1 + x.std(1, keepdim=True))),
    ("bnd", "bnd", lambda x: x * x.shape[1] ** -0.5),
    ("bnd", "bnd", lambda x: x.cumsum(1) / x.shape[1]),
    ("bnd", "bnd", lambda x: x.flip(1)),
    ("bnd", "bnd", lambda x: F.softmax(x, 1)),
    ("bnd", "bnd", lambda x: F.log_softmax(x, 2)),
    ("bnd", "bnd", lambda x: torch.where(x > x.amax(1, keepdim=True) * 0.5, x, -x)),
    ("bnd", "bnd", lambda x: x.masked_fill(x > 1, 0.5)),
    ("bnd", "bnd", lambda x: x + _positions(x)),
    ("bnd", "bnd", lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1]),
    ("bnd", "bnd", lambda x: torch.cat([x[:, 1:], x[:, :1]], 1)),
    ("bnd", "bnd", lambda x: torch.cat(x.chunk(2, 2)[::-1], 2)),
    ("bnd", "bnd", lambda x: torch.stack([x, -x]).amax(0)),
    ("bnd", "bnd", _first_zero),
    ("bnd", "bnd", lambda x: F.rms_norm(x, (WIDTH,))),
    ("bnd", "bnd", lambda x: x.index_select(2, torch.tensor([2, 0, 1, 3], device=x.device))),
    ("bnd", "bnd", lambda x: x.gather(2, x.detach().argsort(2))),
    ("bnd bnd", "bnd", lambda x, y: x + y),
    ("bnd bnd", "bnd", lambda x, y: x * torch.tanh(y)),
    ("bnd bnd", "bnd", lambda x, y: torch.maximum(x, y)),
    ("bnd bnd", "bnd", lambda x, y: torch.cat([x, y], 1).mean(1, keepdim=True) + x),
    ("bnd bnd", "bnd", lambda x, y: _attention(x, y, False)),
    ("bnd bnd", "bnd", lambda x, y: _attention(x, y, True)),
    ("bnd bnd", "bnn", lambda x, y: x @ y.transpose(1, 2) / 2),
    ("bnd bnd", "bnn", lambda x, y: torch.einsum("bnd,bmd->bnm", x, y) / 3),
    ("bnd", "bnn", lambda x: torch.tanh((x[:, :, None] - x[:, None]).pow(2).mean(-1))),
    ("bnd", "bd", lambda x: x.mean(1)),
    ("bnd", "bd", lambda x: x.logsumexp(1)),
    ("bnd", "bd", lambda x: x.max(1).values + x.min(1)[0]),
    ("bnd", "bd", lambda x: x[:, -1] - x[:, 0]),
    ("bnd", "bd", lambda x: x.var(1)),
    ("bnd", "bd", lambda x: F.normalize(x.transpose(1, 2) @ x, dim=1).sum(1)),
    ("bnd", "nd", lambda x: x.flatten(0, 1)),
    ("bnd", "nd", lambda x: x.transpose(0, 1).reshape(-1, WIDTH)),
    ("bnd", "bn", lambda x: x.sum(2)),
    ("bnd", "bn", lambda x: x[:, :, 1]),
    ("bnd", "bn", lambda x: x.argmax(2) + x.amin(2)),
    ("bn", "bn", lambda x: F.softmax(x, -1)),
    ("bn", "bn", lambda x: x.cumsum(-1) / x.shape[1]),
    ("bn", "bn", lambda x: x - x.logsumexp(1, keepdim=True)),
    ("bn", "bnn", lambda x: x[:, :, None] * x[:, None]),
    ("bn bnd", "bnd", lambda w, x: w[..., None] * x),
    ("bn bnd", "bd", lambda w, x: torch.einsum("bn,bnd->bd", w, x) / w.shape[1]),
    ("bn bnd", "bd", lambda w, x: x[torch.arange(BATCH, device=x.device), w.argmax(1)]),
    ("bn bnd", "bd", lambda w, x: torch.bmm(F.softmax(w, 1)[:, None], x)[:, 0]),
    ("bnn", "bnn", lambda x: F.softmax(x, -1)),
    ("bnn", "bnn", _causal),
    ("bnn", "bnn", lambda x: x.tril() + x.transpose(1, 2).triu(1)),
    ("bnn", "bnn", lambda x: x.flatten(1).log_softmax(1).reshape(x.shape)),
    ("bnn bnd", "bnd", lambda s, x: s @ x / x.shape[1]),
    ("bnn", "bn", lambda s: (s * s).mean(2)),
    ("bnn", "bn", lambda s: s.amax(1)),
    ("nd", "nd", _linear),
    ("nd", "nd", _spread),
    ("nd", "nd", lambda x: x - x.mean(0)),
    ("nd", "nd", lambda x: x.cumsum(0) / x.shape[0]),
    ("nd", "nd", lambda x: F.softmax(x, 0)),
    ("nd", "bnd", lambda x: x.view(BATCH, -1, WIDTH)),
    ("nd", "bnd", lambda x: x.reshape(-1, BATCH, WIDTH).transpose(0, 1)),
    ("nd", "d", lambda x: x.mean(0)),
    ("nd", "d", lambda x: x.std(0)),
    ("d bnd", "bnd", lambda w, x: x * w),
    ("bd bnd", "bnd", lambda w, x: x + w[:, None]),
    ("bd bnd", "bnd", lambda w, x: w.unsqueeze(1).expand_as(x) * x),
    ("bd", "bd", lambda x: torch.tanh(x)),
]

# What is minimised.
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bnd": lambda x: F.cross_entropy(x.flatten(0, 1), x.detach().flip(-1).argmax(-1).flatten()),
    "nd": lambda x: F.mse_loss(x, torch.tanh(x.detach())),
    "bnn": lambda x: F.smooth_l1_loss(x, x.detach() * 0.5),
    "bn": lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).float()),
    "bd": lambda x: x.pow(2).mean(),
    "d": lambda x: x.pow(2).sum(),
}


class Program(NamedTuple):
    """steps: (function, positions of the tensors it takes). The last tensor is the result, `kind` its kind."""

    steps: list[tuple[Callable[..., torch.Tensor], tuple[int, ...]]]
    kind: str

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The result for an input [BATCH, n, WIDTH], and the loss."""
        tensors = [x]
        for function, places in self.steps:
            tensors.append(function(*(tensors[p] for p in places)))
        return tensors[-1], LOSSES[self.kind](tensors[-1])


def draw(seed: int, length: int = 8) -> Program:
    """A program of `length` steps."""
    rng = random.Random(seed)
    kinds = ["bnd"]
    steps: list[Any] = []
    while len(steps) < length:
        takes, gives, function = rng.choice(STEPS)
        places = []
        for kind in takes.split():
            found = [i for i, k in enumerate(kinds) if k == kind]
            places.append(rng.choice(found[-2:]) if found else None)
        # The last tensor is taken, so that nothing is computed in vain.
        if None in places or len(kinds) - 1 not in places:
            if kinds[-1] == "d":
                takes, gives, function, places = STEPS[-4][0], "bnd", STEPS[-4][2], [len(kinds) - 1, 0]
            elif kinds[-1] == "bd" and rng.random() < 0.2:
                takes, gives, function, places = STEPS[-3][0], "bnd", STEPS[-3][2], [len(kinds) - 1, 0]
            else:
                continue
        steps.append((function, tuple(places)))
        kinds.append(gives)
    return Program(steps, kinds[-1])
