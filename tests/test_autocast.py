"""Mixed precision: dtypes under autocast, cached casts, loss scaling without host reads, precision of products."""

from __future__ import annotations

import copy
import functools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.models import MODELS
from torch_xla import amp, backends
from torch_xla._src.compile import program_cache
from torch_xla._src.device import autocast
from torch_xla._src.graph.recorder import RECORDER

LOWER, FLOAT32, SAME = "lower", "float32", "same"  # than the dtype of the input
HALVES = [torch.bfloat16, torch.float16]


def weight(*shape):
    return torch.ones(*shape, device="xla")


# Name -> (function of a matrix [4, 8], dtype of its result). See Note [Autocast lists].
OPS = {
    "matmul": (lambda x: x @ weight(8, 8), LOWER),
    "mm": (lambda x: torch.mm(x, weight(8, 8)), LOWER),
    "addmm": (lambda x: torch.addmm(weight(4), x, weight(8, 4)), LOWER),
    "bmm": (lambda x: torch.bmm(x[None], weight(1, 8, 2)), LOWER),
    "baddbmm": (lambda x: torch.baddbmm(weight(1, 4, 2), x[None], weight(1, 8, 2)), LOWER),
    "mv": (lambda x: torch.mv(x, weight(8)), LOWER),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, weight(3, 8)), LOWER),
    "linear": (lambda x: F.linear(x, weight(3, 8), weight(3)), LOWER),
    "conv1d": (lambda x: F.conv1d(x, weight(2, 4, 3), padding="same"), LOWER),
    "conv2d": (lambda x: F.conv2d(x[None, None], weight(2, 1, 3, 3)), LOWER),
    "conv3d": (lambda x: F.conv3d(x[None, None, None], weight(2, 1, 1, 3, 3)), LOWER),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x[None, None], weight(1, 2, 3, 3)), LOWER),
    "prelu": (lambda x: F.prelu(x, weight(1)), LOWER),
    "relu": (F.relu, LOWER),
    "max_pool2d": (lambda x: F.max_pool2d(x[None, None], 2), LOWER),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]), LOWER),
    "lstm_cell": (lambda x: nn.LSTMCell(8, 3).to("xla")(x)[0], LOWER),
    "softmax": (lambda x: x.softmax(-1), FLOAT32),
    "log_softmax": (lambda x: F.log_softmax(x, -1), FLOAT32),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), FLOAT32),
    "group_norm": (lambda x: F.group_norm(x, 2), FLOAT32),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), FLOAT32),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(4, device="xla")), FLOAT32),
    "nll_loss": (lambda x: F.nll_loss(x, torch.arange(4, device="xla")), FLOAT32),
    "mse_loss": (lambda x: F.mse_loss(x, weight(4, 8)), FLOAT32),
    "l1_loss": (lambda x: F.l1_loss(x, weight(4, 8)), FLOAT32),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, weight(4, 8)), FLOAT32),
    "huber_loss": (lambda x: F.huber_loss(x, weight(4, 8)), FLOAT32),
    "kl_div": (lambda x: F.kl_div(x, weight(4, 8), reduction="batchmean"), FLOAT32),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x.sigmoid(), weight(4, 8)), FLOAT32),
    "bce_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, weight(4, 8)), FLOAT32),
    "triplet_margin_loss": (lambda x: F.triplet_margin_loss(x, weight(4, 8), x * 2), FLOAT32),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, weight(4, 8)), FLOAT32),
    "cdist": (lambda x: torch.cdist(x, weight(2, 8)), FLOAT32),
    "pow": (lambda x: x**3, FLOAT32),
    "exp": (torch.exp, FLOAT32),
    "log": (lambda x: x.abs().log(), FLOAT32),
    "rsqrt": (lambda x: x.abs().rsqrt(), FLOAT32),
    "sum": (torch.sum, FLOAT32),
    "prod": (lambda x: x.prod(0), FLOAT32),
    "cumsum": (lambda x: x.cumsum(0), FLOAT32),
    "norm": (lambda x: x.norm(), FLOAT32),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x), FLOAT32),
    "trace": (torch.trace, FLOAT32),
    "reflection_pad2d": (lambda x: F.pad(x[None], (1, 1, 1, 1), "reflect"), FLOAT32),
    "interpolate": (lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"), FLOAT32),
    "cat": (lambda x: torch.cat([x, x.to(torch.get_autocast_dtype("xla"))]), SAME),
    "stack": (lambda x: torch.stack([x, x.to(torch.get_autocast_dtype("xla"))]), SAME),
    "gelu": (F.gelu, SAME),
    "add": (lambda x: x + x, SAME),
    "mean": (torch.mean, SAME),
    "tanh": (torch.tanh, SAME),
}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_dtypes(name, half):
    function, expected = OPS[name]
    x = torch.randn(4, 8).to("xla")
    for given in (torch.float32, half):
        with torch.autocast("xla", dtype=half):
            result = function(x.to(given))
        assert result.dtype is {LOWER: half, FLOAT32: torch.float32, SAME: given}[expected]


