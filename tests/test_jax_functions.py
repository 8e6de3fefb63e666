"""JAX functions and hand-written XLA ops on xla tensors."""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_op_registry as xor
import torch_xla.debug.metrics as met
from torch_xla._src.ops import jax_call
from torch_xla.experimental.assume_pure import j2t_autograd


def arange(n=4, **kwargs):
    return torch.arange(float(n), device="xla", **kwargs)


# ---- call_jax -------------------------------------------------------------------------------------------------------


def test_a_call_is_recorded_and_replayed_and_its_python_runs_once():
    traced = []

    def f(x, y):
        traced.append(x.shape)
        return jnp.sin(x) * y

    x, y = arange(), arange() + 1
    torch_xla.sync(wait=True)
    for step in range(4):
        met.clear_all()
        result = xb.call_jax(f, (x, y)) + 1
        assert met.metric_data("ExecuteTime") is None  # nothing has run yet
        torch_xla.sync()
        if step:
            assert met.counter_value("RowsRebuilt") is met.counter_value("UncachedCompile") is None
    torch.testing.assert_close(result.cpu(), torch.sin(x.cpu()) * y.cpu() + 1)
    assert traced == [(4,)]
    xb.call_jax(f, (arange(5), arange(5)))
    assert traced == [(4,), (5,)]


def test_nested_arguments_and_results():
    def f(batch, *, scale, flag):
        return {"sum": batch["x"][0] + batch["x"][1] * scale, "same": [batch["n"], None], "flag": jnp.asarray(flag)}

    result = xb.call_jax(f, ({"x": (arange(), arange()), "n": arange(2)},), {"scale": 2.0, "flag": True})
    assert result["sum"].tolist() == [0, 3, 6, 9]
    assert (result["same"][0].tolist(), result["same"][1], result["flag"].item()) == ([0, 1], None, True)


def test_constants_are_told_apart():
    def f(x, n):
        return x * n

    assert xb.call_jax(f, (arange(), 2)).tolist() == [0, 2, 4, 6]
    assert xb.call_jax(f, (arange(), 3)).tolist() == [0, 3, 6, 9]
    assert xb.call_jax(f, (arange(), 2.0)).tolist() == [0, 2, 4, 6]
    assert str(xb.call_jax(f, (arange(), -0.0)).tolist()) == "[-0.0, -0.0, -0.0, -0.0]"


def test_functions_that_are_made_anew_can_share_a_hash():
    x = arange()
    torch_xla.sync()
    xb.call_jax(lambda a: a + 1, (x,), override_hash="plus one").cpu()
    met.clear_all()
    assert xb.call_jax(lambda a: a + 1, (x,), override_hash="plus one").tolist() == [1, 2, 3, 4]
    assert met.counter_value("UncachedCompile") is None
    assert xb.call_jax(lambda a: a + 2, (x,)).tolist() == [2, 3, 4, 5]


FACTOR = 2.0
HELD = [2.0]


def test_functions_made_anew_by_the_same_code_are_traced_once():
    class Scaled:
        def by(self, x):
            return x * 2

    def times(factor):
        return lambda x: x * factor

    scaled, traced = Scaled(), len(jax_call.CALLS)
    for factor in (2.0, 2.0, 3.0, 2.0):
        assert xb.call_jax(times(factor), (arange(),)).tolist() == [0, factor, 2 * factor, 3 * factor]
        assert xb.call_jax(functools.partial(jnp.add, 1.0), (arange(),)).tolist() == [1, 2, 3, 4]
        assert xb.call_jax(scaled.by, (arange(),)).tolist() == [0, 2, 4, 6]
    assert len(jax_call.CALLS) == traced + 4


def test_a_function_that_reads_what_has_changed_is_traced_again(monkeypatch):
    for factor in (2.0, 3.0):
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        HELD[0] = factor
        assert xb.call_jax(lambda x: x * FACTOR, (arange(),)).tolist() == [0, factor, 2 * factor, 3 * factor]
        assert xb.call_jax(lambda x: x * HELD[0], (arange(),)).tolist() == [0, factor, 2 * factor, 3 * factor]


