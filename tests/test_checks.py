"""What tensors hold is checked as on the CPU: indices out of range, integer division by zero, impossible probabilities.

Each statement runs with arguments that the host can look at, and with arguments that the same recording computes: then
the program notices. See Note [Checks of contents] in graph/contents.py and Note [Failed checks] in compile/poison.py.
"""

from __future__ import annotations

import gc
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.same import assert_same, raised
from torch_xla._src.compile import poison
from torch_xla._src.graph import contents
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.tensor import value_of


def given(device):
    """Makes tensors that have been computed when the op is called."""
    return lambda *args, **kwargs: torch.tensor(*args, **kwargs).to(device)


def computed(device):
    """Makes tensors that the recording has yet to compute."""
    return lambda *args, **kwargs: torch.stack([torch.tensor(*args, **kwargs).to(device)])[0]


def ones(t, *shape, **kwargs):
    return torch.ones(*shape, device=t(0).device, **kwargs)


# Statements that the CPU refuses for what `t` makes.
REFUSED = {
    "embedding": lambda t: F.embedding(t([0, 9]), ones(t, 3, 2)),
    "embedding, negative": lambda t: F.embedding(t([0, -1]), ones(t, 3, 2)),
    "embedding, int32": lambda t: F.embedding(t([3], dtype=torch.int32), ones(t, 3, 2), padding_idx=1),
    "embedding with a gradient": lambda t: F.embedding(t([3]), ones(t, 3, 2, requires_grad=True)),
    "embedding, renormalised": lambda t: F.embedding(t([3]), ones(t, 3, 2), max_norm=1.0),
    "embedding module": lambda t: nn.Embedding(3, 2, device=t(0).device)(t([3])),
    "bag": lambda t: F.embedding_bag(t([0, 9]), ones(t, 3, 2), t([0])),
    "bag of maxima": lambda t: F.embedding_bag(t([0, -1]), ones(t, 3, 2), t([0]), mode="max"),
    "bag of rows": lambda t: F.embedding_bag(t([[0, 9]]), ones(t, 3, 2)),
    "bag, first offset": lambda t: F.embedding_bag(t([0, 1]), ones(t, 3, 2), t([1])),
    "bag, last offset": lambda t: F.embedding_bag(t([0, 1]), ones(t, 3, 2), t([0, 3])),
    "bag with a gradient": lambda t: F.embedding_bag(t([0, 9]), ones(t, 3, 2, requires_grad=True), t([0])),
    "index": lambda t: ones(t, 3)[t([3])],
    "index, negative": lambda t: ones(t, 3)[t([-4])],
    "index of dim 1": lambda t: ones(t, 3, 4)[:, t([4])],
    "index of two dims": lambda t: ones(t, 3, 4)[t([0]), t([4])],
    "index, 0-d": lambda t: ones(t, 3)[t(3)],
    "index beside a mask": lambda t: ones(t, 2, 3)[t([True, False]), t([3])],
    "index of nothing": lambda t: ones(t, 0)[t([0])],
    "embedding of nothing": lambda t: F.embedding(t([0]), ones(t, 0, 2)),
    "index_select of nothing": lambda t: ones(t, 0).index_select(0, t([0])),
    "index_select of no rows": lambda t: ones(t, 0, 2).index_select(0, t([0])),
    "gather of nothing": lambda t: ones(t, 0).gather(0, t([0])),
    "scatter into nothing": lambda t: ones(t, 0).scatter(0, t([0]), 1.0),
    "take of nothing": lambda t: ones(t, 0).take(t([0])),
    "put into nothing": lambda t: ones(t, 0).put(t([0]), ones(t, 1)),
    "index_put into nothing": lambda t: ones(t, 0, 2).index_put((t([0]),), ones(t, 1, 2)),
    "index_copy into no rows": lambda t: ones(t, 0, 2).index_copy(0, t([0]), ones(t, 1, 2)),
    "set": lambda t: _written(ones(t, 3), lambda x: x.__setitem__(t([3]), 1.0)),
    "index_put": lambda t: ones(t, 3).index_put((t([3]),), t([1.0])),
    "index_put, accumulated": lambda t: ones(t, 3).index_put((t([3]),), t([1.0]), accumulate=True),
    "take": lambda t: ones(t, 3).take(t([3])),
    "take, negative": lambda t: ones(t, 3).take(t([-4])),
    "put": lambda t: ones(t, 3).put(t([3]), t([1.0])),
    "gather": lambda t: ones(t, 3).gather(0, t([3])),
    "gather, negative": lambda t: ones(t, 3, 4).gather(1, t([[-1]])),
    "scatter": lambda t: ones(t, 3).scatter(0, t([3]), 1.0),
    "scatter in place": lambda t: ones(t, 3).scatter_(0, t([3]), 1.0),
    "scatter of a tensor": lambda t: ones(t, 3).scatter(0, t([3]), ones(t, 3)),
    "scatter_add": lambda t: ones(t, 3).scatter_add(0, t([3]), ones(t, 3)),
    "scatter_reduce": lambda t: ones(t, 3).scatter_reduce(0, t([3]), ones(t, 3), "amax"),
    "index_select": lambda t: ones(t, 3).index_select(0, t([3])),
    "index_select of dim 0": lambda t: ones(t, 3, 4).index_select(0, t([3])),
    "index_select of dim 1": lambda t: ones(t, 3, 4).index_select(1, t([4])),
    "index_select of dim 2": lambda t: ones(t, 3, 4, 5).index_select(-1, t([5])),
    "index_select of a 0-d": lambda t: ones(t, ()).index_select(0, t([1])),
    "index_add": lambda t: ones(t, 3).index_add(0, t([3]), ones(t, 1)),
    "index_add of dim 0": lambda t: ones(t, 3, 4).index_add(0, t([3]), ones(t, 1, 4)),
    "index_add of dim 1": lambda t: ones(t, 3, 4, 5).index_add(1, t([4]), ones(t, 3, 1, 5)),
    "index_add with alpha": lambda t: ones(t, 3, 4).index_add(0, t([3]), ones(t, 1, 4), alpha=2),
    "index_copy": lambda t: ones(t, 3).index_copy(0, t([3]), ones(t, 1)),
    "index_fill": lambda t: ones(t, 3).index_fill(0, t([3]), 1.0),
    "index_fill with a tensor": lambda t: ones(t, 3).index_fill(0, t([-4]), t(1.0)),
    "nll_loss": lambda t: F.nll_loss(ones(t, 3, 4), t([0, 1, 4])),
    "nll_loss, weighted": lambda t: F.nll_loss(ones(t, 3, 4), t([0, 1, -1]), weight=ones(t, 4), reduction="none"),
    "nll_loss without batch": lambda t: F.nll_loss(ones(t, 4), t(4)),
    "nll_loss2d": lambda t: F.nll_loss(ones(t, 1, 3, 1, 1), t([[[3]]])),
    "cross_entropy": lambda t: F.cross_entropy(ones(t, 3, 4), t([0, 1, -1])),
    "cross_entropy, smoothed": lambda t: F.cross_entropy(ones(t, 3, 4), t([0, 1, 4]), label_smoothing=0.1),
    "multi_margin_loss": lambda t: F.multi_margin_loss(ones(t, 3, 4), t([0, 1, 4])),
    "multilabel_margin_loss": lambda t: F.multilabel_margin_loss(ones(t, 1, 3), t([[3, -1, -1]])),
    "binary_cross_entropy": lambda t: F.binary_cross_entropy(t([0.5, 1.5]), t([0.0, 1.0])),
    "binary_cross_entropy, target": lambda t: F.binary_cross_entropy(t([0.5, 0.5]), t([0.0, -1.0])),
    "one_hot": lambda t: F.one_hot(t([0, 3]), 3),
    "one_hot, negative": lambda t: F.one_hot(t([0, -1])),
    "max_unpool1d": lambda t: F.max_unpool1d(ones(t, 1, 1, 2), t([[[0, 5]]]), 2),
    "max_unpool2d": lambda t: F.max_unpool2d(ones(t, 1, 1, 1, 2), t([[[[0, 8]]]]), 2),
    "max_unpool3d": lambda t: F.max_unpool3d(ones(t, 1, 1, 1, 1, 2), t([[[[[0, -1]]]]]), 2),
    "ctc_loss, input": lambda t: F.ctc_loss(ones(t, 4, 1, 3), t([[1]]), t([5]), t([1])),
    "ctc_loss, target": lambda t: F.ctc_loss(ones(t, 4, 1, 3), t([[1]]), t([4]), t([2])),
    "masked_scatter": lambda t: ones(t, 2).masked_scatter(t([True, True]), ones(t, 1)),
    "masked_scatter, broadcast": lambda t: ones(t, 2, 2).masked_scatter(t([True, False]), ones(t, 1)),
    "histc": lambda t: torch.histc(t([1.0, float("nan")])),
    "bincount": lambda t: torch.bincount(t([0, -1])),
    "searchsorted": lambda t: torch.searchsorted(ones(t, 3), ones(t, 1), sorter=t([0, 1, 3])),
    "repeat_interleave": lambda t: ones(t, 3).repeat_interleave(t([1, 3, -1])),
    "repeat_interleave, other size": lambda t: ones(t, 2).repeat_interleave(t([1, 3]), output_size=3),
    "multinomial, negative": lambda t: torch.multinomial(t([1.0, -1.0]), 1),
    "multinomial, nan": lambda t: torch.multinomial(t([[1.0, 1.0], [1.0, float("nan")]]), 1),
    "multinomial, zeros": lambda t: torch.multinomial(t([0.0, 0.0]), 1, replacement=True),
    "bernoulli": lambda t: torch.bernoulli(t([0.5, 1.5])),
    "bernoulli_ of a tensor": lambda t: ones(t, 2).bernoulli_(t([0.5, -0.5])),
    "poisson": lambda t: torch.poisson(t([0.5, -1.0])),
    "normal": lambda t: torch.normal(ones(t, 2), t([1.0, -1.0])),
    "floor division": lambda t: t([1, 2]) // t([1, 0]),
    "floor division of a number": lambda t: 5 // t([1, 0]),
    "floor division by a 0-d": lambda t: ones(t, 3, dtype=torch.int32) // t(0),
    "floor division in place": lambda t: ones(t, 2, dtype=torch.long).floor_divide_(t([1, 0])),
    "modulo": lambda t: t([1, 2]) % t([1, 0]),
    "modulo of a number": lambda t: 5 % t([1, 0]),
    "modulo of bytes": lambda t: t([1, 2], dtype=torch.uint8) % t([1, 0], dtype=torch.uint8),
    "fmod": lambda t: torch.fmod(t([1, 2]), t([1, 0])),
    "division rounded down": lambda t: torch.div(t([1, 2]), t([1, 0]), rounding_mode="floor"),
    "division rounded to zero": lambda t: torch.div(t([1, 2]), t([1, 0]), rounding_mode="trunc"),
}  # fmt: skip