def test_other_dtypes_are_left_alone():
    doubles, integers = (
        torch.ones(3, 3, dtype=torch.float64, device="xla"),
        torch.ones(3, 3, dtype=torch.int64).to("xla"),
    )
    with torch.autocast("xla"):
        assert (doubles @ doubles).dtype is torch.float64
        assert (integers @ integers).dtype is torch.int64
        assert integers.sum().dtype is torch.int64
        assert doubles.softmax(-1).dtype is torch.float64


def test_regions_nest():
    x = weight(3, 3)
    with torch.autocast("xla"):
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype is torch.float32
        with torch.autocast("xla", dtype=torch.float16):
            assert (x @ x).dtype is torch.float16
        assert (x @ x).dtype is torch.bfloat16
    assert (x @ x).dtype is torch.float32


# ---- cached casts --------------------------------------------------------------------------------------------------------


def casts_pending():
    return [row for row in RECORDER.node.path() if row.op is torch.ops.aten._to_copy.default]


def test_a_weight_is_cast_once_in_a_region():
    x, w = weight(2, 4).bfloat16(), nn.Parameter(weight(4, 4))
    torch_xla.sync()
    with torch.autocast("xla"):
        y = F.linear(F.linear(F.linear(x, w), w), w)
        assert len(casts_pending()) == 1
    assert not autocast._casts
    y.sum().backward()
    assert w.grad.dtype is torch.float32
    torch.testing.assert_close(w.grad.cpu(), torch.full((4, 4), 96.0))
    with torch.autocast("xla", cache_enabled=False):
        F.linear(F.linear(x, w), w)
        assert len(casts_pending()) == 2


def test_a_weight_that_is_written_to_is_cast_again():
    x, w = weight(1, 2), nn.Parameter(weight(1, 2))
    with torch.autocast("xla"):
        assert F.linear(x, w).item() == 2
        with torch.no_grad():
            w.mul_(3)
        assert F.linear(x, w).item() == 6


def test_a_cast_without_gradient_is_not_used_where_one_is_wanted():
    x, w = weight(1, 2), nn.Parameter(weight(1, 2))
    with torch.autocast("xla"):
        with torch.no_grad():
            F.linear(x, w)
        F.linear(x, w).sum().backward()
    assert w.grad.tolist() == [[1.0, 1.0]]


def test_a_recurrent_network_casts_its_weights_once():
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    model.to("xla")
    x = x.to("xla")
    torch_xla.sync()
    with torch.autocast("xla"):
        model(x)
        once = len(casts_pending())
        model(x)
        assert len(casts_pending()) - once == 3  # the input and the states


# ---- training ------------------------------------------------------------------------------------------------------------


@functools.cache
def losses(name, dtype=None, whole=False, steps=12):
    torch.manual_seed(0)
    make, batch, loss_of = MODELS[name]
    model, (x, y) = make().to("xla"), batch()
    x, y = x.to("xla"), y.to("xla")
    if whole:
        model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=dtype, enabled=dtype is not None and not whole):
            loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        found.append((loss.item(), RECORDER.rebuilt, met.counter_value("UncachedCompile")))
    assert found[-1][1:] == found[4][1:]  # the later steps replay
    return [loss for loss, *_ in found]


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_training_in_bfloat16_follows_float32(name):
    expected = losses(name)
    assert expected[-1] < 0.9 * expected[0]
    assert losses(name, torch.bfloat16)[-1] == pytest.approx(expected[-1], rel=0.02)


def test_training_in_float16_follows_float32():
    assert losses("gpt", torch.float16)[-1] == pytest.approx(losses("gpt")[-1], rel=0.02)


def test_training_a_whole_model_in_bfloat16():
    # Steps of parameters of 8 bits are coarse: it trains, if not as closely as with weights of 32.
    assert losses("gpt", torch.bfloat16, whole=True)[-1] == pytest.approx(losses("gpt")[-1], rel=0.05)


REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 4),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "mse_loss": lambda x: F.mse_loss(x, x * 0),
    "l1_loss": lambda x: F.l1_loss(x, x * 0),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0], device=x.device)),
    "norm": torch.linalg.vector_norm,
    "matmul": lambda x: x @ x.t(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_accumulate_in_float32(name, half):
    """Without autocast, and no worse than the rounding of the result, whatever the number of terms."""
    x = (torch.randn(64, 512) + 1).to(half)
    exact = REDUCTIONS[name](x.double())
    eps = torch.finfo(half).eps
    torch.testing.assert_close(REDUCTIONS[name](x.to("xla")).cpu().double(), exact, rtol=eps, atol=eps * 0.02)


# ---- names of PyTorch/XLA -------------------------------------------------------------------------------------------------


def test_amp_autocast():
    x = weight(3, 3)
    with amp.autocast(torch_xla.device()):
        assert (x @ x).dtype is torch.bfloat16
    with amp.autocast("xla", enabled=False):
        assert (x @ x).dtype is torch.float32
    decorated = amp.autocast("xla:0", dtype=torch.float16)(torch.matmul)
    assert decorated(x, x).dtype is torch.float16
    with pytest.raises(ValueError, match=re.escape("use torch.autocast")):
        amp.autocast("cpu")


def train(make, device, optimizer_of, step):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = optimizer_of(model.parameters())
    x = torch.randn(5, 4).to(device)
    for number in range(6):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        step(optimizer, number)
    return [p.detach().cpu() for p in model.parameters()]


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


SYNCFREE = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.05, "amsgrad": True},
    "AdamW": {"lr": 0.05},
}


@pytest.mark.parametrize("name", SYNCFREE)
def test_syncfree_optimizers(name):
    options = SYNCFREE[name]
    plain, ours = getattr(torch.optim, name), getattr(amp.syncfree, name)
    assert issubclass(ours, plain)
    expected = train(small, "cpu", lambda p: plain(p, **options), lambda o, n: o.step() if n != 2 else None)
    reads = met.counter_value("aten::_local_scalar_dense")
    for flag in (lambda n: torch.tensor(float(n == 2), device="xla"), lambda n: int(n == 2)):
        actual = train(small, "xla", lambda p: ours(p, **options), lambda o, n, flag=flag: o.step(found_inf=flag(n)))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert met.counter_value("aten::_local_scalar_dense") == reads


def test_a_syncfree_average_does_not_begin_with_a_step_that_is_skipped():
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    expected = train(
        small, "cpu", lambda p: torch.optim.SGD(p, **options), lambda o, n: o.step() if n not in (0, 3) else None
    )
    actual = train(
        small, "xla", lambda p: amp.syncfree.SGD(p, **options), lambda o, n: o.step(found_inf=int(n in (0, 3)))
    )
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_hooks_of_a_syncfree_optimizer_run_once():
    w = nn.Parameter(weight(2))
    torch.optim.SGD([w], lr=0.1)  # from here on the step of this class runs hooks, too
    optimizer, calls = amp.syncfree.SGD([w], lr=0.1), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    w.sum().backward()
    assert optimizer.step(lambda: 7.0) == 7.0
    assert calls == [1]


OPTIMIZERS = {
    "SGD, momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "SGD, dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    "SGD, foreach": {"lr": 0.1, "momentum": 0.9, "foreach": True},
    "Adam": {"lr": 0.05},
    "Adam, rate": {"lr": torch.tensor(0.05)},
    "AdamW, foreach": {"lr": 0.05, "foreach": True},
    "AdamW, fused": {"lr": 0.05, "fused": True},
    "Adagrad": {"lr": 0.05},
    "NAdam": {"lr": 0.05},
    "RMSprop": {"lr": 0.05},
    "Rprop": {"lr": 0.05},
}


def scaled(name, device, clip=False):
    """Parameters, scale and host reads after steps of which two have an infinite or undefined gradient."""
    torch.manual_seed(0)
    model = small().to(device)
    optimizer = getattr(torch.optim, name.partition(",")[0])(model.parameters(), **OPTIMIZERS[name])
    scaler = torch.amp.GradScaler(device, growth_interval=3)
    x = torch.randn(5, 4).to(device)
    factors = [torch.tensor(f).to(device) for f in (1.0, float("inf"), 1.0, 1.0, float("nan"), 1.0, 1.0)]
    reads, rows = [], []
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale(model(x).pow(2).mean() * factor).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        reads.append(met.counter_value("aten::_local_scalar_dense"))
        rows.append(RECORDER.rebuilt)
    return [p.detach().cpu() for p in model.parameters()], scaler.get_scale(), reads, rows


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_skipped_without_a_host_read(name):
    expected, scale, *_ = scaled(name, "cpu")
    actual, actual_scale, reads, rows = scaled(name, "xla")
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert actual_scale == scale
    assert reads[0] == reads[-1]  # the first step of some reads, to make their state
    assert rows[2] == rows[-1]  # skipped or not, the same program


