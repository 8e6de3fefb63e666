"""Recordings as text: Python that computes the same, StableHLO, HLO, graphviz, HTML with costs by module."""

from __future__ import annotations

import html.parser
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.same import assert_same
from torch_xla._src.graph.recorder import RECORDER
from torch_xla.debug import program


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.linear(self.norm(x)).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.blocks(x))


def run(source, leaves, device, floats=(), ints=()):
    names = {}
    exec(compile(source, "program", "exec"), names)
    return names["program"]([x.to(device) for x in leaves], floats, ints, device)


def many_arguments(x):
    a = torch.where(x > 0.5, x, float("inf")).clamp(max=2.5)
    b = torch.cat([a, x.flip(1)], 1)[:, 1:5].transpose(0, 1)
    c = torch.full((2, 3), -math.inf, device=x.device).masked_fill(
        torch.ones(2, 3, dtype=torch.bool, device=x.device), 1.5
    )
    d, e = torch.sort(x, dim=1, descending=True)
    f = torch.zeros_like(x, dtype=torch.int32, memory_format=torch.contiguous_format) + 3
    g = x.to(torch.complex64) * (1 - 2j)
    parts = x.split([1, 2], 1)
    h = torch.stack([p.sum() for p in parts])
    i = torch.arange(3, device=x.device, dtype=torch.int64)
    j = F.one_hot(i, 4).to(torch.bfloat16)
    k = x[:, 1] + x[i[:2], i[1:]]
    return [b, c, d, e, f, g.real, h, j, k]


def test_python_of_many_kinds_of_arguments():
    x = torch.rand(2, 3)
    on_device = x.to("xla")
    torch_xla.sync()
    wanted = many_arguments(x)
    pending = many_arguments(on_device)
    before = RECORDER.pending
    view = program.pending(pending)
    source = view.python()
    assert RECORDER.pending == before  # looking changes nothing
    for device in ("cpu", "xla"):
        got = run(source, [x], device)
        assert_same([t.cpu() for t in got], wanted, 1e-6)
    assert_same(pending, [t.to("xla") for t in wanted], 1e-6)


def test_python_of_a_training_step():
    torch.manual_seed(0)
    net = Net().to("xla")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    x = torch.randn(4, 6).to("xla")
    torch_xla.sync()
    parameters = [p.detach().cpu() for p in net.parameters()]
    with torch_xla.step():
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        view = program.pending([loss, *net.parameters()])
        leaves = [on_host(buffer) for buffer in RECORDER.leaf_buffers]
        floats, ints = list(RECORDER.floats), list(RECORDER.ints)
    wanted = [loss.detach().cpu(), *(p.detach().cpu() for p in net.parameters())]
    assert not any(torch.equal(a, b) for a, b in zip(parameters, wanted[1:]))
    for device in ("cpu", "xla"):
        got = run(view.python(), leaves, device, floats, ints)
        assert_same([t.detach().cpu() for t in got], wanted, 1e-5)
    text = view.python()
    assert "net.blocks.1.linear" in text
    assert "optimizer: AdamW" in text
    assert f"{__file__}:" in text
    assert "f32[4,6]" in text


def on_host(buffer):
    from torch_xla._src.runtime import transfer

    return transfer.download(buffer)


def test_texts_of_what_is_pending_run_nothing():
    net, x = Net().to("xla"), torch.ones(4, 6).to("xla")
    torch_xla.sync()
    y = net(x)
    launched, compiled = met.counter_value("ExecuteComputation"), met.counter_value("UncachedCompile")
    view = program.pending(y)
    assert "net.blocks.0.norm/aten.native_layer_norm" in view.stablehlo()
    assert "net.head/aten.linear" in view.hlo()
    assert "digraph" in view.dot()
    assert "net.blocks.0.linear" in str(view)
    assert len(view) == len(view.rows) >= 8
    assert (met.counter_value("ExecuteComputation"), met.counter_value("UncachedCompile")) == (launched, compiled)
    assert y.shape == (4, 3)
    assert len(program.pending([])) == 0


def test_compiled_programs_are_listed():
    net, x = Net().to("xla"), torch.ones(5, 6).to("xla")
    net(x).sum().backward()
    torch_xla.sync()
    view = program.compiled()[-1]
    assert view.program is not None
    assert "net.head" in view.hlo()
    assert "source_file" in view.hlo() or "stack_frame_id" in view.hlo()
    assert "backward" in view.hlo()
    assert "StableHLO" in view.stablehlo() or "stablehlo" in view.stablehlo()
    assert " = linear_backward(" in view.python()


