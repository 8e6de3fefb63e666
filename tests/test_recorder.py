"""Recording and replay: what is built once, what is reused, what compiles."""

from __future__ import annotations

import gc

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.graph.recorder import RECORDER
from torch_xla._src.graph.value import Value


@pytest.fixture(autouse=True)
def _clean():
    torch_xla.sync(wait=True)
    met.clear_all()
    yield
    torch_xla.sync(wait=True)


def counts(*names):
    return tuple(met.counter_value(name) or 0 for name in names)


def chain(x, length=200):
    ops = [lambda x: x * 1.01, lambda x: x + 1, torch.sin, torch.relu]
    for i in range(length):
        x = ops[i % 4](x)
    return x


def test_a_chain_of_200_ops_replays_without_meta_kernels_or_new_rows():
    x = torch.ones(4, device="xla")
    torch_xla.sync()
    expected = chain(torch.ones(4))
    for _ in range(2):
        result = chain(x)
        torch_xla.sync()
    met.clear_all()
    result = chain(x)
    torch_xla.sync()
    assert counts("RowsReplayed", "RowsRebuilt", "MetaKernelCalls", "UncachedCompile") == (200, 0, 0, 0)
    torch.testing.assert_close(result.cpu(), expected)


def test_the_second_run_replays_and_compiles_nothing():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    (x * 2 + 5).cpu()
    met.clear_all()
    (x * 2 + 5).cpu()
    assert counts("RowsRebuilt", "UncachedCompile", "CachedCompile") == (0, 0, 1)


@pytest.mark.parametrize(
    "values",
    [[0.5, 0.25, 0.125, 0.7], [3, 4, 5, 6]],
    ids=["float", "int"],
)
def test_a_scalar_that_changes_recompiles_once(values):
    size = 17 if type(values[0]) is float else 18  # shapes of its own: no other test has recorded these rows
    x = torch.arange(1, size, device="xla").to(torch.float32)
    torch_xla.sync()
    expected = torch.arange(1, size).to(torch.float32)
    compiles = []
    for value in values:
        met.clear_all()
        torch.testing.assert_close((x * value - 1).cpu(), expected * value - 1)
        compiles.append(counts("UncachedCompile")[0])
    assert compiles == [1, 1, 0, 0]


def test_equal_scalars_do_not_share_a_slot():
    """An lr that meets eps once must not tie the two for ever (pytorch/xla issue 3604)."""
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    for first, second in [(0.5, 0.5), (0.25, 0.125), (0.5, 0.75), (0.1, 0.1)]:
        torch.testing.assert_close((x * first + second * x).cpu(), torch.ones(3) * (first + second))


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (0.0, -0.0), (1, True), (float("nan"), 1.0)])
def test_constants_differ_by_type_and_bit_pattern(first, second):
    x = torch.ones(2, dtype=torch.int64, device="xla")
    for value in (first, second, first):
        expected = torch.ones(2, dtype=torch.int64) * value
        actual = (x * value).cpu()
        assert actual.dtype == expected.dtype
        assert actual.tolist() == expected.tolist() or value != value
        assert [str(v) for v in actual.tolist()] == [str(v) for v in expected.tolist()]


def test_nan_equals_itself_so_it_replays():
    x = torch.ones(2, device="xla")
    torch_xla.sync()
    (x * float("nan")).cpu()
    met.clear_all()
    assert (x * float("nan")).cpu().isnan().all()
    assert counts("RowsRebuilt", "UncachedCompile") == (0, 0)


def test_alternating_programs_all_replay():
    """Train and eval, or bucketed shapes, are branches of one tree."""
    inputs = [torch.ones(n, device="xla") for n in (2, 3, 4)]
    torch_xla.sync()
    for _ in range(2):
        for x in inputs:
            (x.exp() + 1).cpu()
            (x.exp() - 1).cpu()
    met.clear_all()
    for x in inputs:
        (x.exp() + 1).cpu()
        (x.exp() - 1).cpu()
    assert counts("RowsRebuilt", "UncachedCompile", "CachedCompile") == (0, 0, 6)