def _written(x, write):
    write(x)
    return x


# Divisors that are numbers: refused at once, whatever the client.
NUMBERS = {
    "floor division": lambda t: t([1, 2]) // 0,
    "modulo": lambda t: t([1, 2]) % 0,
    "fmod": lambda t: torch.fmod(t([1, 2]), 0),
    "division rounded down": lambda t: torch.div(t([1, 2]), 0, rounding_mode="floor"),
    "floor division in place": lambda t: ones(t, 2, dtype=torch.long).floor_divide_(0),
}

# Statements that look alike, and that the CPU computes.
ACCEPTED = {
    "a negative index": lambda t: ones(t, 3)[t([-3])],
    "a mask": lambda t: ones(t, 3)[t([True, False, True])],
    "a mask of bytes": lambda t: ones(t, 3)[t([5, 0, 1]) > 3],
    "index of no elements": lambda t: ones(t, 2, 0)[t([5])],
    "no index": lambda t: ones(t, 3)[t([], dtype=torch.long)],
    "index beside no index": lambda t: ones(t, 3, 3)[t([5]), t([], dtype=torch.long)],
    "gather of no elements": lambda t: ones(t, 2, 0).gather(0, ones(t, 1, 0, dtype=torch.long) * 9),
    "index_add of no elements": lambda t: ones(t, 2, 0).index_add(0, t([5]), ones(t, 1, 0)),
    "index_add to nothing": lambda t: ones(t, 0, 2).index_add(0, t([0]), ones(t, 1, 2)),
    "index_fill, negative": lambda t: ones(t, 3).index_fill(0, t([-1]), 2.0),
    "padding": lambda t: F.embedding(t([1]), ones(t, 3, 2), padding_idx=1),
    "an ignored target": lambda t: F.nll_loss(ones(t, 3, 4), t([0, 1, -100])),
    "another ignored target": lambda t: F.cross_entropy(ones(t, 3, 4), t([0, 1, 7]), ignore_index=7),
    "labels that end": lambda t: F.multilabel_margin_loss(ones(t, 1, 3), t([[0, -1, -1]])),
    "float division": lambda t: t([1, 2]) / t([1, 0]),
    "float floor division": lambda t: t([1.0, 2.0]) // t([1.0, 0.0]),
    "mixed floor division": lambda t: t([1, 2]) // t([1.0, 0.0]),
    "floor division of a float": lambda t: 5.0 // t([1, 0]),
    "floor division by a float": lambda t: t([1, 2]) // 0.0,
    "empty floor division": lambda t: t([], dtype=torch.long) // t([0]),
    "shift": lambda t: t([1, 2]) >> t([0, 0]),
    "probabilities": lambda t: F.binary_cross_entropy(t([0.0, 1.0]), t([0.0, 1.0])),
    "a large index type": lambda t: ones(t, 300)[t([255], dtype=torch.int32)],
    "histc of a range": lambda t: torch.histc(t([0.5, float("nan")]), bins=2, min=0, max=1),
    "masked_scatter of enough": lambda t: ones(t, 2).masked_scatter(t([True, False]), ones(t, 1) * 3),
    "masked_scatter of enough, broadcast": lambda t: ones(t, 2, 2).masked_scatter(t([True, False]), ones(t, 2) * 3),
    "bags that end": lambda t: F.embedding_bag(t([0, 1]), ones(t, 3, 2), t([0, 2])),
}  # fmt: skip