def test_costs_by_module():
    net, x = Net().to("xla"), torch.ones(4, 6).to("xla")
    torch_xla.sync()
    y = net(x)
    root = program.pending(y).cost()
    blocks = root.modules["net"].modules["blocks"]
    assert set(blocks.modules) == {"0", "1"}
    assert blocks.modules["0"].modules["linear"].total.flops == 2 * 4 * 6 * 6
    assert root.modules["net"].modules["head"].total.flops == 2 * 4 * 6 * 3
    assert root.total.rows == sum(1 for _ in program.pending(y).rows)
    assert blocks.total.flops == sum(m.total.flops for m in blocks.modules.values()) + sum(
        c.flops for _, c in blocks.rows
    )
    product = torch.ones(16, 32, device="xla") @ torch.ones(32, 64, device="xla")
    view = program.pending(product)
    assert max(c.flops for m in [view.cost()] for _, c in m.rows) == 2 * 16 * 32 * 64
    assert view.compiler_cost()["flops"] == pytest.approx(view.cost().total.flops, rel=0.1)


def test_the_page_is_whole_and_escaped(tmp_path):
    net, x = Net().to("xla"), torch.ones(9, 6).to("xla")
    holder = nn.ModuleDict({"a<b>&": net})
    torch_xla.sync()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = holder

        def forward(self, x):
            return self.inner["a<b>&"](x)

    model = Outer()
    view = program.pending(model(x))
    view.save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "a&lt;b&gt;&amp;" in page
    assert "<b>&<" not in page
    assert "http" not in page.replace("https://", "")  # nothing is loaded from elsewhere
    opened = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag in ("details", "table"):
                opened.append(tag)

        def handle_endtag(self, tag):
            if tag in ("details", "table"):
                assert opened.pop() == tag

    Parser().feed(page)
    assert not opened
    assert page.count("<tr><td>") == len(view)


def test_a_program_over_padded_buffers_is_listed():
    model = nn.Linear(3, 2).to("xla")
    with torch.no_grad():
        for length in (3, 5, 6):
            x = torch.arange(3.0 * length).view(length, 3).to("xla")
            torch_xla.mark_dynamic(x, 0, min=1, max=8)
            total = model(x).sum()
            assert torch.isfinite(total.cpu())
    view = program.compiled()[-1]
    assert type(view.program).__name__ == "PaddedProgram"
    assert "f32[8,3]" in view.hlo()
    namespace: dict = {}
    exec(view.python(), namespace)
    given = [torch.ones(spec.shape) for spec in view.leaves]
    [result] = namespace["program"](given)
    assert result.item() == torch.nn.functional.linear(*given).sum().item()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 12)

    def forward(self, x):
        q, k, v = self.linear(x).view(-1, 5, 3, 4).unbind(2)
        mask = torch.ones(5, 5, dtype=torch.bool, device=x.device).tril(-1)  # the first row sees nothing
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) + F.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize(
    "make",
    [
        Attention,
        lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, proj_size=3),
        lambda: nn.GRU(4, 6),
        lambda: nn.RNN(4, 6, nonlinearity="relu", bias=False),
    ],
    ids=["attention", "lstm", "gru", "rnn"],
)
def test_python_of_layers_that_are_ops_of_their_own(make):
    torch.manual_seed(0)
    model = make().to("xla")
    x = torch.randn(2, 5, 4).to("xla")
    torch_xla.sync()
    result = model(x)
    result = result if isinstance(result, torch.Tensor) else result[0]
    gradients = torch.autograd.grad(result.square().sum(), list(model.parameters()))
    view = program.pending(gradients)
    leaves = [on_host(buffer) for buffer in RECORDER.leaf_buffers]
    wanted = [g.cpu() for g in gradients]
    for device in ("cpu", "xla"):
        got = run(view.python(), leaves, device)
        assert_same([t.detach().cpu() for t in got], wanted, 1e-4)


def test_python_of_a_write_to_a_slice():
    x = torch.arange(6.0).to("xla")
    torch_xla.sync()
    y = x.clone().add_(1)
    y[2:4].mul_(2)
    y[5] = 0
    [got] = run(program.pending(y).python(), [torch.arange(6.0)], "cpu")
    assert got.tolist() == y.tolist() == [1, 2, 6, 8, 5, 0]
