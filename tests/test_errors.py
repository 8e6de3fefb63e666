"""Errors on device xla: the class that the CPU raises, the user's line, and nothing pending is lost."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_xla
from tests.same import raised


def _twice(d):
    w = torch.ones(3, device=d, requires_grad=True)
    loss = (w * w).sum()
    loss.backward()
    loss.backward()


def _leaf(d):
    torch.ones(3, device=d, requires_grad=True).add_(1)


def _hook(d):
    w = torch.ones(3, device=d, requires_grad=True)
    w.register_hook(lambda g: g.reshape(2, 2))
    (w * 2).sum().backward()


def _wrong_gradient(d):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g[:1].expand(2)

    Wrong.apply(torch.ones(3, device=d, requires_grad=True)).sum().backward()


def _changed(d):
    w = torch.ones(3, device=d, requires_grad=True)
    y = w.exp()
    y.add_(1)
    y.sum().backward()


# Statements on a device that the CPU refuses.
WRONG = {
    "add shapes": lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    "mm shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "bmm shapes": lambda d: torch.bmm(torch.ones(2, 3, 4, device=d), torch.ones(2, 3, 4, device=d)),
    "cat shapes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
    "stack shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "view size": lambda d: torch.ones(6, device=d).view(4, 2),
    "reshape size": lambda d: torch.ones(6, device=d).reshape(-1, 4),
    "linear": lambda d: nn.Linear(3, 4, device=d)(torch.ones(2, 4, device=d)),
    "conv channels": lambda d: nn.Conv2d(3, 4, 3, device=d)(torch.ones(1, 2, 8, 8, device=d)),
    "conv kernel too large": lambda d: nn.Conv2d(1, 1, 5, device=d)(torch.ones(1, 1, 3, 3, device=d)),
    "layer norm": lambda d: nn.LayerNorm(3, device=d)(torch.ones(2, 4, device=d)),
    "batch norm": lambda d: nn.BatchNorm1d(3, device=d)(torch.ones(2, 4, device=d)),
    "cross entropy shapes": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(3, dtype=torch.long, device=d)),
    "expand": lambda d: torch.ones(3, device=d).expand(2, 4),
    "permute": lambda d: torch.ones(2, 3, device=d).permute(0, 0),
    "dim out of range": lambda d: torch.ones(2, 3, device=d).sum(2),
    "softmax dim": lambda d: torch.ones(2, device=d).softmax(3),
    "squeeze of a 0-d": lambda d: torch.ones(2, device=d).unsqueeze(5),
    "gather dims": lambda d: torch.ones(2, device=d).gather(0, torch.zeros(1, 1, dtype=torch.long, device=d)),
    "embedding of floats": lambda d: F.embedding(torch.ones(2, device=d), torch.ones(3, 4, device=d)),
    "mm of mixed dtypes": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "linear of mixed dtypes": lambda d: nn.Linear(2, 2, device=d)(torch.ones(2, 2, dtype=torch.float16, device=d)),
    "minus of bools": lambda d: torch.ones(2, dtype=torch.bool, device=d) - torch.ones(2, dtype=torch.bool, device=d),
    "neg of bools": lambda d: -torch.ones(2, dtype=torch.bool, device=d),
    "bitwise of floats": lambda d: torch.ones(2, device=d) & torch.ones(2, device=d),
    "integer into float in place": lambda d: torch.ones(2, dtype=torch.long, device=d).add_(1.5),
    "mean of integers": lambda d: torch.ones(2, dtype=torch.long, device=d).mean(),
    "gradient of integers": lambda d: torch.ones(2, dtype=torch.long, device=d, requires_grad=True),
    "index of floats": lambda d: torch.ones(2, device=d)[torch.ones(1, device=d)],
    "mask shape": lambda d: torch.ones(3, device=d)[torch.ones(4, dtype=torch.bool, device=d)],
    "constant out of range": lambda d: torch.ones(3, device=d)[5],
    "constant out of range, second": lambda d: torch.ones(3, 2, device=d)[0, -3],
    "set out of range": lambda d: torch.ones(3, device=d).__setitem__(3, 0),
    "narrow": lambda d: torch.ones(3, device=d).narrow(0, 2, 2),
    "too many indices": lambda d: torch.ones(3, device=d)[0, 0],
    "setitem shape": lambda d: torch.ones(3, device=d).__setitem__(slice(0, 2), torch.ones(3, device=d)),
    "copy shape": lambda d: torch.ones(3, device=d).copy_(torch.ones(4, device=d)),
    "copy shape from the host": lambda d: torch.ones(3, device=d).copy_(torch.ones(4)),
    "in place changes shape": lambda d: torch.ones(1, device=d).add_(torch.ones(3, device=d)),
    "foreach in place changes shape": lambda d: torch._foreach_add_([torch.ones(1, device=d)], [torch.ones(3, device=d)]),
    "item of many": lambda d: torch.ones(3, device=d).item(),
    "bool of many": lambda d: bool(torch.ones(3, device=d)),
    "int of many": lambda d: int(torch.ones(3, device=d)),
    "len of a 0-d": lambda d: len(torch.ones((), device=d)),
    "iteration of a 0-d": lambda d: list(torch.ones((), device=d)),
    "leaf in place": _leaf,
    "view of a leaf in place": lambda d: torch.ones(3, device=d, requires_grad=True)[0].zero_(),
    "backward twice": _twice,
    "backward of many": lambda d: (torch.ones(3, device=d, requires_grad=True) * 2).backward(),
    "backward without a graph": lambda d: torch.ones((), device=d).backward(),
    "a hook that changes the shape": _hook,
    "gradient of a wrong shape": _wrong_gradient,
    "a saved tensor was changed": _changed,
    "out= of another dtype": lambda d: torch.add(torch.ones(2, device=d), 1.5, out=torch.ones(2, dtype=torch.long, device=d)),
    "cholesky of a negative matrix": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "inverse of a singular matrix": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "multinomial of too many": lambda d: torch.multinomial(torch.ones(2, device=d), 5),
    "load_state_dict": lambda d: nn.Linear(2, 2, device=d).load_state_dict({"weight": torch.ones(3, 3)}),
    "tensor of ragged lists": lambda d: torch.tensor([[1], [1, 2]], device=d),
    "unknown attribute": lambda d: torch.ones(2, device=d).foo,
    "split sizes": lambda d: torch.ones(3, device=d).split([1, 1]),
    "optimizer of a non-leaf": lambda d: torch.optim.SGD([torch.ones(2, device=d, requires_grad=True) * 2], lr=0.1),
    "attention shapes": lambda d: F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, s, device=d) for s in (4, 3, 4)]),
    "pool": lambda d: F.max_pool2d(torch.ones(1, 1, 2, 2, device=d), 5),
    "interpolate": lambda d: F.interpolate(torch.ones(1, 1, 2, device=d), size=3, mode="bilinear"),
    "one_hot": lambda d: F.one_hot(torch.ones(2, device=d), 3),
    "topk": lambda d: torch.ones(3, device=d).topk(5),
    "repeat": lambda d: torch.ones(2, 2, device=d).repeat(2),
    "einsum": lambda d: torch.einsum("ij,jk->ik", torch.ones(2, 3, device=d), torch.ones(2, 3, device=d)),
}  # fmt: skip


def _weight(d):
    return torch.ones(3, 2, device=d, requires_grad=True)


# Statements that only device xla can get wrong: (statement, class, text).
OWN = {
    "mixed devices": (lambda d: torch.ones(3, device=d) + torch.ones(3), RuntimeError, "same device"),
    "mixed devices in mm": (lambda d: torch.ones(3, 3, device=d) @ torch.ones(3, 3), RuntimeError, "same device"),
    "input not moved": (lambda d: nn.Linear(3, 3, device=d)(torch.ones(1, 3)), RuntimeError, "same device"),
    "model not moved": (lambda d: nn.Linear(3, 3)(torch.ones(1, 3, device=d)), RuntimeError, "same device"),
    "target not moved": (lambda d: F.mse_loss(torch.ones(3, device=d), torch.ones(3)), RuntimeError, "same device"),
    "numpy": (lambda d: torch.ones(3, device=d).numpy(), TypeError, r"cpu\(\)"),
    "from meta": (lambda d: torch.ones(3, device="meta").to(d), NotImplementedError, "no data"),
    "to_sparse": (lambda d: torch.ones(2, device=d).to_sparse(), NotImplementedError, "strided"),
    "sparse gradient": (
        lambda d: F.embedding(torch.zeros(1, dtype=torch.long, device=d), _weight(d), sparse=True).sum().backward(),
        NotImplementedError,
        "strided",
    ),
    "sparse layout": (lambda d: torch.empty(3, device=d, layout=torch.sparse_coo), Exception, "(?i)sparse"),
}


def _pending():
    """Work that has been recorded and not run, and what it has to give."""
    torch_xla.sync()
    kept = torch.arange(4.0, device="xla")
    total = (kept * 2).sum()
    kept[0] = 7
    return kept, total, kept.t() + 1


def _assert_intact(kept, total, more):
    assert total.item() == 12
    assert kept.tolist() == [7, 1, 2, 3]
    assert more.tolist() == [8, 2, 3, 4]
    assert (kept + total).tolist() == [19, 13, 14, 15]  # and the device goes on


def _assert_names_this_file(error):
    lines = traceback.extract_tb(error.__traceback__)
    assert any(frame.filename == __file__ for frame in lines) or __file__ in str(error)


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_as_on_the_cpu(case):
    want = raised(lambda: case("cpu"))
    pending = _pending()
    error = raised(lambda: case("xla"))
    assert isinstance(error, type(want)) or type(want).__name__ == "NotImplementedError", (error, want)
    _assert_names_this_file(error)
    _assert_intact(*pending)


@pytest.mark.parametrize(("case", "kind", "text"), OWN.values(), ids=OWN.keys())
def test_of_the_device_alone(case, kind, text):
    pending = _pending()
    with pytest.raises(kind, match=text) as caught:
        case("xla")
    _assert_names_this_file(caught.value)
    _assert_intact(*pending)


def test_out_of_memory():
    pending = _pending()
    huge = torch.zeros(2**46, device="xla") + 1
    with pytest.raises(torch.OutOfMemoryError) as caught:
        huge.tolist()
    _assert_names_this_file(caught.value)
    del huge
    _assert_intact(*pending)


def test_out_of_memory_lists_what_is_live_and_what_the_program_needs():
    net = nn.Linear(300, 500).to("xla")
    made = torch.ones(100, 1000, device="xla") * 2
    net(torch.ones(1, 300, device="xla")).sum().backward()
    torch_xla.sync()
    huge = torch.zeros(2**46, device="xla") + made.sum()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        huge.tolist()
    text = str(caught.value)
    live = text.partition("Largest tensors that are live:")[2].splitlines()
    by_name = {name: line for line in live for name in ("net.weight)", "net.weight.grad)", "made)") if name in line}
    assert f"400,000 bytes  float32[100, 1000] (made), aten::mul at {__file__}:" in by_name["made)"]
    assert "600,000 bytes  float32[500, 300]" in by_name["net.weight)"]
    assert "aten::linear_backward" in by_name["net.weight.grad)"]
    assert re.search(r"Memory of the program, by XLA\n  arguments +400,000\n", text)
    assert "temporaries" in text
    assert made.sum().item() == 200_000


def test_what_other_tensors_hold_counts(monkeypatch):
    from torch_xla._src.runtime import memory

    held = torch.ones(1_000_000, device="xla") * 1
    torch_xla.sync()
    limit = memory.live_bytes() + 3_000_000
    monkeypatch.setattr(memory, "host_limit", lambda: limit)
    more = torch.ones(1_000_000, device="xla") * 2
    with pytest.raises(torch.OutOfMemoryError, match="other tensors hold"):
        more.tolist()
    assert (held[:3] + 1).tolist() == [2, 2, 2]


def _broken_callback():
    """A tensor that a Python callback, which fails, is to compute on the device."""
    import jax

    from torch_xla.core import xla_builder as xb

    def fail(x):
        raise ValueError("from the callback")

    def call(x):
        return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    return xb.call_jax(call, (torch.ones(3, device="xla"),)) + 1


# What one may do with a tensor that could not be computed.
USES = {
    "tolist": lambda y: y.tolist(),
    "an op": lambda y: (y + 1).tolist(),
    "deepcopy": lambda y: copy.deepcopy(y).tolist(),
    "pickle": lambda y: pickle.dumps(y),
    "repr": repr,
    "in place": lambda y: y.add_(1).tolist(),
    "numpy": lambda y: y.cpu().numpy(),
    "clone under no_grad": torch.no_grad()(lambda y: y.clone().tolist()),
    "a view": lambda y: y[1:].tolist(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_callback_that_fails(use):
    pending = _pending()
    y = _broken_callback()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="from the callback") as caught:
            use(y)
        assert f"call_jax.default at {__file__}" in str(caught.value)
        assert "Traceback" not in str(caught.value)
        del (
            caught
        )  # it is in a cycle with this frame, and the frame of torch's repr() in it disables torch.func while it lives
    _assert_intact(*pending)


def _autocast():
    with torch.autocast("xla", torch.bfloat16):
        torch.ones(2, 3, device="xla") @ torch.ones(2, 3, device="xla")


def _in_step_block():
    with torch_xla.step():
        torch.ones(2, 3, device="xla") @ torch.ones(2, 3, device="xla")


def _frozen():
    @torch_xla.compile(full_graph=True)
    def step(x, y):
        return x @ y

    for _ in range(4):
        step(torch.ones(2, 3, device="xla"), torch.ones(3, 2, device="xla"))
    step(torch.ones(2, 3, device="xla"), torch.ones(2, 3, device="xla"))


def _thread():
    caught = []
    thread = threading.Thread(target=lambda: caught.append(raised(_in_step_block)))
    thread.start()
    thread.join()
    raise caught[0]


def _checkpointed():
    def layer(x):
        return x @ torch.ones(2, 3, device="xla")

    checkpoint(layer, torch.ones(2, 3, device="xla", requires_grad=True), use_reentrant=False)


PLACES = {
    "autocast": _autocast,
    "a step block": _in_step_block,
    "a frozen step": _frozen,
    "a thread": _thread,
    "a checkpoint": _checkpointed,
}


@pytest.mark.parametrize("case", PLACES.values(), ids=PLACES.keys())
def test_wrong_shapes_in_other_places(case):
    pending = _pending()
    error = raised(case)
    assert type(error) is RuntimeError
    _assert_names_this_file(error)
    _assert_intact(*pending)


def test_inside_an_optimizer_step():
    w = nn.Parameter(torch.ones(3, device="xla"))
    other = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([w, other], lr=0.5)

    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            raise ValueError("not today")

    broken = Broken([w], lr=0.5)
    (w * 2 + other).sum().backward()
    pending = _pending()
    with pytest.raises(ValueError, match="not today"):
        broken.step()
    _assert_intact(*pending)
    assert w.tolist() == [0, 0, 0]
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    optimizer.step()
    assert w.tolist() == [-1, -1, -1]
    assert other.tolist() == [0.5, 0.5, 0.5]


def test_numbers_are_constants_again_after_a_failed_step():
    """While an optimizer steps, numbers are inputs of the program; an exception must not leave that on."""
    from torch_xla._src.graph.recorder import RECORDER

    w = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([w], lr=0.5)
    raised(lambda: optimizer.step(lambda: 1 / 0))
    assert not RECORDER.in_optimizer


def test_inside_a_backward_hook():
    w = torch.ones(3, device="xla", requires_grad=True)
    pending = _pending()

    def fail(gradient):
        raise ValueError("from the hook")

    handle = w.register_hook(fail)
    with pytest.raises(ValueError, match="from the hook") as caught:
        (w * 2).sum().backward()
    _assert_names_this_file(caught.value)
    _assert_intact(*pending)
    handle.remove()
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_an_interrupt_inside_a_step():
    model = nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.ones(2, 3, device="xla")
    losses = []
    for step in range(4):
        try:
            optimizer.zero_grad()
            loss = model(x).pow(2).sum()
            if step == 1:
                raise KeyboardInterrupt
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        except KeyboardInterrupt:
            continue
    values = [float(x) for x in losses]
    assert len(values) == 3
    assert values[2] < values[0]


FORK = """
import os, sys, torch
x = torch.ones(3, device="xla")
assert x.sum().item() == 3
y = x + 1
for use in (lambda: y.tolist(), lambda: torch.ones(2, device="xla"), lambda: torch.ones(2).to("xla"), lambda: x.mul_(2)):
    child = os.fork()
    if not child:
        try:
            use()
        except RuntimeError as error:
            os._exit(7 if "forked subprocess" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert y.tolist() == [2, 2, 2]
"""


def test_a_forked_child_is_told_that_it_cannot_use_the_device():
    """XLA's threads are not forked: it would wait for them for ever."""
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="xla:7"),
        lambda: torch.empty(2, device="xla:1"),
        lambda: torch.randn(2, device="xla:1"),
        lambda: torch.arange(2, device="xla:1"),
        lambda: torch.tensor([1.0], device="xla:1"),
        lambda: torch.ones(2).to("xla:1"),
        lambda: torch.ones(2, device="xla").to("xla:1"),
        lambda: torch.empty_strided((2, 2), (1, 2), device="xla:1"),
        lambda: nn.Linear(2, 2).to("xla:3"),
    ],
)
def test_a_device_that_is_not_there_is_an_error(make):
    with pytest.raises(RuntimeError, match=r"there is no device xla:\d: this process computes on one xla device"):
        make()
    assert torch.ones(2, device="xla:0").to("xla").device.index == 0