def cases(table):
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())


either = pytest.mark.parametrize("kind", [given, computed])


def assert_names_this_file(error):
    lines = traceback.extract_tb(error.__traceback__)
    assert any(frame.filename == __file__ for frame in lines if "test_" not in frame.name) or __file__ in str(error)


def _read(x):
    return [t.detach().cpu() for t in (x if isinstance(x, (tuple, list)) else [x])]


@either
@cases(REFUSED)
def test_refused_as_on_the_cpu(case, kind):
    want = raised(lambda: case(given("cpu")))
    torch_xla.sync()
    kept = torch.arange(4.0, device="xla") * 2
    error = raised(lambda: _read(case(kind("xla"))))
    assert type(error) is type(want), (error, want)
    assert_names_this_file(error)
    assert kept.tolist() == [0, 2, 4, 6]
    assert (kept + 1).tolist() == [1, 3, 5, 7]


@cases(NUMBERS)
def test_a_number_is_refused_at_the_call(case, monkeypatch):
    monkeypatch.setattr(contents, "in_programs", lambda: False)
    want = raised(lambda: case(given("cpu")))
    error = raised(lambda: case(computed("xla")))  # nothing is read
    assert type(error) is type(want), (error, want)
    assert __file__ in str(error)


@either
@cases(ACCEPTED)
def test_accepted_as_on_the_cpu(case, kind):
    assert_same(case(kind("xla")), case(given("cpu")), 1e-6)


