"""RNN, GRU and LSTM on device xla: one op for each layer and direction. See Note [Recurrent layers].

What the ops do not do (second derivatives, forward-mode derivatives, torch.func transforms) and what is an error goes
through PyTorch's composition of small ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.functional import linear

from torch_xla._src.device import autocast
from torch_xla._src.graph.tensor import snapshot

_library = torch.library.Library("aten", "IMPL", "AutogradXLA")
_functionalize = torch.library.Library("aten", "IMPL", "Functionalize")
_aten = torch.ops.aten
_ops = torch.ops.torch_xla
_MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")


class _Layer(torch.autograd.Function):
    """A layer in one direction, as `torch_xla.rnn_layer`: returns (output, last h, last c)."""

    @staticmethod
    def forward(ctx: Any, mode: str, reverse: bool, save: bool, mask: Any, *inputs: Any) -> Any:
        y, h, c, saved = _ops.rnn_layer(*inputs, mask, mode, reverse, save)
        ctx.mode, ctx.reverse = mode, reverse
        ctx.save_for_backward(mask, snapshot(y), saved, *inputs)  # the user may write to `y`
        ctx.set_materialize_grads(False)
        return y, h, c

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        mask, y, saved, *inputs = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # create_graph=True
            found = _differentiable(inputs, mask, ctx.mode, ctx.reverse, grads, wanted)
        else:
            grad_y, grad_h, grad_c = grads
            grad_c = grad_c if ctx.mode == "lstm" else None
            found = _ops.rnn_layer_backward(*inputs, mask, y, saved, grad_y, grad_h, grad_c, ctx.mode, ctx.reverse)
        return None, None, None, None, *(g if needed else None for g, needed in zip(found, wanted, strict=True))


def _differentiable(
    inputs: Sequence[Any], mask: Any, mode: str, reverse: bool, grads: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """Gradients that can be differentiated again: those of a composition of small ops."""
    outputs = _by_steps(inputs, mask, mode, reverse)
    chosen = [x for x, needed in zip(inputs, wanted) if needed]
    pairs = [(out, grad) for out, grad in zip(outputs, grads) if out is not None and grad is not None]
    found = iter(torch.autograd.grad([out for out, _ in pairs], chosen, [grad for _, grad in pairs], create_graph=True))
    return [next(found) if needed else None for needed in wanted]


def _by_steps(inputs: Sequence[Any], mask: Any, mode: str, reverse: bool) -> tuple[Any, Any, Any]:
    x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr = inputs
    outputs = []
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        gates = linear(x[t], w_ih, b_ih), linear(h, w_hh, b_hh)
        new_h, new_c = _cell(mode, *gates, h, c)
        new_h = new_h if w_hr is None else linear(new_h, w_hr)
        valid = None if mask is None else mask[t, :, None]
        h = new_h if valid is None else torch.where(valid, new_h, h)
        c = new_c if valid is None or new_c is None else torch.where(valid, new_c, c)
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h, c


def _cell(mode: str, gx: torch.Tensor, gh: torch.Tensor, h: torch.Tensor, c: Any) -> tuple[torch.Tensor, Any]:
    if mode == "gru":
        (rx, zx, nx), (rh, zh, nh) = gx.chunk(3, 1), gh.chunk(3, 1)
        z = torch.sigmoid(zx + zh)
        return (1 - z) * torch.tanh(nx + torch.sigmoid(rx + rh) * nh) + z * h, None
    if mode != "lstm":
        return (torch.tanh if mode == "rnn_tanh" else torch.relu)(gx + gh), None
    i, f, g, o = (gx + gh).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


# ---- networks of several layers ---------------------------------------------------------------------------------------


class _Network:
    """Arguments of one of PyTorch's recurrent ops."""

    def __init__(
        self, mode: str, hx: Any, params: Sequence[torch.Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool,
    ) -> None:  # fmt: skip
        from torch_xla._src.ops.recurrent import GATES  # defines the ops; imports JAX

        self.mode, self.num_layers, self.dropout, self.train = mode, num_layers, dropout, train
        self.gates = GATES[mode]
        self.states = list(hx) if mode == "lstm" else [hx]
        self.directions = 2 if bidirectional else 1
        per_cell, self.rest = divmod(len(params), max(num_layers * self.directions, 1))
        self.has_biases, self.projects = has_biases, per_cell == (5 if has_biases else 3)
        self.cells = [list(params[i : i + per_cell]) for i in range(0, len(params), max(per_cell, 1))]

    def fits(self, x: torch.Tensor) -> bool:
        """Whether all arguments are as they should be; if not, PyTorch's composition says what is wrong."""
        cells = self.num_layers * self.directions
        expected = (4 if self.has_biases else 2) + self.projects
        tensors = [x, *self.states, *(p for cell in self.cells for p in cell)]
        if (
            len(self.cells) != cells
            or self.rest
            or any(len(cell) != expected for cell in self.cells)
            or x.ndim != 3
            or not x.shape[0]
            or len(self.states) != (2 if self.mode == "lstm" else 1)
            or any(t.device != x.device or t.dtype != x.dtype for t in tensors)
            or not x.is_floating_point()
        ):
            return False
        hidden = self.cells[0][0].shape[0] // self.gates
        out = self.cells[0][-1].shape[0] if self.projects else hidden
        widths = [x.shape[2]] + [out * self.directions] * (self.num_layers - 1)
        shapes = [(cells, x.shape[1], width) for width in (out, hidden)]
        return all(tuple(s.shape) == shape for s, shape in zip(self.states, shapes)) and all(
            [tuple(p.shape) for p in cell] == self._shapes(widths[i // self.directions], hidden, out)
            for i, cell in enumerate(self.cells)
        )

    def _shapes(self, width: int, hidden: int, out: int) -> list[tuple[int, ...]]:
        gates = self.gates * hidden
        biases = [(gates,), (gates,)] if self.has_biases else []
        return [(gates, width), (gates, out), *biases, *([(out, hidden)] if self.projects else [])]

    def cast(self, dtype: torch.dtype) -> None:
        """Autocast: the whole network computes in one dtype, as it does on CUDA."""
        self.states = [t.to(dtype) for t in self.states]
        self.cells = [[autocast.cast(p, dtype) for p in cell] for cell in self.cells]

    def __call__(self, x: torch.Tensor, mask: Any) -> tuple[torch.Tensor, ...]:
        """x [time, batch, input] -> output [time, batch, directions * out] and the last states."""
        last: list[tuple[Any, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.directions):
                y, *states = self._layer(x, mask, layer * self.directions + direction, direction == 1)
                outputs.append(y)
                last.append(tuple(states))
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if self.dropout and self.train and layer < self.num_layers - 1:
                x = torch.dropout(x, self.dropout, True)
        return x, *(torch.stack(states) for states in zip(*last))

    def _layer(self, x: torch.Tensor, mask: Any, number: int, reverse: bool) -> Any:
        states: list[Any] = [s[number] for s in self.states]
        cell = iter(self.cells[number])
        weights = [next(cell), next(cell), *((next(cell), next(cell)) if self.has_biases else (None, None))]
        inputs = (x, *states, *([None] if len(states) == 1 else []), *weights, next(cell, None))
        needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
        if needed:
            found = _Layer.apply(self.mode, reverse, True, mask, *inputs)
        else:
            found = _ops.rnn_layer(*inputs, mask, self.mode, reverse, False)
        return found[: 1 + len(states)]


def _composed() -> bool:
    """Whether derivatives are wanted that the ops do not have."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def _compose(op: Any, *args: Any) -> Any:
    """PyTorch's composition in C++. `op.decompose` takes one in Python, with errors of its own."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _of_batches(mode: str) -> Any:
    op = getattr(_aten, mode).input

    def kernel(
        x: torch.Tensor, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        network = _Network(mode, hx, params, has_biases, num_layers, dropout, train, bidirectional)
        by_time = x.transpose(0, 1) if batch_first and x.ndim == 3 else x
        if not x.is_xla or _composed() or not network.fits(by_time):
            return _compose(op, x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        if torch.is_autocast_enabled("xla"):
            by_time = by_time.to(torch.get_autocast_dtype("xla"))
            network.cast(by_time.dtype)
        y, *states = network(by_time, None)
        return (y.transpose(0, 1) if batch_first else y), *states

    return kernel


def _of_packed(mode: str) -> Any:
    op = getattr(_aten, mode).data

    def kernel(
        data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: Any, has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        network = _Network(mode, hx, params, has_biases, num_layers, dropout, train, bidirectional)
        whole = batch_sizes.device.type == "cpu" and batch_sizes.numel() and data.ndim == 2
        if whole and data.is_xla and not _composed():
            rows, mask = _padded(batch_sizes)
            where = rows.to(data.device)
            x = data.index_select(0, where.view(-1)).view(*rows.shape, -1)
            if network.fits(x):
                if torch.is_autocast_enabled("xla"):
                    x = x.to(torch.get_autocast_dtype("xla"))
                    network.cast(x.dtype)
                y, *states = network(x, mask.to(data.device))
                kept = mask.view(-1).nonzero()[:, 0].to(data.device)
                return y.flatten(0, 1).index_select(0, kept), *states
        return _compose(op, data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)

    return kernel


def _padded(batch_sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[time, batch], on the host: the row of packed data for each step of each sequence, and whether it has one."""
    numbers = torch.arange(int(batch_sizes[0]))
    mask = numbers < batch_sizes[:, None]
    starts = batch_sizes.cumsum(0) - batch_sizes
    return torch.where(mask, starts[:, None] + numbers, 0), mask


def install() -> None:
    """Registers the kernels, under Functionalize too: inference mode has no autograd key."""
    for mode in _MODES:
        for library in (_library, _functionalize):
            library.impl(f"{mode}.input", _of_batches(mode))
            library.impl(f"{mode}.data", _of_packed(mode))
