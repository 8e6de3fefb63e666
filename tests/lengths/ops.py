"""Functions of a tensor [2, n, 4] whose dim 1 is marked: those that few programs compute, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Function = Callable[[torch.Tensor], torch.Tensor]


def _classes(x: torch.Tensor) -> torch.Tensor:
    return x.detach().argmax(-1)


def _reductions(x: torch.Tensor) -> torch.Tensor:
    found = [x.sum((1, 2)), x.var(1).sum(1), x.norm(p=1, dim=1).sum(1), x.amax((1, 2)), x.logsumexp((1, 2))]
    return torch.stack(found).sum(1) + x.std() + x.max() - x.min() + x.norm() + x.mean()


def _places(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(0, 1)
    return torch.stack([x.argmax(1), x.argmin(1), x.max(1).indices, flat.argmax(0).expand(2, 4)]) + x.argmax()


def _counts(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).sum(1) + (x > 1).any(1).int() + (x > -2).all(1).int() + torch.count_nonzero(x > 0, 1)


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 0] = 0
    y[:, 1:] += 1
    y[:, :, 1] = 3
    return y


def _masked_attention(x: torch.Tensor) -> torch.Tensor:
    heads = (x.view(x.shape[0], -1, 2, 2).transpose(1, 2),) * 3
    mask = torch.ones(x.shape[1], x.shape[1], device=x.device).tril().bool()
    return F.scaled_dot_product_attention(*heads, attn_mask=mask)


def _mask_of_transformer(x: torch.Tensor) -> torch.Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
    return F.softmax(x @ x.transpose(1, 2) + mask, -1) @ x


def _elementwise_losses(x: torch.Tensor) -> torch.Tensor:
    target = x.detach() * 0.5 + 1
    sign = (x.detach() > 0).float()
    return (
        F.mse_loss(x, target)
        + F.l1_loss(x, target)
        + F.huber_loss(x, target, reduction="sum")
        + F.soft_margin_loss(x, 2 * sign - 1)
        + F.binary_cross_entropy(x.sigmoid(), sign)
        + F.mse_loss(x, target, reduction="none").amax()
    )


def _class_losses(x: torch.Tensor) -> torch.Tensor:
    flat, classes = x.flatten(0, 1), _classes(x)
    weight = torch.arange(1.0, 5, device=x.device)
    return (
        F.cross_entropy(flat, classes.flatten(), label_smoothing=0.1)
        + F.cross_entropy(flat, classes.flatten(), weight=weight, ignore_index=1)
        + F.cross_entropy(x.transpose(1, 2), classes)
        + F.cross_entropy(x.transpose(1, 2), classes, reduction="none").sum(1).amax()
        + F.cross_entropy(flat, x.detach().softmax(-1).flatten(0, 1))
        + F.kl_div(F.log_softmax(x, -1), F.softmax(x.detach() * 2, -1), reduction="batchmean")
    )


def _joined(x: torch.Tensor) -> torch.Tensor:
    first = torch.ones(x.shape[0], 1, 4, device=x.device)
    return torch.cat([first, x, first * 2, x], 1).cumsum(1)


def _indexed(x: torch.Tensor) -> torch.Tensor:
    batch = torch.arange(x.shape[0], device=x.device)
    last = torch.full((x.shape[0],), x.shape[1] - 1, device=x.device)
    two = torch.tensor([-1, 0], device=x.device)
    return x[batch, last] + x[:, two].sum(1) + x.index_select(1, two + 1).sum(1)


def _scattered(x: torch.Tensor) -> torch.Tensor:
    index = (x.detach() > 0).long()
    zeros = torch.zeros(x.shape[0], x.shape[1], 6, device=x.device)
    return zeros.scatter(2, index, x) + zeros.scatter_add(2, index, x)


CASES: dict[str, Function] = {
    "reductions": _reductions,
    "places": _places,
    "counts": _counts,
    "prod": lambda x: (x * 0.3 + 1).prod(1),
    "cumprod and logcumsumexp": lambda x: x.cumprod(1) + x.logcumsumexp(1),
    "softmax": lambda x: F.softmax(x, 1) + F.log_softmax(x, -1) + F.softmax(x.flatten(1), 1).view(x.shape),
    "normalize": lambda x: F.normalize(x, dim=1) + F.cosine_similarity(x, x.detach() * 2 + 1, dim=1)[:, None],
    "products": lambda x: torch.einsum("bnd,bne->de", x, x) + (x.flatten(0, 1).t() @ x.flatten(0, 1)),
    "attention by hand": _mask_of_transformer,
    "attention with a mask": _masked_attention,
    "elementwise losses": _elementwise_losses,
    "class losses": _class_losses,
    "views": lambda x: x.view(2, -1, 2, 2).permute(0, 2, 1, 3).reshape(2, 2, -1).transpose(1, 2).flatten(0, 1),
    "padding moves": lambda x: x.transpose(1, 2).reshape(2, -1).cumsum(1).reshape(2, 4, -1) / x.shape[1],
    "slices": lambda x: (x[:, 1:] - x[:, :-1]).flip(1) + x[:, -1:] * x[:, :1],
    "few of many": lambda x: x[:, -2:] + x[:, :2],
    "joined": _joined,
    "padded": lambda x: F.pad(x, (0, 0, 1, 2), value=7.0) + F.pad(x, (0, 0, 0, 3)),
    "padded to a fixed size": lambda x: F.pad(x, (0, 0, 0, 40 - x.shape[1])),
    "repeated": lambda x: x.repeat(2, 1, 2).sum(1) + x.unsqueeze(0).expand(2, -1, -1, -1).sum((0, 2)).repeat(2, 2),
    "ranges": lambda x: x * torch.arange(x.shape[1] - 1, -1, -1, device=x.device)[None, :, None] / (x.shape[1] // 2),
    "layer norm": lambda x: F.layer_norm(x, (4,)) + F.rms_norm(x, (4,)) + F.glu(torch.cat([x, x], 2), -1),
    "along other dims": lambda x: x.sort(2)[0] + x.topk(2, 2)[0].sum(2, keepdim=True) + x.roll(1, 2),
    "indexed": _indexed,
    "scattered": _scattered,
    "written in place": _written,
    "one hot": lambda x: F.one_hot(_classes(x), 4).float().mean(1) + x.mean(1),
    "embedding": lambda x: (
        F.embedding(_classes(x), torch.ones(4, 3, device=x.device).cumsum(0)).mean(1).sum() + x.mean()
    ),
    "scatter of a maximum": lambda x: x.max(1).values + x.transpose(1, 2).min(-1)[0],
}

# Function, and the op that the error names.
REFUSED: dict[str, tuple[Function, str]] = {
    "sort": (lambda x: x.sort(1)[0], "aten::sort"),
    "every second": (lambda x: x[:, ::2] * 1, "aten::slice_copy"),
    "convolution": (lambda x: F.conv1d(x.transpose(1, 2), torch.ones(3, 4, 3, device=x.device)), "aten::convolution"),
    "batch norm": (
        lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True),
        "aten::_native_batch_norm_legit",
    ),
    "linspace": (lambda x: x * torch.linspace(0, 1, x.shape[1], device=x.device)[None, :, None], "aten::linspace"),
    "diagonal": (lambda x: torch.diagonal(x @ x.transpose(1, 2), dim1=1, dim2=2) * 1, "aten::diagonal_copy"),
}