def test_gradients_are_clipped_between_unscaling_and_the_step():
    expected, scale, *_ = scaled("Adam", "cpu", clip=True)
    actual, actual_scale, reads, _ = scaled("Adam", "xla", clip=True)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert actual_scale == scale
    assert reads[0] == reads[-1]


def test_an_optimizer_from_elsewhere_is_asked_about_on_the_host():
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

    w = nn.Parameter(weight(2))
    optimizer, scaler = Counting([w], lr=0.5), amp.GradScaler(init_scale=4.0)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.steps == 1
    assert w.tolist() == [0.5, 0.5]
    assert scaler.get_scale() == 2.0


def test_a_scaled_optimizer_that_has_stepped_before_goes_on():
    def run(device):
        torch.manual_seed(0)
        model = small().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler(device)
        x = torch.ones(5, 4).to(device)
        for number in range(4):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            if number < 2:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return [p.detach().cpu() for p in model.parameters()], copy.deepcopy(optimizer.state_dict())

    (actual, state), (expected, other) = run("xla"), run("cpu")
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert [s["step"].item() for s in state["state"].values()] == [s["step"].item() for s in other["state"].values()]


# ---- precision of products -----------------------------------------------------------------------------------------------


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    backends.set_mat_mul_precision("default")


def operand_precision():
    """What the products of a program say, recorded anew and launched."""
    x, image, kernel = weight(8, 8), weight(1, 2, 8, 8), weight(3, 2, 3, 3)
    torch_xla.sync()
    results = x @ x, F.linear(x, x), F.conv2d(image, kernel)
    torch_xla.sync()
    del results
    (_, key), row = next(reversed(program_cache._used.items()))
    text = row.programs[key].executable.as_text()
    return re.findall(r"operand_precision=\{(\w+),\w+\}", text)


@pytest.mark.usefixtures("precision")
def test_precision_reaches_the_products():
    assert operand_precision() == []  # the default is not written out
    found = {}
    for name in ("high", "highest", "default"):
        backends.set_mat_mul_precision(name)
        assert backends.get_mat_mul_precision() == name
        found[name] = set(operand_precision())
    assert found == {"high": {"high"}, "highest": {"highest"}, "default": set()}
    compiled = met.counter_value("UncachedCompile")
    backends.set_mat_mul_precision("high")
    assert set(operand_precision()) == {"high"}
    assert met.counter_value("UncachedCompile") == compiled  # each setting has its program
    with pytest.raises(ValueError, match="default, high, highest"):
        backends.set_mat_mul_precision("medium")


@pytest.mark.usefixtures("precision")
def test_the_setting_of_torch_is_followed():
    for given, taken in (("high", "high"), ("medium", "default"), ("highest", "highest")):
        torch.set_float32_matmul_precision(given)
        assert backends.get_mat_mul_precision() == taken
        assert torch.get_float32_matmul_precision() == given
    assert set(operand_precision()) == {"highest"}


def test_a_scaled_optimizer_that_was_told_to_use_foreach():
    parameter = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([parameter], lr=0.5, foreach=True)
    scaler = torch.amp.GradScaler("xla", init_scale=4.0)
    for factor, expected in ((1.0, 0.5), (float("inf"), 0.5), (2.0, -0.5)):
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert parameter.tolist() == [expected] * 3


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_fused_optimizer_whose_rate_is_a_tensor_on_the_host(optimizer):
    def trained(device, **options):
        parameter = nn.Parameter(torch.ones(3, device=device))
        made = optimizer([parameter], **options)
        for factor in (1.0, -3.0):
            made.zero_grad()
            (parameter.square().sum() * factor).backward()
            made.step()
        return parameter.detach().cpu()

    torch.testing.assert_close(trained("xla", lr=torch.tensor(0.1), fused=True), trained("cpu", lr=0.1))


def test_a_skipped_first_step_of_syncfree_sgd_leaves_no_momentum():
    def trained(make, steps):
        parameter = nn.Parameter(torch.ones(3, device="xla"))
        optimizer = make([parameter], lr=0.1, momentum=0.9, dampening=0.5)
        for options in steps:
            parameter.grad = torch.full_like(parameter, 2.0)
            optimizer.step(**options)
        return parameter.tolist()

    found = torch.ones((), device="xla")
    steps = [{"found_inf": found}, {"found_inf": found * 0}, {"found_inf": found}, {}]
    assert trained(amp.syncfree.SGD, steps) == trained(torch.optim.SGD, [{}, {}])