def test_only_live_values_are_outputs():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    kept = x + 1
    dead = kept * 2
    del dead
    from torch_xla._src.compile.launch import Launch

    launch = Launch(RECORDER.node, RECORDER.values, RECORDER.leaf_values, RECORDER.leaf_buffers, {})
    outputs = [number for number, _ in launch.live]
    assert len(outputs) == 1
    assert kept.tolist() == [2, 2, 2]


def test_an_alias_makes_no_row():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    y = x.detach()
    assert RECORDER.pending == 0
    y.add_(1)
    assert x.tolist() == [2, 2, 2]


def test_nothing_pending_runs_nothing():
    torch_xla.sync()
    met.clear_all()
    torch_xla.sync()
    assert counts("ExecuteComputation", "UncachedCompile", "MarkStep") == (0, 0, 1)


def test_dead_work_runs_nothing():
    (torch.ones(3, device="xla") + 1).sin()
    torch_xla.sync()
    assert counts("ExecuteComputation", "UncachedCompile") == (0, 0)


def test_a_loop_over_batches_without_a_read_is_cut_each_round():
    weight = torch.ones(4, 4, device="xla")
    torch_xla.sync()
    met.clear_all()
    outputs = []
    for i in range(6):
        x = torch.full((2, 4), float(i)).to("xla")
        outputs.append((x @ weight).relu() + 1)
    assert counts("UncachedCompile", "ExecuteComputation") == (1, 5)
    assert torch.stack([o.sum() for o in outputs]).tolist() == [8.0 * (4 * i + 1) for i in range(6)]


def test_uploads_on_different_lines_do_not_cut():
    for _ in range(2):
        x = torch.ones(2).to("xla")
        y = (x * 2).exp().log()
        z = torch.ones(2).to("xla")
        (y + z).cpu()
    assert counts("ExecuteComputation") == (2,)


def test_two_uploads_on_one_line_do_not_cut():
    for _ in range(2):
        ((torch.ones(2).to("xla") * 2).exp().log() + torch.ones(2).to("xla")).cpu()
    assert counts("ExecuteComputation") == (2,)


def test_a_size_limit_cuts(monkeypatch):
    monkeypatch.setattr("torch_xla._src.graph.recorder.MAX_ROWS", 50)
    x = torch.zeros(2, device="xla")
    for _ in range(120):
        x = x + 1
    assert RECORDER.pending < 50
    assert x.tolist() == [120, 120]


def test_an_interrupt_while_compiling_loses_nothing(monkeypatch):
    from torch_xla._src.compile import launch

    y = torch.ones(3, device="xla") * 3

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launch, "Program", interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch_xla.sync()
    assert y.tolist() == [3, 3, 3]


def test_no_values_leak_over_training_steps():
    model = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(2, 4).to("xla")

    def live_values():
        return sum(type(o) is Value for o in gc.get_objects())

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    gc.collect()
    gc.disable()
    try:
        before = live_values()
        for _ in range(20):
            step()
        assert live_values() == before
    finally:
        gc.enable()


def test_a_recording_prints_as_rows_with_the_users_lines():
    x = torch.ones(3, 5, 7, device="xla")  # a shape of its own: a row keeps the line that made it first
    torch_xla.sync()
    y = x + 1  # this line
    text = [str(row) for row in RECORDER.node.path()]
    assert len(text) == 1
    assert "aten.add.Tensor(leaf0, 1)" in text[0]
    assert "test_recorder.py" in text[0]
    assert y.sum().item() == 210


def test_programs_and_rows_that_are_not_used_any_more_are_dropped(monkeypatch):
    from torch_xla._src.compile import program_cache

    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "5")
    sizes = range(1060, 1072)  # which no other test uses
    for size in sizes:
        assert (torch.ones(size, device="xla") + 1).sum().item() == 2 * size
        assert program_cache.size() <= 5
    assert sum(row.outs[0].shape in [(size,) for size in sizes] for row in RECORDER.root.children) <= 5
    for size in (dead := range(1080, 1092)):
        torch.zeros(size, device="xla").neg_()  # nothing is alive at the cut: no program
        torch_xla.sync()
    assert sum(row.outs[0].shape in [(size,) for size in dead] for row in RECORDER.root.children) <= 5
    assert (torch.ones(1071, device="xla") + 1).sum().item() == 2142
    met.clear_all()
    assert (torch.ones(1071, device="xla") + 1).sum().item() == 2142
    assert counts("UncachedCompile") == (0,)


