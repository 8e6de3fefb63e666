"""Where rows come from: module paths, lines of backward rows, and the same in the metadata of XLA's instructions."""

import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.graph.recorder import RECORDER

SIZES = iter(range(11, 1000))  # a row that another test made first says what that did


@pytest.fixture
def size():
    torch_xla.sync()
    return next(SIZES)


def rows():
    return RECORDER.node.path()


def paths(*ops):
    """(op, module, whether backward) of the pending rows; of those whose op is named in `ops` if any are."""
    found = [(row.op._schema.name.partition("::")[2], row.module, row.backward) for row in rows()]
    return [one for one in found if not ops or one[0] in ops]


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Model(nn.Module):
    def __init__(self, size, reentrant=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(size), Attention(size)) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def linears(number, backward):
    op = "linear_backward" if backward else "linear"
    names = [(op, f"model.layers.{number}.1.qkv", backward), (op, f"model.layers.{number}.1.out", backward)]
    return names[::-1] if backward else names


def test_paths_of_forward_and_backward(size):
    model, x = Model(size).to("xla"), torch.ones(2, 3, size, device="xla")
    model(x).sum().backward()
    wanted = linears(0, False) + linears(1, False) + linears(1, True) + linears(0, True)
    assert paths("linear", "linear_backward") == wanted
    assert ("_softmax", "model.layers.1.1", False) in paths()
    assert ("_softmax_backward_data", "model.layers.1.1", True) in paths()
    assert ("native_layer_norm_backward", "model.layers.0.0", True) in paths()
    assert ("sum", "", False) in paths()
    forward = next(row for row in rows() if row.op._schema.name == "aten::_softmax")
    backward = next(row for row in rows() if row.op._schema.name == "aten::_softmax_backward_data")
    assert re.search(r"test_module_paths\.py:\d+ \(forward\)$", forward.line)
    softmax = [row for row in rows() if row.op._schema.name == "aten::_softmax"][-1]
    assert backward.line == softmax.line.replace("(forward)", "(backward of forward)")


@pytest.mark.parametrize("reentrant", [False, True])
def test_paths_under_checkpointing(size, reentrant):
    model = Model(size, reentrant).to("xla")
    x = torch.ones(2, 3, size, device="xla", requires_grad=True) * 1
    with torch_xla.step():
        model(x).sum().backward()
        found = paths("linear", "linear_backward", "_softmax", "bmm", "_softmax_backward_data")
    again = [one for one in found if one[0].startswith("linear")][4:]
    if reentrant:
        assert again == linears(1, False) + linears(1, True) + linears(0, False) + linears(0, True)
    else:  # stops as soon as it has what is needed
        assert {row for row in again if row[2]} == {*linears(0, True), *linears(1, True)}
        assert [row for row in again if not row[2]] == [linears(n, False)[0] for n in (1, 0)]
    assert {module for op, module, _ in found if not op.startswith("linear")} == {
        "model.layers.0.1",
        "model.layers.1.1",
    }


def test_a_backward_pass_after_a_cut(size):
    model, x = Model(size).to("xla"), torch.ones(2, 3, size, device="xla")
    loss = model(x).sum()
    torch_xla.sync()
    loss.backward()
    assert paths("linear_backward") == linears(1, True) + linears(0, True)


def test_a_new_backward_pass_of_a_replayed_forward(size):
    model, x = Model(size).to("xla"), torch.ones(2, 3, size, device="xla")
    for _ in range(3):
        loss = model(x).sum()
        torch_xla.sync()
    rebuilt = RECORDER.rebuilt
    loss = model(x).sum()
    assert RECORDER.rebuilt == rebuilt
    loss.backward()
    assert paths("linear_backward") == linears(1, True) + linears(0, True)


def test_optimizers(size):
    layer = nn.Linear(size, 1).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, size, device="xla")).sum().backward()
    torch_xla.sync()
    seen = []
    handle = optimizer.register_step_post_hook(lambda *_: seen.extend(paths()))
    with torch_xla.step():
        optimizer.step()
        seen.extend(paths())
    handle.remove()
    assert seen
    assert {module for _, module, _ in seen} == {"optimizer: SGD"}


