"""nn.RNN, GRU and LSTM: results and gradients of the CPU, in few rows however long the sequence."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.same import assert_same, raised, same
from torch_xla._src.graph.recorder import RECORDER

KINDS = {
    "lstm": lambda **options: nn.LSTM(3, 4, **options),
    "gru": lambda **options: nn.GRU(3, 4, **options),
    "tanh": lambda **options: nn.RNN(3, 4, **options),
    "relu": lambda **options: nn.RNN(3, 4, nonlinearity="relu", **options),
    "projected": lambda **options: nn.LSTM(3, 4, proj_size=2, **options),
}
OPTIONS = {
    "plain": {},
    "deep": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"num_layers": 2, "bias": False},
}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def _states(model, batch):
    cells = model.num_layers * (2 if model.bidirectional else 1)
    shapes = [(cells, batch, model.proj_size or model.hidden_size), (cells, batch, model.hidden_size)]
    states = [torch.randn(shape) for shape in shapes]
    return states if isinstance(model, nn.LSTM) else states[:1]


def _run(model, device, x, states, whole=True):
    """Outputs and all gradients; `whole`: of the last states, too."""
    model = copy.deepcopy(model).to(device)
    x, *states = (t.detach().to(device).requires_grad_() for t in (x, *states))
    hx = tuple(states) if len(states) == 2 else states[0] if states else None
    y, last = model(x, hx)
    last = last if isinstance(last, tuple) else (last,)
    weights = torch.linspace(0.1, 1, y.numel(), dtype=torch.float64).to(device, y.dtype).view(y.shape)
    loss = (y * weights).sum() + (sum(t.square().sum() for t in last) if whole else 0)
    loss.backward()
    return y, *last, x.grad, *(t.grad for t in states), *(p.grad for p in model.parameters())


@each_kind
@each_option
def test_as_on_the_cpu(make, options):
    model, x = make(**options), torch.randn(5, 2, 3)
    states = _states(model, 5 if model.batch_first else 2)
    same(lambda device: _run(model, device, x, states), 1e-5)
    same(lambda device: _run(model, device, x, (), whole=False), 1e-5)


@each_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(make, dtype):
    model, x = make(bidirectional=True).to(dtype), torch.randn(4, 2, 3, dtype=dtype)
    want = _run(copy.deepcopy(model).double(), "cpu", x.double(), ())
    got = _run(model, "xla", x, ())
    assert all(t.dtype is dtype for t in got if t is not None)
    for ours, exact in zip(got, want, strict=True):
        assert_same(ours.cpu().double(), exact, 1e-12 if dtype is torch.float64 else 0.1)


@each_kind
@each_option
def test_packed_sequences(make, options):
    """Sequences of different lengths: the reverse direction starts at the end of each."""
    model = make(**options | {"batch_first": True})
    x, lengths = torch.randn(4, 6, 3), torch.tensor([3, 6, 1, 4])

    def run(device):
        ours = copy.deepcopy(model).to(device)
        leaf = x.to(device).requires_grad_()
        y, last = ours(pack_padded_sequence(leaf, lengths, batch_first=True, enforce_sorted=False))
        padded, _ = pad_packed_sequence(y, batch_first=True)
        last = last if isinstance(last, tuple) else (last,)
        (padded.square().sum() + sum(t.sin().sum() for t in last)).backward()
        return padded, *last, leaf.grad, *(p.grad for p in ours.parameters())

    same(run, 1e-5)


@each_kind
def test_few_rows_however_long(make):
    model = make().to("xla")
    rows = []
    for time in (2, 200):
        x = torch.randn(time, 2, 3).to("xla")
        before = RECORDER.replayed + RECORDER.rebuilt
        model(x)[0].sum().backward()
        rows.append(RECORDER.replayed + RECORDER.rebuilt - before)
        model.zero_grad()
    assert rows[0] == rows[1] < 40


@each_kind
@pytest.mark.parametrize("packed", [False, True])
def test_second_derivatives(make, packed):
    model, x = make(), torch.randn(3, 2, 3)

    def run(device):
        ours = copy.deepcopy(model).to(device)
        leaf = x.to(device).requires_grad_()
        y = ours(pack_padded_sequence(leaf, torch.tensor([3, 2])))[0].data if packed else ours(leaf)[0]
        (grad,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        grad.square().sum().backward()
        return grad, leaf.grad, *(p.grad for p in ours.parameters())

    same(run, 1e-5)


@each_kind
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is")  # PyTorch's own use for forward derivatives
def test_transforms_and_forward_derivatives(make):
    model, x = make(), torch.randn(3, 2, 3)

    def run(device):
        ours = copy.deepcopy(model).to(device)
        moved = x.to(device)
        of = lambda leaf: ours(leaf)[0].square().sum()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(moved, torch.ones_like(moved))
            tangent = torch.autograd.forward_ad.unpack_dual(ours(dual)[0]).tangent
        return torch.func.grad(of)(moved), tangent

    torch._C._set_mkldnn_enabled(False)  # it has no forward derivative
    try:
        same(run, 1e-5)
    finally:
        torch._C._set_mkldnn_enabled(True)


@each_kind
def test_without_gradients(make):
    model, x = make(num_layers=2), torch.randn(3, 2, 3)
    want = model(x)[0].detach()
    ours = model.to("xla")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            before = RECORDER.pending
            y = ours(x.to("xla"))[0]
            assert RECORDER.pending - before < 30
            assert_same(y, want, 1e-5)
    for p in ours.parameters():
        p.requires_grad_(False)
    leaf = x.to("xla").requires_grad_()
    ours(leaf)[0].sum().backward()
    assert leaf.grad.cpu().abs().sum() > 0


def test_only_some_gradients():
    model = nn.LSTM(3, 4)
    model.weight_hh_l0.requires_grad_(False)
    x = torch.randn(3, 2, 3)

    def run(device):
        ours = copy.deepcopy(model).to(device)
        ours(x.to(device))[1][1].sum().backward()  # of the last cell state alone
        return [p.grad for p in ours.parameters() if p.requires_grad]

    same(run, 1e-5)
    unused = nn.LSTM(3, 4).to("xla")
    assert unused(x.to("xla"))[0].requires_grad


def test_dropout_between_layers():
    model = nn.GRU(3, 64, num_layers=2, dropout=0.5).to("xla")
    x = torch.randn(4, 2, 3).to("xla")
    first, second = model(x)[0], model(x)[0]
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


def test_unbatched_and_empty():
    model = nn.LSTM(3, 4, bidirectional=True)
    for shape in ((5, 3), (5, 0, 3), (1, 1, 3)):
        x = torch.randn(shape)
        same(lambda device, x=x: copy.deepcopy(model).to(device)(x.to(device)), 1e-5)


def test_autocast():
    model, x = nn.LSTM(3, 4).to("xla"), torch.randn(3, 2, 3)
    want = model(x.to("xla"))[0]
    with torch.autocast("xla", dtype=torch.bfloat16):
        y = model(x.to("xla"))[0]
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad.dtype is torch.float32 for p in model.parameters())
    assert_same(y.detach().float(), want.detach().cpu(), 0.05)


def test_checkpointed():
    model, x = nn.GRU(3, 4), torch.randn(5, 2, 3)

    def run(device):
        ours = copy.deepcopy(model).to(device)
        leaf = x.to(device).requires_grad_()
        torch.utils.checkpoint.checkpoint(lambda t: ours(t)[0], leaf, use_reentrant=False).sum().backward()
        return leaf.grad, *(p.grad for p in ours.parameters())

    same(run, 1e-5)


WRONG = {
    "time": lambda m, x: m(x[:0]),
    "width": lambda m, x: m(x[..., :2]),
    "state": lambda m, x: m(x, (x.new_zeros(1, 2, 3), x.new_zeros(1, 2, 4))),
    "batch": lambda m, x: m(x, (x.new_zeros(1, 3, 4), x.new_zeros(1, 3, 4))),
    "dtype": lambda m, x: m(x.double()),
    "rank": lambda m, x: m(x[None]),
    "weight": lambda m, x: torch._VF.lstm(x, [x.new_zeros(1, 2, 4)] * 2, m._flat_weights[:3], True, 1, 0.0, False, False, False),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_errors(wrong):
    model, x = nn.LSTM(3, 4), torch.randn(3, 2, 3)
    want = raised(lambda: wrong(model, x))
    assert type(raised(lambda: wrong(model.to("xla"), x.to("xla")))) is type(want)
