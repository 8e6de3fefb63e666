"""Functions that the Python text of a recording is given along, for ops that PyTorch has no kernel for on the CPU.

They are copied as they stand, so they use torch alone, and each other; on device xla they call the op itself.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import torch


def linear_backward(x, gradient, weight, mask):
    rows = gradient.reshape(-1, gradient.shape[-1])
    return [
        gradient @ weight if mask[0] else None,
        rows.t() @ x.reshape(-1, x.shape[-1]) if mask[1] else None,
        rows.sum(0) if mask[2] else None,
    ]


def attend(query, key, value, bias, dropout_p, is_causal, scale, seed):
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores.masked_fill(~bias, float("-inf")) if bias.dtype is torch.bool else scores + bias
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    weights = scores.softmax(-1).masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    if dropout_p:
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(int(seed)))
        weights = weights * (drawn >= dropout_p) / (1 - dropout_p)
    return (weights.to(value.dtype) @ value), scores.logsumexp(-1)


def attention(query, key, value, bias=None, dropout_p=0.0, is_causal=False, debug=False, *, scale=None):
    if query.device.type == "xla":
        op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
        return op(query, key, value, bias, dropout_p, is_causal, debug, scale=scale)
    seed, zero = torch.randint(2**62, ()), torch.zeros((), dtype=torch.int64)
    out, logsumexp = attend(query, key, value, bias, dropout_p, is_causal, scale, seed)
    return out, logsumexp.float(), None, None, query.shape[-2], key.shape[-2], seed, zero, None


def attention_backward(gradient, query, key, value, bias, mask, out, logsumexp, *rest, scale=None):
    if query.device.type == "xla":
        op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
        return op(gradient, query, key, value, bias, mask, out, logsumexp, *rest, scale=scale)
    dropout_p, is_causal, seed = rest[4:7]
    inputs = [None if x is None else x.detach() for x in (query, key, value, bias)]
    wanted = [x.requires_grad_() for x, chosen in zip(inputs, mask, strict=True) if chosen]
    with torch.enable_grad():
        out = attend(*inputs, dropout_p, is_causal, scale, seed)[0]
        found = iter(torch.autograd.grad(out, wanted, gradient))
    return [next(found) if chosen else None for chosen in mask]


def rnn_cell(mode, gx, gh, h, c):
    if mode == "lstm":
        i, f, g, o = (gx + gh).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if mode == "gru":
        (rx, zx, nx), (rh, zh, nh) = gx.chunk(3, -1), gh.chunk(3, -1)
        z = (zx + zh).sigmoid()
        return (1 - z) * (nx + (rx + rh).sigmoid() * nh).tanh() + z * h, c
    return (gx + gh).tanh() if mode == "rnn_tanh" else (gx + gh).relu(), c


def rnn_loop(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, mask, mode, reverse):
    states = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        gx, gh = torch.nn.functional.linear(x[t], w_ih, b_ih), torch.nn.functional.linear(h, w_hh, b_hh)
        new, cell = rnn_cell(mode, gx, gh, h, c)
        new = new if w_hr is None else new @ w_hr.t()
        h = new if mask is None else torch.where(mask[t][:, None], new, h)
        c = cell if mask is None or c is None else torch.where(mask[t][:, None], cell, c)
        states[t] = h
    return torch.stack(states), h, c


def rnn_layer(*args):
    if args[0].device.type == "xla":
        return torch.ops.torch_xla.rnn_layer.default(*args)
    y, h, c = rnn_loop(*args[:-1])
    empty = y.new_empty(0)
    return y, h, empty if c is None else c, empty


def rnn_layer_backward(*args):
    if args[0].device.type == "xla":
        return torch.ops.torch_xla.rnn_layer_backward.default(*args)
    inputs = [None if x is None else x.detach().requires_grad_() for x in args[:8]]
    mask, (mode, reverse) = args[8], args[14:]
    with torch.enable_grad():
        results = rnn_loop(*inputs, mask, mode, reverse)
        given = [(r, g) for r, g in zip(results, args[11:14], strict=True) if r is not None and g is not None]
        wanted = [x for x in inputs if x is not None]
        found = iter(torch.autograd.grad([r for r, _ in given], wanted, [g for _, g in given], materialize_grads=True))
    return [args[0].new_empty(0) if x is None else next(found) for x in inputs]
