"""Modules, autograd and optimizers on device xla: what holds on the CPU holds there."""

from __future__ import annotations

import copy
import pickle
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
from tests.same import assert_same, same


def cases(table):
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())


class Tied(nn.Module):
    """Two layers that share a weight, a buffer that is registered twice, a module that stands at two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.again = self.norm
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("same_scale", self.scale)
        self.register_buffer("scratch", torch.ones(1), persistent=False)

    def forward(self, x):
        return self.second(self.norm(torch.tanh(self.first(x)))) * self.scale


def batch(device="cpu", rows=5):
    return torch.linspace(-1, 1, 4 * rows).reshape(rows, 4).to(device)


# ---- moves -----------------------------------------------------------------------------------------------------------

MOVES = {
    "to": lambda m: m.to("xla"),
    "to device object": lambda m: m.to(torch.device("xla", 0)),
    "to like a tensor": lambda m: m.to(torch.ones(1, device="xla")),
    "to device and dtype": lambda m: m.to("xla", torch.float64),
    "to non_blocking": lambda m: m.to("xla", non_blocking=True),
    "apply": lambda m: m._apply(lambda t: t.to("xla")),
}


@cases(MOVES)
def test_a_move_keeps_identity_and_tying(case):
    model = Tied()
    parameters, state = list(model.parameters()), model.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert case(model) is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert model.first.weight is model.second.weight
    assert model.scale is model.same_scale
    assert model.norm is model.again
    assert all(t.is_xla for t in [*model.parameters(), *model.buffers()])
    assert all(type(p) is nn.Parameter and p.requires_grad and p.is_leaf for p in model.parameters())
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in parameters]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value.cpu(), before[name], check_dtype=False)
    model.cpu()
    assert model.first.weight is model.second.weight is parameters[0]
    assert not any(t.is_xla for t in [*model.parameters(), *model.buffers()])


def _train(model, device, steps=2):
    """The order of making the optimizer and moving is up to the caller."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch(device)).pow(2).mean().backward()
        optimizer.step()
    return optimizer