def test_an_interrupt_at_any_line_of_the_recorder_loses_nothing():
    """A KeyboardInterrupt can come between any two lines: what is recorded afterwards must still be right.

    Not at the `with` of the lock, which a tracer sees again on the way out, nor at a `try`: no signal is handled there.
    """
    import linecache
    import sys

    from torch_xla._src.graph import recorder

    budget = 0

    def at_line(frame, event, argument):
        nonlocal budget
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and budget and not source.startswith(("with ", "try:")):
            budget -= 1
            if not budget:
                raise KeyboardInterrupt
        return at_line

    def at_call(frame, event, argument):
        return at_line if frame.f_code.co_filename == recorder.__file__ else None

    kept = torch.arange(4.0).to("xla")
    previous = sys.gettrace()
    for line in range(1, 2000):
        x, scale, budget = torch.arange(4.0).to("xla"), 1 + line / 7, line
        sys.settrace(at_call)
        try:
            (x * scale + torch.empty(4, device="xla") + kept).sum()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(previous)
        if budget:
            break  # fewer lines than that
        assert ((x + 1).tolist(), (x * 3).tolist(), x.tolist()) == ([1, 2, 3, 4], [0, 3, 6, 9], [0, 1, 2, 3])
        assert kept.tolist() == [0, 1, 2, 3]
    assert 50 < line < 1999
    assert not RECORDER.lock._is_owned()


def test_numbers_of_an_op_that_is_recorded_again_are_taken_once():
    """`torch.empty` as an argument makes the recorder start the op again, after it has noted the op's numbers."""
    x = torch.ones(3, device="xla")
    for i in range(6):
        exponent = torch.ones(3, device="xla") if i < 3 else torch.empty(3, device="xla")
        (i + 1.5) ** exponent
        first, second = x * (i * 2.5 + 1), x.add(x, alpha=i + 0.25)
        assert (first[0].item(), second[0].item()) == (i * 2.5 + 1, i + 1.25)


def test_ctrl_c_in_the_middle_of_a_launch_keeps_the_parameters(monkeypatch):
    """The program has taken the old buffers: the interrupt waits until the tensors hold the new ones."""
    import signal

    from torch_xla._src.compile.program import Program

    weight = torch.ones(64, device="xla")
    torch_xla.sync()
    original = Program.__call__
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start its jobs without one

    def interrupted(self, *args):
        outputs = original(self, *args)
        signal.raise_signal(signal.SIGINT)
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(Program, "__call__", interrupted)
        weight.mul_(3)
        with pytest.raises(KeyboardInterrupt):
            torch_xla.sync()
    assert weight.sum().item() == 192
    assert signal.signal(signal.SIGINT, handler) is signal.default_int_handler  # as before the launch


def test_programs_go_when_memory_maps_run_short(monkeypatch):
    """XLA on CPU crashes a process that has none left: Note [Memory maps]."""
    from torch_xla._src.compile import program_cache

    monkeypatch.setattr(program_cache, "_EVERY", 1)
    monkeypatch.setattr(program_cache, "_maps_in_use", 0)
    monkeypatch.setattr(program_cache, "_max_maps", lambda: 1000)
    in_use = [400, 600, 601, 700]
    monkeypatch.setattr(program_cache, "_num_maps", lambda: in_use.pop(0))
    sizes = []
    for size in range(21, 25):
        (torch.ones(size, device="xla") * 2).cpu()
        sizes.append(program_cache.size())
    fewer = (sizes[0] + 1) * 3 // 4
    assert sizes[1:] == [fewer, fewer + 1, (fewer + 2) * 3 // 4]