def test_a_closure_of_an_optimizer_is_the_models(size):
    layer = nn.Linear(size, 1).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(2, size, device="xla")).sum()
        loss.backward()
        seen.extend(paths("linear", "sum", "linear_backward"))
        return loss

    optimizer.step(closure)
    assert seen[0] == ("linear", "layer", False)
    assert seen[-1] == ("linear_backward", "layer", True)


def test_modules_that_are_not_in_the_tree(size):
    hidden = [nn.ReLU()]

    class Outer(nn.Module):
        def forward(self, x):
            return hidden[0](x) + nn.Tanh()(x)

    outer = {"only": Outer()}
    outer["only"](torch.ones(size, device="xla"))
    assert paths("relu", "tanh", "add") == [
        ("relu", "Outer.ReLU", False),
        ("tanh", "Outer.Tanh", False),
        ("add", "Outer", False),
    ]


def test_shared_modules_and_other_methods(size):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = nn.Linear(size, size)

        def encode(self, x):
            return self.second(x) * 2

        def forward(self, x):
            return self.encode(self.first(x))

    tied, x = Tied().to("xla"), torch.ones(2, size, device="xla")
    tied(x)
    tied.encode(x)
    assert paths("linear", "mul") == [
        ("linear", "tied.first", False),
        ("linear", "tied.first", False),
        ("mul", "tied", False),
        ("linear", "tied.first", False),
        ("mul", "tied", False),
    ]


def test_attributes_name_roots(size):
    class Trainer:
        def __init__(self):
            self.net = nn.ReLU()

        def fit(self):
            return self.net(torch.ones(size, device="xla"))

    Trainer().fit()
    assert paths("relu") == [("relu", "net", False)]


def test_custom_functions(size):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    class Doubling(nn.Module):
        def forward(self, x):
            return Double.apply(x)

    doubling = Doubling()
    doubling(torch.ones(size, device="xla", requires_grad=True)).sum().backward()
    assert ("mul", "doubling", False) in paths()
    assert ("mul", "doubling", True) in paths()
    [row] = [row for row in rows() if row.op._schema.name == "aten::mul" and row.backward]
    assert row.line.endswith("(backward)")  # the user's own


def test_double_backward(size):
    layer = nn.Tanh()
    x = torch.ones(size, device="xla", requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    grad.square().sum().backward()
    found = paths("tanh", "tanh_backward")
    assert found[0] == ("tanh", "layer", False)
    assert {module for _, module, _ in found} == {"layer"}
    assert x.grad is not None


def test_looking_at_frames_keeps_no_tensor_alive(size):
    class Rebinding(nn.Module):
        def forward(self, x):
            x = x + 1
            x = x * 2
            return x.relu()

    rebinding = Rebinding()

    def step():
        y = rebinding(torch.ones(size, device="xla"))
        y = y.exp()
        y = y + 3
        torch_xla.sync()
        return y

    step()
    met.clear_all()
    step()
    assert met.counter_value("UncachedCompile") is None  # the first step had the same outputs


def test_locals_that_the_user_holds_stay(size):
    def function(model):
        x = torch.ones(size, device="xla")
        mine = locals()
        y = model(x)
        return mine, y

    mine, _ = function(nn.ReLU())
    assert "x" in mine
    assert "model" in mine


def programs(node):
    return [row for row in node.path() if row.programs][-1].programs.values()


def test_metadata(size):
    model, x = Model(size).to("xla"), torch.ones(2, 3, size, device="xla")
    torch_xla.sync()
    y = model(x)
    node = RECORDER.node
    torch_xla.sync()
    [program] = programs(node)
    text = program.executable.as_text()
    assert re.search(r'op_name="[^"]*/model\.layers\.1\.1\.qkv/aten\.linear/dot_general', text)
    lines = {int(row.line.rpartition(":")[2].partition(" ")[0]) for row in node.path()}
    files = re.search(r"FileNames\n(.*?)\n\n", text, re.DOTALL)[1].splitlines()
    assert [file.rpartition("/")[2] for file in files] == ['test_module_paths.py"']
    assert {int(line) for line in re.findall(r"file_name_id=1 .*? line=(\d+)", text)} <= lines
    assert '"forward"' in re.search(r"FunctionNames\n(.*?)\n\n", text, re.DOTALL)[1]
    assert y is not None