# ---- when an op is called --------------------------------------------------------------------------------------------


def test_what_the_host_can_see_is_refused_at_the_call():
    """Nothing is recorded, launched or read."""
    weight, index = torch.ones(3, 2, device="xla"), torch.tensor([0, 3]).to("xla")
    torch_xla.sync(wait=True)
    before = RECORDER.pending
    with pytest.raises(IndexError, match=r"index out of range for a dimension of size 3.*test_checks\.py"):
        F.embedding(index, weight)
    assert RECORDER.pending == before


def test_an_index_on_the_host_is_refused_at_the_call():
    with pytest.raises(IndexError, match="out of range"):
        torch.ones(3, device="xla")[torch.tensor([3])]


def test_a_buffer_is_looked_at_once(monkeypatch):
    looked = []
    original = contents._elements_of
    monkeypatch.setattr(contents, "_elements_of", lambda buffer: looked.append(1) or original(buffer))
    weight, index = torch.ones(3, 2, device="xla"), torch.tensor([0, 2]).to("xla")
    for _ in range(3):
        F.embedding(index, weight)
        weight[index]
    assert len(looked) == 2  # for one range with, and one without negative indices
    number = id(value_of(index).buffer)
    assert number in contents._passed
    del index
    torch_xla.sync(wait=True)
    gc.collect()
    assert number not in contents._passed