def _optimizer_first(model, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(device)
    model(batch(device)).pow(2).mean().backward()
    optimizer.step()


def _after_a_backward(model, device):
    model(batch()).pow(2).mean().backward()
    model.to(device)
    assert model.first.weight.grad.device.type == device
    model(batch(device)).pow(2).mean().backward()  # accumulates onto the moved gradient
    _train(model, device, 1)


def _with_a_live_graph(model, device):
    loss = model(batch()).sum()
    model.to(device)
    del loss
    _train(model, device)


def _back_and_forth(model, device):
    for place in (device, "cpu", device):
        model.to(place)
        _train(model, place, 1)


def _frozen_part(model, device):
    model.first.bias.requires_grad_(False)
    model.to(device)
    assert not model.first.bias.requires_grad
    _train(model, device)


SITUATIONS = {
    "optimizer first": _optimizer_first,
    "optimizer after": lambda m, d: _train(m.to(d), d),
    "after a backward": _after_a_backward,
    "with a live graph": _with_a_live_graph,
    "back and forth": _back_and_forth,
    "frozen part": _frozen_part,
    "part by part": lambda m, d: [m.first.to(d), m.second.to(d), m.norm.to(d), m.to(d), _train(m, d)],
    "inside sequential": lambda m, d: _train(nn.Sequential(m, nn.Sequential(m)).to(d), d),
    "under no_grad": lambda m, d: [torch.no_grad()(m.to)(d), _train(m, d)],
}


@cases(SITUATIONS)
def test_training_after_a_move(case):
    def run(device):
        torch.manual_seed(0)
        model = Tied()
        case(model, device)
        assert model.first.weight is model.second.weight
        return dict(model.state_dict()), [p.grad for p in model.parameters()]

    same(run, 1e-4)


def _ema(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(device)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        _train(model, device, 1)
        averaged.update_parameters(model)
    return dict(averaged.state_dict())


def _trained(make, *inputs):
    """A case: the module's output, gradients and state after two steps."""

    def case(device):
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = batch(device) if not inputs else [i.to(device) for i in inputs]
        for _ in range(2):
            optimizer.zero_grad()
            out = model(x) if not inputs else model(*x)
            out = out[0] if isinstance(out, tuple) else out
            out.pow(2).mean().backward()
            optimizer.step()
        return out, [p.grad for p in model.parameters()], dict(model.state_dict())

    return case


def _spectral(function):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(function(nn.Linear(4, 4)), nn.ReLU())

    return make


_QUERY = torch.linspace(-1, 1, 2 * 3 * 4).reshape(2, 3, 4)
KINDS = {
    "parametrizations.weight_norm": _trained(_spectral(nn.utils.parametrizations.weight_norm)),
    "parametrizations.spectral_norm": _trained(_spectral(nn.utils.parametrizations.spectral_norm)),
    "parametrizations.orthogonal": _trained(_spectral(nn.utils.parametrizations.orthogonal)),
    "utils.spectral_norm": _trained(_spectral(nn.utils.spectral_norm)),
    "attention": _trained(lambda: nn.MultiheadAttention(4, 2, batch_first=True), _QUERY, _QUERY, _QUERY),
    "lstm": _trained(lambda: nn.LSTM(4, 3, batch_first=True), _QUERY),
    "gru": _trained(lambda: nn.GRU(4, 3, bidirectional=True), _QUERY),
    "embedding bag": _trained(lambda: nn.EmbeddingBag(9, 4), torch.tensor([[1, 2], [3, 1]])),
    "batch norm": _trained(lambda: nn.BatchNorm1d(4)),
    "ema": _ema,
    "lazy": _trained(lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.GroupNorm(2, 4))),
    "pruning": _trained(_spectral(lambda m: nn.utils.prune.l1_unstructured(m, "weight", 0.5))),
}


@cases(KINDS)
def test_kinds_of_modules(case):
    same(case, 2e-5)


def test_dtype_moves_on_the_device():
    model = Tied().to("xla")
    parameters = list(model.parameters())
    for move, dtype in (
        (nn.Module.half, torch.half),
        (nn.Module.bfloat16, torch.bfloat16),
        (nn.Module.double, torch.double),
    ):
        move(model)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert model.norm.num_batches_tracked.dtype == torch.long
        assert model.first.weight is model.second.weight
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    model(batch("xla").double())


def test_copies_of_modules():
    model = Tied().to("xla")
    model(batch("xla")).sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.first.weight is twin.second.weight
        assert twin.first.weight is not model.first.weight
        assert twin.first.weight.is_xla
        assert_same(
            {k: v.cpu() for k, v in twin.state_dict().items()}, {k: v.cpu() for k, v in model.state_dict().items()}
        )
        with torch.no_grad():
            twin.first.weight.zero_()
        assert model.first.weight.abs().sum() > 0
    optimizer = _train(model, "xla")
    twin = copy.deepcopy((model, optimizer))
    assert twin[1].param_groups[0]["params"][0] is twin[0].first.weight


def test_meta_then_empty_and_lazy_modules():
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    model.to_empty(device="xla")
    model.reset_parameters()
    assert model(batch("xla")).shape == (5, 4)
    lazy = nn.LazyLinear(3).to("xla")
    assert lazy(batch("xla")).shape == (5, 3)
    assert type(lazy) is nn.Linear
    assert lazy.weight.is_xla
    lazy = nn.LazyLinear(3, device="xla")
    lazy(batch("xla"))
    with pytest.raises(NotImplementedError, match="to_empty"):
        nn.Linear(2, 2, device="meta").to("xla")


def test_state_dicts():
    source, target = Tied(), Tied().to("xla")
    parameters = list(target.parameters())
    assert target.load_state_dict(source.state_dict()).missing_keys == []
    assert all(a is b and a.is_xla for a, b in zip(parameters, target.parameters(), strict=True))
    assert torch.equal(target.first.weight.cpu(), source.first.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        target.load_state_dict({"first.weight": torch.ones(4, 4)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        target.load_state_dict({"first.weight": torch.ones(4, 5)}, strict=False)
    with torch.device("meta"):
        empty = Tied()
    empty.load_state_dict(target.state_dict(), assign=True)
    assert empty.first.bias.is_xla
    source.load_state_dict(target.state_dict())
    assert not source.first.weight.is_xla


def test_a_move_keeps_attributes_hooks_and_references():
    model, seen = nn.Linear(4, 4), []
    weight = model.weight
    weight.note, reference = "mine", weakref.ref(weight)
    weight.register_hook(lambda g: seen.append(g.device.type))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    model.to("xla")
    model(batch("xla")).sum().backward()
    assert reference() is model.weight is weight
    assert weight.note == "mine"
    assert seen == ["xla", "accumulated"]


def test_backward_of_a_graph_from_before_a_move_says_so():
    model = nn.Linear(4, 4)
    loss = model(batch()).sum()
    model.to("xla")
    with pytest.raises(RuntimeError, match="before its module was moved"):
        loss.backward()


# ---- autograd --------------------------------------------------------------------------------------------------------


def _tensor_hook(d):
    w = torch.ones(3, device=d, requires_grad=True)
    handle = w.register_hook(lambda g: g * 2)
    (w * 3).sum().backward()
    handle.remove()
    (w * 3).sum().backward()
    return w.grad


def _intermediate(d):
    w = torch.ones(3, device=d, requires_grad=True)
    y = w * 2
    y.retain_grad()
    y.register_hook(lambda g: g + 1)
    y.pow(2).sum().backward()
    return w.grad, y.grad


def _post_accumulate(d):
    w, seen = torch.ones(3, device=d, requires_grad=True), []

    def update(parameter):  # an optimizer inside the backward
        seen.append(parameter.grad.clone())
        with torch.no_grad():
            parameter.sub_(parameter.grad)
        parameter.grad = None

    w.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        (w * 2).sum().backward()
    return w, seen, w.grad


def _module_hooks(d):
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(d), []
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[0].bias)
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda m, args, out: out + 1)
    model.register_full_backward_pre_hook(lambda m, g: seen.extend(g))
    model[0].register_full_backward_hook(lambda m, gi, go: seen.extend([*gi, *go]))
    x = batch(d).requires_grad_()
    model(x).pow(2).sum().backward()
    return seen, x.grad, model[0].weight.grad


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, name):
        assert name == "cube"
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False, False)
        return 3 * ctx.factor * x**2 * grad, None, None


class AddOneInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


class MaxOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.max(1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(x, indices)
        return values, indices

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        x, indices = ctx.saved_tensors
        return torch.zeros_like(x).scatter_(1, indices[:, None], grad[:, None])


def _double_backward(d):
    x = torch.tensor([1.0, 2.0], device=d, requires_grad=True)
    (g,) = torch.autograd.grad(Cube.apply(x, 2.0, "cube").sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return g, x.grad


def _mark_dirty(d):
    w = torch.ones(3, device=d, requires_grad=True)
    y = w * 2
    z = AddOneInPlace.apply(y)
    z.sum().backward()
    return y, z is y, w.grad


def _several_outputs(d):
    x = batch(d).requires_grad_()
    values, indices = MaxOf.apply(x)
    (values * 2).sum().backward()
    return values, indices, x.grad


def _in_place_in_graph(d):
    w = torch.ones(3, 4, device=d, requires_grad=True)
    y = w * 2
    y[0] = 0
    y[:, 1].mul_(3)
    y.t()[2].exp_()
    y.sum().backward()
    return y, w.grad


def _saved_then_changed(d):
    w = torch.ones(3, device=d, requires_grad=True)
    y = w.exp()
    loss = (y * y).sum()
    with torch.no_grad():
        w.mul_(2)  # not needed by the backward of exp, which saves its result
    loss.backward()
    return w.grad


def _grad_modes(d):
    w = torch.ones(3, device=d, requires_grad=True)
    with torch.no_grad():
        a = w * 2
    with torch.inference_mode():
        b = w * 2
        b.add_(1)
    with torch.set_grad_enabled(False), torch.enable_grad():
        c = w * 2
    return a, b.is_inference(), b.clone(), c, w.detach().requires_grad, (w * 2).detach_().requires_grad


def _accumulates(d):
    w = torch.ones(3, device=d, requires_grad=True)
    for _ in range(3):
        (w * w).sum().backward()
    grad = w.grad
    w.grad.zero_()
    (w * 3).sum().backward()
    return w.grad, w.grad is grad


def _functional(d):
    model = nn.Linear(4, 1).to(d)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    parameters = dict(model.named_parameters())
    x = batch(d)

    def loss(p, row):
        return torch.func.functional_call(model, p, (row,)).pow(2).sum()

    per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    jacobian = torch.func.jacrev(lambda v: v**2)(x[0])
    tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    hessian = torch.func.hessian(lambda v: (v**3).sum())(x[0])
    return per_row, jacobian, tangent, hessian, torch.func.vmap(torch.dot)(x, x)


AUTOGRAD = {
    "tensor hook": _tensor_hook,
    "hook of an intermediate": _intermediate,
    "post accumulate hook": _post_accumulate,
    "module hooks": _module_hooks,
    "function, double backward": _double_backward,
    "function, mark_dirty": _mark_dirty,
    "function, several outputs": _several_outputs,
    "in-place in the graph": _in_place_in_graph,
    "saved then changed": _saved_then_changed,
    "grad modes": _grad_modes,
    "accumulation": _accumulates,
    "torch.func": _functional,
    "grad of inputs": lambda d: (lambda x: torch.autograd.grad(x.exp().sum(), x))(batch(d).requires_grad_()),
    "backward of a vector": lambda d: (lambda x: [(x * 2).backward(torch.ones_like(x)), x.grad][1])(
        batch(d).requires_grad_()
    ),
    "anomaly mode": lambda d: (lambda x: [x.exp().sum().backward(), x.grad][1])(batch(d).requires_grad_()),
    "gradcheck": lambda d: torch.autograd.gradcheck(
        torch.sin, (batch(d, 1).double().requires_grad_(),), fast_mode=True
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, in jvp
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is not supported:FutureWarning")  # the same on Python 3.14
@cases(AUTOGRAD)
def test_autograd(case):
    same(case, 1e-5)


def test_saved_tensor_hooks_offload_to_the_host():
    x = batch("xla").requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = x.exp()
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), batch().exp())


def test_a_changed_saved_tensor_is_noticed():
    w = torch.ones(3, device="xla", requires_grad=True)
    x = torch.ones(3, device="xla")
    y = w * x
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def _block(device):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 4), nn.Dropout(0.5)).to(device)


