"""Cases that once gave a wrong value, or an error where the CPU gives none. Each runs on both devices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def _draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _transposed(name, *make_args):
    def run(device):
        x = torch.arange(6.0).reshape(2, 3).to(device)
        y = x.t()
        getattr(y, name)(*[a.to(device) if isinstance(a, torch.Tensor) else a for a in make_args])
        z = y.reshape(6)  # a copy, for y keeps its strides
        z.mul_(0)
        return x, y.stride()

    return run


def _fill_diagonal(device):
    x = torch.arange(24.0).reshape(2, 3, 4).to(device)
    x[:, 1].fill_diagonal_(-1)
    x[:, :, 1:3][0].T.fill_diagonal_(-2)
    return (
        x,
        torch.zeros(7, 3, device=device).fill_diagonal_(1, wrap=True),
        torch.zeros(3, 3, 3).to(device).fill_diagonal_(2),
    )


def _copy_into_a_transposed_view(device):
    x = torch.arange(6.0).reshape(2, 3).to(device)
    x.reshape(3, 2).t().copy_(torch.ones(2, 3))
    return x


def _ctc_lengths_on_the_host(device):
    x = _draw(5, 2, 4).log_softmax(-1).to(device).requires_grad_()
    targets = torch.tensor([[1, 2], [2, 3]]).to(device)
    loss = F.ctc_loss(x, targets, torch.tensor([5, 4]), torch.tensor([2, 1]))
    loss.backward()
    return loss, x.grad


def _packed_sequence(device):
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True).to(device)
    x = _draw(3, 5, 3).to(device).requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5, 2]), batch_first=True, enforce_sorted=False)
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    padded.sum().backward()
    assert packed.batch_sizes.device.type == lengths.device.type == "cpu"
    return padded, lengths, x.grad


def _affine_grid(device):
    theta = _draw(2, 2, 3).to(device).requires_grad_()
    grids = [F.affine_grid(theta, [2, 1, 4, 5], align_corners=a) for a in (True, False)]
    sum(g.square().sum() for g in grids).backward()
    return *grids, theta.grad, F.affine_grid(_draw(1, 3, 4).to(device), [1, 1, 2, 3, 4], align_corners=False)


def _grouped_product(device):
    ends = torch.tensor([2, 4, 6], dtype=torch.int32).to(device)
    return torch._grouped_mm(_draw(6, 16).to(device), _draw(3, 16, 8).to(device), offs=ends)


def _encoder_with_padding(device):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).to(device).eval()
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad():
        y = encoder(_draw(2, 4, 8).to(device), src_key_padding_mask=mask.to(device))
    return y[0], y[1, :2]  # what stands at padded places is nobody's business


def _solve(transposed):
    def run(device):
        a, b = (_draw(3, 3) + 3 * torch.eye(3)).to(device).requires_grad_(), _draw(3, 2).to(device).requires_grad_()
        x = torch.linalg.solve(a.t() if transposed else a, b)
        x.square().sum().backward()
        return x, a.grad, b.grad, torch.linalg.det(a.t() if transposed else a)

    return run


CASES = {
    "solve": _solve(False),
    "solve, transposed": _solve(True),
    "masked_fill_ of a transposed": _transposed("masked_fill_", torch.eye(3, 2, dtype=torch.bool), 9.0),
    "index_add_ to a transposed": _transposed("index_add_", 0, torch.tensor([0, 2]), torch.ones(2, 2)),
    "scatter_ to a transposed": _transposed("scatter_", 0, torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2)),
    "cumsum_ of a transposed": _transposed("cumsum_", 0),
    "tril_ of a transposed": _transposed("tril_"),
    "addmm_ to a transposed": _transposed("addmm_", torch.ones(3, 4), torch.ones(4, 2)),
    "bernoulli_ of a transposed": _transposed("bernoulli_", 1.0),
    "copy_ to a transposed": _transposed("copy_", torch.ones(3, 2)),
    "copy into a transposed view": _copy_into_a_transposed_view,
    "fill_diagonal_ of views": _fill_diagonal,
    "ctc_loss, lengths on the host": _ctc_lengths_on_the_host,
    "packed sequence": _packed_sequence,
    "affine_grid": _affine_grid,
    "grouped product in float32": _grouped_product,
    "encoder with padding": _encoder_with_padding,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch's own, on the CPU
def test_case(case):
    expected, actual = CASES[case]("cpu"), CASES[case]("xla")
    expected, actual = ((x,) if isinstance(x, torch.Tensor) else x for x in (expected, actual))
    for want, got in zip(expected, actual, strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-5, atol=1e-5)
        else:
            assert got == want


def test_views_of_the_storage_whatever_they_are_made_of():
    """Functionalization would write zeros, or read the wrong elements, without a word."""

    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.unfold(0, 2, 3).mul_(10)
        whole = x.view(2, 4)[:, 1:].t().as_strided((8,), (1,), 0)
        whole[0] = 5
        return x, whole, whole.as_strided((2,), (3,), 1)

    for got, want in zip(views(torch.arange(8.0).to("xla")), views(torch.arange(8.0))):
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize(
    "early", [lambda y: y if y.sum() > 0 else -y, lambda y: y * y.max().item()], ids=["if", "item"]
)
def test_torch_compile_with_a_graph_break(early):
    compiled = torch.compile(lambda x: early(x * 2) + 1, backend="eager")
    assert compiled(torch.ones(3, device="xla")).tolist() == early(torch.ones(3) * 2).add(1).tolist()