# ---- what a program notices ------------------------------------------------------------------------------------------


def _wrong_index():
    return torch.tensor([0, 4]).to("xla") + 5


def test_only_what_depends_on_the_failure_is_lost():
    weight = torch.ones(10, 2, device="xla")
    index = _wrong_index()
    rows = weight[:6][index]
    twice, other, copy = rows * 2, weight * 3, rows.detach()
    with pytest.raises(IndexError, match=r"dimension of size 6: aten::index at .*test_checks\.py"):
        other.sum().item()  # the error is raised where it is found
    assert other.sum().item() == 60
    assert index.tolist() == [5, 9]
    for lost in (rows, twice, copy):
        for _ in range(2):
            with pytest.raises(IndexError, match="out of range"):
                lost.tolist()
    with pytest.raises(IndexError, match="out of range"):
        twice + 1


def test_later_recordings_that_took_a_wrong_buffer(unnoticed):
    torch_xla.sync(wait=True)
    weight, good = torch.ones(3, 2, device="xla"), torch.zeros(3, device="xla")
    rows = weight[_wrong_index()]
    torch_xla.sync()
    second, good_second = rows + 1, good + 1
    torch_xla.sync()
    third, good_third = second * 2, good_second * 2
    torch_xla.sync()
    fourth, good_fourth = third - 1, good_third - 1  # pending when the failure is found
    del second, rows
    with pytest.raises(IndexError, match="out of range"):
        third.tolist()
    torch_xla.sync()
    with pytest.raises(IndexError, match="out of range"):
        fourth.tolist()
    assert good_fourth.tolist() == [1, 1, 1]
    assert good_third.tolist() == [2, 2, 2]
    torch_xla.sync(wait=True)
    del third, fourth
    gc.collect()
    torch_xla.sync(wait=True)
    poison.settle(wait=True)
    assert not poison.pending


def test_a_read_waits_for_no_launch_after_it(unnoticed):
    torch_xla.sync(wait=True)
    first = torch.ones(3, device="xla") + 1
    torch_xla.sync()
    rows = torch.ones(3, 2, device="xla")[_wrong_index()]
    torch_xla.sync()
    assert first.tolist() == [2, 2, 2]
    with pytest.raises(IndexError, match="out of range"):
        torch_xla.sync(wait=True)
    with pytest.raises(IndexError, match="out of range"):
        rows.tolist()


def test_the_next_cut_notices_what_has_finished():
    index = _wrong_index()
    rows = torch.ones(3, 2, device="xla")[index]

    def cut_twice():
        torch_xla.sync()
        value_of(index).buffer.block_until_ready()
        kept = torch.ones(2, device="xla") + 1
        torch_xla.sync()
        return kept

    with pytest.raises(IndexError, match="out of range"):
        cut_twice()
    assert rows.shape == (2, 2)


def test_of_several_failures_the_first_is_raised():
    weight = torch.ones(3, 2, device="xla")
    index = _wrong_index()
    first, second = weight[index], torch.tensor([1]).to("xla") // (index[:1] - 5)
    with pytest.raises(IndexError, match="out of range"):
        torch_xla.sync(wait=True)
    with pytest.raises(IndexError, match="out of range"):
        first.tolist()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        second.tolist()