CHECKPOINTS = {
    "plain": lambda model, x: model(x),
    "reentrant": lambda model, x: checkpoint(model, x, use_reentrant=True),
    "not reentrant": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "sequential": lambda model, x: checkpoint_sequential(model, 2, x, use_reentrant=False),
    "nested": lambda model, x: checkpoint(lambda v: checkpoint(model, v, use_reentrant=False), x, use_reentrant=False),
}


def test_checkpointing_recomputes_the_same_dropout():
    results = {}
    for name, run in CHECKPOINTS.items():
        model, x = _block("xla"), batch("xla").requires_grad_()
        torch.manual_seed(1)
        out = run(model, x)
        out.pow(2).sum().backward()
        results[name] = [out.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]
    assert (results["plain"][0] == 0).any()
    for result in results.values():
        for got, want in zip(result, results["plain"], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def _clip(function):
    def case(device):
        w = [torch.full((3,), float(i), device=device, requires_grad=True) for i in (1, 2)]
        sum((x**2).sum() for x in w).backward()
        return function(w), [x.grad for x in w]

    return case


CLIPS = {
    "norm": _clip(lambda w: nn.utils.clip_grad_norm_(w, 0.5)),
    "norm inf": _clip(lambda w: nn.utils.clip_grad_norm_(w, 0.5, norm_type=float("inf"))),
    "norm foreach": _clip(lambda w: nn.utils.clip_grad_norm_(w, 0.5, foreach=True)),
    "norm in a loop": _clip(lambda w: nn.utils.clip_grad_norm_(w, 0.5, foreach=False)),
    "norm nonfinite": _clip(lambda w: nn.utils.clip_grad_norm_(w, 0.5, error_if_nonfinite=True)),
    "value": _clip(lambda w: nn.utils.clip_grad_value_(w, 1.0)),
    "total norm": _clip(lambda w: nn.utils.get_total_norm([x.grad for x in w])),
}


@cases(CLIPS)
def test_clipping(case):
    same(case, 1e-6)


# ---- mixed precision, compile ----------------------------------------------------------------------------------------


def test_autocast_in_bfloat16_with_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    twin = copy.deepcopy(model).to("xla")
    with torch.autocast("xla", dtype=torch.bfloat16):
        out = twin(batch("xla"))
        assert out.dtype == torch.bfloat16
        assert twin[1](batch("xla", 10).reshape(5, 8)).dtype == torch.float32
        assert torch.softmax(out, -1).dtype == torch.float32
        with torch.autocast("xla", enabled=False):
            assert twin[0](batch("xla")).dtype == torch.float32
        loss = F.cross_entropy(out, torch.arange(5, device="xla") % 4)
    loss.backward()
    F.cross_entropy(model(batch()), torch.arange(5) % 4).backward()
    for got, want in zip(twin.parameters(), model.parameters(), strict=True):
        assert got.grad.dtype == torch.float32
        torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=0.1, atol=0.02)