def test_gradients_are_those_of_jax_and_mix_with_torchs():
    def f(x, w, n):
        return {"y": jnp.tanh(x @ w), "count": n + 1}

    x, w = torch.randn(3, 4), torch.randn(4, 2)
    xt, wt = x.to("xla").requires_grad_(), w.to("xla").requires_grad_()
    out = xb.call_jax(f, (xt * 2, wt, torch.arange(3, device="xla")))
    (out["y"].pow(2).sum() * 3).backward()
    xc, wc = x.clone().requires_grad_(), w.clone().requires_grad_()
    (torch.tanh((xc * 2) @ wc).pow(2).sum() * 3).backward()
    torch.testing.assert_close(xt.grad.cpu(), xc.grad)
    torch.testing.assert_close(wt.grad.cpu(), wc.grad)
    assert not out["count"].requires_grad


def test_j2t_autograd_trains():
    f = j2t_autograd(lambda w, x: jnp.mean((x @ w) ** 2))
    w = torch.nn.Parameter(torch.ones(3, 1, device="xla"))
    optimizer = torch.optim.SGD([w], lr=0.01)
    x = torch.randn(5, 3).to("xla")
    losses, rebuilt = [], []
    for _ in range(5):
        met.clear_all()
        optimizer.zero_grad()
        loss = f(w, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        rebuilt.append(met.counter_value("RowsRebuilt"))
    assert losses == sorted(losses, reverse=True)
    assert rebuilt[2:] == [None] * 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_64_bit_tensors_stay_what_they_are(dtype):
    x = torch.tensor([2**40, 1], dtype=dtype, device="xla")
    y = xb.call_jax(lambda a: a + 1, (x,))
    assert (y.dtype, y.tolist()) == (dtype, [2**40 + 1, 2])
    assert not jax.config.jax_enable_x64


def test_types_are_jaxs_own_where_nothing_is_64_bit():
    assert xb.call_jax(lambda a: jnp.arange(3) + a.astype(int)[0], (arange(),)).dtype == torch.int32


def test_arrays_are_taken_as_tensors_and_left_alone():
    array = jnp.ones(3)
    result = xb.call_jax(lambda a, b: a + b, (array, np.full(3, 2.0, np.float32)))
    torch_xla.sync()
    assert result.tolist() == [3, 3, 3]
    assert array.tolist() == [1, 1, 1]  # was not donated


def test_bad_arguments_are_errors_that_say_what_to_do():
    with pytest.raises(ValueError, match=r"on cpu: move it with .to\('xla'\)"):
        xb.call_jax(jnp.sin, (torch.ones(2),))
    with pytest.raises(TypeError, match="neither an xla tensor nor hashable"):
        xb.call_jax(lambda a, b: a, (arange(), {1, 2}))
    pending = arange() + 1
    with pytest.raises(TypeError, match="got incompatible shapes"):
        xb.call_jax(jnp.add, (arange(4), arange(3)))
    assert pending.tolist() == [1, 2, 3, 4]


# ---- the builder ----------------------------------------------------------------------------------------------------

F32, S32 = xb.Type.F32, xb.Type.S32
SCALAR = xb.mkshape(F32, ())


def scalars(name, f):
    return xb.create_computation(name, f, (SCALAR, SCALAR))


ADD, MUL = scalars("add", lambda a, b: a + b), scalars("mul", lambda a, b: a * b)
MAX, LESS = scalars("max", lambda a, b: a.max(b)), scalars("less", lambda a, b: a < b)
GREATER, SECOND = scalars("greater", lambda a, b: a > b), scalars("second", lambda a, b: b)


def zero(x):
    return xb.Op.zero(x.builder(), F32)


def matrix(x):
    return x.reshape((2, 2))


# By what it does: a function of Ops, and the same on a CPU tensor [0, 1, 2, 3].
OPS = {
    "arithmetic": (lambda x: (x * x + 1 - x) / 2.0, lambda t: (t * t + 1 - t) / 2),
    "reflected": (lambda x: 1.0 - x, lambda t: 1 - t),
    "compare": (lambda x: (x >= 2).select(x, -x), lambda t: torch.where(t >= 2, t, -t)),
    "functions": (lambda x: x.sin().exp().sqrt().log1p(), lambda t: torch.log1p(t.sin().exp().sqrt())),
    "erfinf": (lambda x: (x * 0.1).erfinf(), lambda t: torch.erfinv(t * 0.1)),
    "clamp": (lambda x: x.clamp(1.0, 2.0), lambda t: t.clamp(1, 2)),
    "cast": (lambda x: (x / 2.0).cast(S32), lambda t: (t / 2).to(torch.int32)),
    "bitcast": (lambda x: x.bitcast(S32), lambda t: t.view(torch.int32)),
    "reshape": (lambda x: x.reshape((2, 2)).transpose((1, 0)), lambda t: t.view(2, 2).t()),
    "broadcast": (lambda x: x.broadcast((2,)), lambda t: t.expand(2, 4)),
    "broadcast_in_dim": (lambda x: x.broadcast_in_dim((4, 3), (0,)), lambda t: t[:, None].expand(4, 3)),
    "slice": (lambda x: x.slice((1,), (4,), (2,)), lambda t: t[1:4:2]),
    "slice_in_dim": (lambda x: x.slice_in_dim(1, 3, 0), lambda t: t[1:3]),
    "dynamic_slice": (lambda x: x.dynamic_slice([x.scalar_like(2).cast(S32)], (2,)), lambda t: t[2:]),
    "rev": (lambda x: x.rev((0,)), lambda t: t.flip(0)),
    "pad": (lambda x: x.pad(x.scalar_like(7), [(1, 2, 0)]), lambda t: torch.nn.functional.pad(t, (1, 2), value=7.0)),
    "dot": (lambda x: matrix(x).dot(matrix(x)), lambda t: t.view(2, 2) @ t.view(2, 2)),
    "concat": (lambda x: xb.Op.concat_in_dim([x, x], 0), lambda t: torch.cat([t, t])),
    "iota": (lambda x: xb.Op.iota(x.builder(), xb.mkshape(F32, (2, 3)), 1), lambda t: torch.arange(3.0).expand(2, 3)),
    "constant": (lambda x: x + xb.Op.constant(x.builder(), torch.full((4,), 2.0)), lambda t: t + 2),
    "reduce": (lambda x: matrix(x).reduce(zero(x), ADD, [1]), lambda t: t.view(2, 2).sum(1)),
    "reduce_all": (lambda x: (x + 1).reduce_all(xb.Op.one(x.builder(), F32), MUL), lambda t: (t + 1).prod()),
    "reduce_window": (lambda x: x.reduce_window(zero(x), MAX, (2,), (1,)), lambda t: t[1:]),
    "map": (lambda x: xb.Op.map([x, x], ADD, [0]), lambda t: t * 2),
    "call": (lambda x: xb.Op.call(MUL, [x, x]), lambda t: t * t),
    "sort": (lambda x: xb.Op.sort([-x], LESS, 0), lambda t: (-t).sort().values),
    "sort down": (lambda x: xb.Op.sort([x], GREATER, 0), lambda t: t.flip(0)),
    "mkwhile": (
        lambda x: x.mkwhile([x.scalar_like(0)], lambda x, i: i < 3, lambda x, i: (x * 2, i + 1)).get_tuple_element(0),
        lambda t: t * 8,
    ),
    "mkconditional": (
        lambda x: (x.slice_in_dim(3, 4, 0).reshape(()) > 1).mkconditional([x], lambda x: x + 1, lambda x: x - 1),
        lambda t: t + 1,
    ),
    "mkop": (lambda x: xb.mkop("Tanh", [x]), torch.tanh),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_builder(name):
    function, reference = OPS[name]
    result = xor.register(name, function)(arange())
    expected = reference(torch.arange(4.0))
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(result.cpu(), expected.contiguous())


@pytest.mark.parametrize(
    ("computation", "index", "updates", "expected"),
    [
        (ADD, [1, 1], [4.0, 3.0], [0, 8, 2, 3]),
        (MUL, [1, 1], [3.0, 4.0], [0, 12, 2, 3]),
        (MAX, [1, 3], [4.0, 2.0], [0, 4, 2, 3]),
        (SECOND, [1], [4.0], [0, 4, 2, 3]),
    ],
)
def test_scatter(computation, index, updates, expected):
    scatter = xor.register("scatter", lambda x, i, u: x.scatter(i, u, computation, (), (0,), (0,), 1))
    found = scatter(arange(), torch.tensor(index, device="xla"), torch.tensor(updates, device="xla"))
    assert found.tolist() == expected


def test_gather():
    gather = xor.register("gather", lambda x, i: x.gather(i, (), (0,), (0,), 1))
    assert gather(arange(), torch.tensor([3, 1], device="xla")).tolist() == [3, 1]


def test_computations_as_functions_and_as_text():
    computation = xb.create_computation("square", lambda x, *, n: x * x * n, [xb.mkshape(F32, (4,))], n=2.0)
    assert xb.xla_computation_as_func(computation)([arange()]).tolist() == [0, 2, 8, 18]
    assert xb.xla_computation_as_func(computation)(arange()).tolist() == [0, 2, 8, 18]
    assert xb.get_computation_hlo(computation).startswith("HloModule ")
    assert "multiply" in xb.get_computation_hlo(computation)


def test_a_registered_op_is_recorded_once_for_each_keyword():
    op = xor.register("scale", lambda x, *, k: x * k)
    for k in (2.0, 3.0):
        assert op(arange(), k=k).tolist() == [0, k, 2 * k, 3 * k]
    met.clear_all()
    assert op(arange(), k=2.0).tolist() == [0, 2, 4, 6]
    assert met.counter_value("UncachedCompile") is None


def test_shapes():
    shape = xb.tensor_shape(torch.ones(2, 3, dtype=torch.bfloat16, device="xla"))
    assert (shape.dtype, shape.sizes, shape.rank, shape.is_dynamic(), shape.is_tuple()) == (
        "bf16",
        (2, 3),
        2,
        False,
        False,
    )
    assert xb.Op.to_torch_type(xb.Type.S64) is torch.int64
    assert xb.Op.from_torch_type(torch.bool) == xb.Type.PRED
    with pytest.raises(ValueError, match="no name of a dtype"):
        xb.mkshape("float", (2,))


def test_a_computation_of_parameters_made_by_hand():
    builder = xb.create_builder("by_hand")
    x, y = xb.mkparam(builder, 0, xb.mkshape("f32", (4,))), xb.mkparam(builder, 1, xb.mkshape("f32", (4,)))
    with pytest.raises(ValueError, match="parameter 1 already"):
        xb.mkparam(builder, 1, SCALAR)
    one = xb.Op.one(builder)
    z = one - (x * y + 2.0).max(one.broadcast((4,)))  # a value that is known, by one that is not
    root = xb.Op.concat_in_dim([z, -x], 0)
    assert root.shape().sizes == (8,)
    assert root.builder() is builder
    computation = root.build("by_hand")
    assert [shape.sizes for shape in computation.shapes] == [(4,), (4,)]
    assert "parameter(1)" in xb.get_computation_hlo(computation)
    function = xb.xla_computation_as_func(computation)
    assert function(arange(), arange()).tolist() == [-1, -2, -5, -10, 0, -1, -2, -3]
    pair = xb.Op.tuple([x.exp(), x]).get_tuple_element(1).build("second")
    assert xb.xla_computation_as_func(pair)(arange(), arange()).tolist() == [0, 1, 2, 3]
    alone = xb.create_builder("alone")
    with pytest.raises(ValueError, match="numbered from 0"):
        xb.mkparam(alone, 1, SCALAR).build("alone")