def test_a_row_that_the_cpu_computes(monkeypatch):
    """A recording that does not compile is computed row by row, and checked so."""
    from torch_xla._src.compile.recovery import CompileWarning
    from torch_xla._src.ops import registry

    def broken(*args, **kwargs):
        raise ValueError("broken")

    monkeypatch.setitem(registry._TABLE, "aten.cosh", registry.Lowering("aten.cosh", broken))
    weight = torch.ones(3, 2, device="xla")
    good, rows = weight.cosh(), weight[_wrong_index()]
    with pytest.warns(CompileWarning), pytest.raises(IndexError, match="out of range"):
        rows.tolist()
    assert_same(good, torch.ones(3, 2).cosh(), 1e-6)
    with pytest.raises(IndexError, match="out of range"):
        rows.tolist()
    RECORDER.failed.clear()


def test_programs_without_checks_have_no_further_output():
    torch_xla.sync()
    x = torch.ones(3, device="xla") * 2
    torch_xla.sync()
    y = x[1:] + x.sum()
    node = RECORDER.node
    torch_xla.sync()
    (program,) = node.programs.values()
    assert len(program.live) == 1
    assert not program.checks
    assert y.tolist() == [8, 8]


def test_training_replays_with_checks_and_donates():
    """Checked rows cost no recording and no compilation, and parameters are still updated in place."""
    model = nn.Sequential(nn.Embedding(16, 8), nn.Flatten(), nn.Linear(32, 4)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    batches = [(torch.randint(0, 16, (2, 4)), torch.randint(0, 4, (2,))) for _ in range(6)]
    losses = []
    for step, (x, target) in enumerate(batches):
        if step == 3:
            met.clear_all()
            rebuilt = RECORDER.rebuilt
        loss = F.cross_entropy(model(x.to("xla")), target.to("xla"))
        optimizer.zero_grad()
        loss.backward()
        old = value_of(model[2].weight).buffer
        optimizer.step()
        losses.append(loss.detach())
    assert RECORDER.rebuilt == rebuilt
    assert met.counter_value("UncachedCompile") is None
    del old
    assert all(x.isfinite() for x in losses)


def test_a_batch_out_of_range_leaves_the_model_as_it_was():
    model = nn.Embedding(4, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen = []
    for index in ([0, 1], [2, 4], [3, 3]):
        try:
            loss = model(torch.tensor(index).to("xla")).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        except IndexError:
            seen.append(None)
    assert [x is None for x in seen] == [False, True, False]
    assert model.weight.isfinite().all()


# ---- debug.check(), and other clients --------------------------------------------------------------------------------


@pytest.fixture
def accelerator(monkeypatch):
    """Nothing is looked at, and programs have no checks: as on a client other than the CPU."""
    monkeypatch.setattr(contents, "in_programs", lambda: False)


@either
@cases({name: REFUSED[name] for name in ("embedding", "index, negative", "gather", "set", "nll_loss", "modulo")})
def test_check_reads_back(case, kind, accelerator):
    want = raised(lambda: case(given("cpu")))
    with torch_xla.debug.check():
        error = raised(lambda: case(kind("xla")))  # at the call
    assert type(error) is type(want), (error, want)
    assert_names_this_file(error)
    case(kind("xla"))  # no check, no error
    torch_xla.sync(wait=True)


def test_check_raises_at_the_call_on_the_cpu_client_too():
    weight, index = torch.ones(3, 2, device="xla"), _wrong_index()
    with torch_xla.debug.check(), pytest.raises(IndexError, match="out of range"):
        F.embedding(index, weight)


def test_a_lookup_that_nobody_needs_is_checked_all_the_same():
    weight = torch.ones(6, 2, device="xla")
    weight[_wrong_index()]
    with pytest.raises(IndexError, match=r"aten::index at .*test_checks\.py"):
        torch_xla.sync(wait=True)
    weight[_wrong_index() - 5]
    torch_xla.sync(wait=True)
    weight[_wrong_index()].sum()
    with pytest.raises(IndexError, match="out of range"):
        (weight + 1).tolist()