def test_grad_scaler():
    w = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([w], lr=0.5)
    scaler = torch.amp.GradScaler("xla", init_scale=8.0, growth_interval=1)
    scaler.scale((w * 2).sum()).backward()
    scaler.unscale_(optimizer)
    assert w.grad.tolist() == [2, 2, 2]
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [0, 0, 0]
    assert scaler.get_scale() == 16
    optimizer.zero_grad()
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [0, 0, 0]  # the step was left out
    assert scaler.get_scale() == 8


def test_torch_compile_aot_eager():
    torch._dynamo.reset()
    model = nn.Linear(4, 4).to("xla")
    compiled = torch.compile(lambda x: model(x).relu().sum(), backend="aot_eager", fullgraph=True)
    x = batch("xla").requires_grad_()
    compiled(x).backward()
    want = torch.autograd.grad(model(x).relu().sum(), x)[0]
    torch.testing.assert_close(x.grad.cpu(), want.cpu())


# ---- default device, data loading ------------------------------------------------------------------------------------


def test_default_device():
    with torch.device("xla"):
        made = [
            torch.ones(2),
            torch.rand(2),
            torch.tensor([1, 2]),
            torch.arange(3),
            nn.Linear(2, 2).weight,
            torch.empty(1),
        ]
        made += [
            torch.randperm(4),
            torch.eye(2),
            torch.linspace(0, 1, 3),
            torch.full((2,), 1.0),
            torch.zeros(1, device="cpu"),
        ]
    assert [t.is_xla for t in made] == [True] * (len(made) - 1) + [False]
    torch.set_default_device("xla")
    try:
        assert torch.get_default_device() == torch.device("xla", 0)
        assert str(torch.zeros(2)) == "tensor([0., 0.], device='xla:0')"
        model = nn.LSTM(3, 3)
        assert model(torch.randn(2, 1, 3))[0].is_xla
        _train(Tied(), "xla")
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loader_workers(context):
    torch.ones(1, device="xla").sum().item()  # the client is up before the workers start
    data = TensorDataset(torch.arange(10.0).reshape(10, 1), torch.arange(10))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context, shuffle=True)
    seen = []
    with warnings.catch_warnings():
        # JAX warns of a fork in general (the workers never call it), and Python does from 3.12 on.
        warnings.filterwarnings("ignore", message=r".*fork\(\)", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=r".*fork\(\)", category=DeprecationWarning)
        for x, y in loader:
            x, y = x.to("xla", non_blocking=True), y.to("xla")
            assert torch.equal(x[:, 0], y.float())
            seen += y.tolist()
    assert sorted(seen) == list(range(10))


def test_data_loader_in_process():
    data = TensorDataset(torch.arange(6.0).to("xla"))  # a data set that lives on the device
    assert [b[0].tolist() for b in DataLoader(data, batch_size=4)] == [[0, 1, 2, 3], [4, 5]]


# ---- schedulers -------------------------------------------------------------------------------------------------------


def _lambda(epoch):
    return 0.9**epoch


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, _lambda),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, _lambda),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=2),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.StepLR(o, 2)]
    ),
}


@cases(SCHEDULERS)
def test_schedulers_change_the_rate_without_recompiling(case):
    def run(device):
        torch_xla.sync()
        w = nn.Parameter(torch.linspace(0, 1, 3).to(device))
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
        scheduler = case(optimizer)
        rates = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (w**2).sum()
            loss.backward()
            optimizer.step()
            scheduler.step(*[loss.detach()] * isinstance(scheduler, lr_scheduler.ReduceLROnPlateau))
            rates.append(optimizer.param_groups[0]["lr"])
        return w, rates

    same(run, 1e-6)
    torch_xla.debug.metrics.clear_all()
    run("xla")
    assert torch_xla.debug.metrics.counter_value("UncachedCompile") is None
