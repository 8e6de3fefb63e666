"""In-place ops and `out=` write what the CPU writes, refuse what it refuses, and count as writes. See device/writes.py."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import torch_xla
from torch_xla._src.device import writes
from torch_xla._src.graph.recorder import RECORDER

F64, I64, I32, BOOL = torch.float64, torch.int64, torch.int32, torch.bool


def zeros(x, *shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=x.device)


def ones(x, *shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device=x.device)


def where(x, *numbers):
    return torch.tensor(numbers, device=x.device)


# x is arange(6.); what is returned and x are compared, or the class of the exception.
CASES = {
    # memory that is seen more than once
    "a part of itself": lambda x: x[1:].add_(x[:-1]),
    "itself": lambda x: x.add_(x),
    "its transpose": lambda x: x[:4].view(2, 2).add_(x[:4].view(2, 2).t()),
    "copy of a part of itself": lambda x: x[1:].copy_(x[:-1]),
    "index_put_ that accumulates, expanded": lambda x: x[:1].expand(3).index_put_((where(x, 0, 2, 0),), ones(x), True),
    "index_put_ to a number": lambda x: x[0].index_put_((where(x, 0),), ones(x)),
    "index_fill_ of one, expanded": lambda x: x[:1].expand(3).index_fill_(0, where(x, 0, 2), 1),
    "list op with an expanded member": lambda x: torch._foreach_add_([x[3:], x[:1].expand(2)], 1),
    "out= that is read, of another shape": lambda x: torch.add(x, ones(x, 1, 6), out=x),
    "transposed windows": lambda x: x.view(2, 3).t().add(0).unfold(0, 1, 1).add_(1),
    "copy of itself": lambda x: x.copy_(x),
    "expanded, copy_": lambda x: x[:1].expand(3).copy_(x[:3]),
    "expanded, fill_": lambda x: x[:1].expand(3).fill_(1),
    "expanded, zero_": lambda x: x[:1].expand(3).zero_(),
    "expanded, neg_": lambda x: x[:1].expand(3).neg_(),
    "expanded, index_put_": lambda x: x[:1].expand(3).index_put_((where(x, 0, 1),), ones(x)),
    "expanded, cumsum_": lambda x: x[:1].expand(3).cumsum_(0),
    "expanded, uniform_": lambda x: x[:1].expand(3).uniform_(),
    "expanded, foreach": lambda x: torch._foreach_add_([x[:1].expand(3)], 1),
    "expanded by set_, foreach": lambda x: torch._foreach_add_([zeros(x, 0).set_(x, 0, (3,), (0,))], 1),
    "expanded, copy of itself": lambda x: (lambda y: y.copy_(y))(x[:1].expand(3)),
    "expanded, out=": lambda x: torch.add(x, 1, out=zeros(x, 1).expand(6)),
    "expanded, mm out=": lambda x: torch.mm(x.view(2, 3), x.view(3, 2), out=zeros(x, 1, 1).expand(2, 2)),
    "out= is a part of the input": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "out= is the input": lambda x: torch.add(x, 1, out=x),
    "gather out= is the input": lambda x: torch.gather(x, 0, where(x, 0, 1, 2, 3, 4, 5), out=x),
    "index_add_ of itself": lambda x: x.index_add_(0, where(x, 0, 1, 2, 3, 4, 5), x),
    "scatter_ of a part of itself": lambda x: x.scatter_(0, where(x, 0, 1), x[:2]),
    "index_put_ of a part of itself": lambda x: x.index_put_((where(x, 0, 1),), x[:2]),
    # lists whose members are the same tensor, or share its memory: one after the other
    "foreach of one tensor": lambda x: torch._foreach_mul_([x, x], [2.0, 3.0]),
    "foreach of one storage, by set_": lambda x: torch._foreach_add_([x, zeros(x, 0).set_(x)], 1),
    "foreach of overlapping views": lambda x: torch._foreach_add_([x[:3], x[1:4], x[4:]], 1),
    "foreach that reads what it wrote": lambda x: torch._foreach_add_([x[:3], x[3:]], [x[3:], x[:3]]),
    "foreach_addcmul_ of one tensor": lambda x: torch._foreach_addcmul_([x, x], [x, x], [x, x]),
    "clip of one gradient": lambda x: torch._foreach_mul_([x, x.clone(), x], where(x, 2.0)[0]),
    # dtypes that do not fit
    "bool.mul_(0.5)": lambda x: ones(x, 2, dtype=BOOL).mul_(0.5),
    "int.add_(float)": lambda x: ones(x, 6, dtype=I32).add_(x),
    "int.add_(0-d float)": lambda x: ones(x, 6, dtype=I32).add_(x[0]),
    "int.add_(int64)": lambda x: ones(x, 2, dtype=I32).add_(ones(x, 2, dtype=I64)),
    "int.div_(2)": lambda x: ones(x, 2, dtype=I32).div_(2),
    "int.div_(2, floor)": lambda x: (ones(x, 2, dtype=I32) * 7).div_(2, rounding_mode="floor"),
    "float.add_(complex)": lambda x: x.add_(1j),
    "float.eq_": lambda x: x.eq_(x.flip(0)),
    "int.exp_": lambda x: ones(x, 2, dtype=I32).exp_(),
    "int.cumsum_": lambda x: ones(x, 2, dtype=I32).cumsum_(0),
    "add out=double": lambda x: torch.add(x, 1, out=zeros(x, 6, dtype=F64)),
    "add out=long": lambda x: torch.add(x, 1, out=zeros(x, 6, dtype=I64)),
    "add of a number to itself": lambda x: torch.add(x, 1, out=x),
    "mm out=double": lambda x: torch.mm(x.view(2, 3), x.view(3, 2), out=zeros(x, 2, 2, dtype=F64)),
    "sum out=long": lambda x: torch.sum(x, 0, out=zeros(x, dtype=I64)),
    "mean out=double": lambda x: torch.mean(x, 0, out=zeros(x, dtype=F64)),
    "cumsum out=double": lambda x: torch.cumsum(x, 0, out=zeros(x, 6, dtype=F64)),
    "cat out=double": lambda x: torch.cat([x, x], out=zeros(x, 12, dtype=F64)),
    "cat out=long": lambda x: torch.cat([x, x], out=zeros(x, 12, dtype=I64)),
    "sort out=double": lambda x: torch.sort(x, out=(zeros(x, 6, dtype=F64), zeros(x, 6, dtype=I64))),
    "gather out=double": lambda x: torch.gather(x, 0, where(x, 0), out=zeros(x, 1, dtype=F64)),
    "argmax out=int": lambda x: torch.argmax(x, out=zeros(x, dtype=I32)),
    "all out=double": lambda x: torch.all(x, 0, out=zeros(x, dtype=F64)),
    "where out=double": lambda x: torch.where(x > 1, x, x, out=zeros(x, 6, dtype=F64)),
    "linspace out=long": lambda x: torch.linspace(0, 5, 6, out=zeros(x, 6, dtype=I64)),
    "arange out=long": lambda x: torch.arange(6.0, out=zeros(x, 6, dtype=I64)),
    # shapes
    "too large": lambda x: x.add_(ones(x, 2, 6)),
    "out= empty": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "out= of a view": lambda x: torch.add(x[:2], 1, out=zeros(x, 6)[:2]),
    "out= smaller, of a view": lambda x: torch.add(x[:2], 1, out=x[2:2]),
    "out= smaller keeps its storage": lambda x: torch.sum(x.clone().view(2, 3), 0, out=x).as_strided((2,), (3,), 2),
    "scatter_ of fewer dimensions": lambda x: ones(x, 0, 2).scatter_(0, zeros(x, 1, 1, dtype=I64), ones(x, 2)),
    "scatter_ of fewer dimensions to nothing": lambda x: ones(x, 2, 0).scatter_(
        0, zeros(x, 1, 1, dtype=I64), ones(x, 2)
    ),
    "index_fill_ of nothing": lambda x: zeros(x, 2, 0).index_fill_(1, where(x, 0), 1),
    "index_fill_ of nothing in a storage": lambda x: x.view(2, 3)[:, :0].index_fill_(1, where(x, 0), 1),
    "index_fill_ of nothing at all": lambda x: zeros(x, 0, 0).index_fill_(1, where(x, 0), 1),
    "max out=": lambda x: torch.max(x.view(2, 3), 1, out=(zeros(x, 2), zeros(x, 2, dtype=I64))),
    "max of all out=": lambda x: torch.max(x, out=zeros(x)),
    "unbind_copy out=": lambda x: torch.unbind_copy(x.view(2, 3), out=[zeros(x, 3), zeros(x, 3)]),
    # forms of an op
    "pow_": lambda x: x.pow_(2),
    "polygamma_": lambda x: x[1:].polygamma_(1),
    "rrelu_": lambda x: torch.nn.functional.rrelu_(-x, 0.25, 0.25),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 2, -x),
    "batch_norm writes to its statistics": lambda x: torch.nn.functional.batch_norm(
        x.clone().view(2, 3), x[:3], x[3:], training=True
    ),
}


def outcome(case, device):
    """What can be told apart exactly, and the numbers."""
    x = torch.arange(6.0).to(device)
    try:
        result = case(x)
    except Exception as error:
        return type(error), [x.tolist()]
    tensors = [x, *(result if isinstance(result, (list, tuple)) else [result])]
    tensors = [t for t in tensors if t is not None]
    return [(t.dtype, t.shape, t.stride(), t._version) for t in tensors], [t.tolist() for t in tensors]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:Use of index_.* on expanded tensors is deprecated")  # the CPU warns, and does it
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_writes(case):
    (told, numbers), (expected, expected_numbers) = outcome(case, "xla"), outcome(case, "cpu")
    assert told == expected
    torch.testing.assert_close(numbers, expected_numbers)


def test_resizing_an_output_warns():
    x = torch.arange(6.0, device="xla")
    with pytest.warns(UserWarning, match="was resized"):
        assert torch.add(x, 1, out=torch.zeros(3, device="xla")).shape == (6,)


def test_a_write_by_a_list_op_is_noticed_by_autograd():
    weight = torch.ones(2, device="xla", requires_grad=True)
    x = torch.ones(2, device="xla")
    y = (x * weight).sum()
    torch._foreach_mul_([x], 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_threads_may_meet_at_the_first_use_of_an_op():
    from concurrent.futures import ThreadPoolExecutor

    from torch_xla._src.device.writes import _InPlace, _kernels

    name, kernel = next((n, k) for n, k in _kernels() if n == "aten::addcmul_")
    x = torch.arange(6.0, device="xla")
    torch_xla.sync()
    for _ in range(20):
        fresh = kernel(name, None)
        assert isinstance(fresh, _InPlace)
        with ThreadPoolExecutor(4) as pool:  # each resolves the op, or finds it resolved
            keys = torch._C._dispatch_keys(x)
            for future in [pool.submit(fresh, keys, torch.zeros(6, device="xla"), x, x) for _ in range(4)]:
                assert future.result().tolist() == [0, 1, 4, 9, 16, 25]


def test_a_storage_that_others_share_does_not_grow():
    x = torch.arange(6.0, device="xla")
    view = x[2:]
    with pytest.raises(RuntimeError, match="cannot make a storage larger that another tensor shares"):
        x.resize_(8)
    assert view.tolist() == [2, 3, 4, 5]
    del view
    assert x.resize_(8)[:6].tolist() == [0, 1, 2, 3, 4, 5]


def save_and_load(tensors):
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return torch.load(file, map_location="xla")


@pytest.mark.parametrize("copies", [copy.deepcopy, save_and_load])
def test_copies_share_what_the_originals_share(copies):
    x = torch.arange(6.0, device="xla")
    whole, part, other = copies([x, x.view(2, 3).t()[1:], torch.zeros(2, device="xla")])
    whole.mul_(2)
    part[0, 0] = 50
    other += 1
    assert whole.tolist() == [0, 50, 4, 6, 8, 10]
    assert part.tolist() == [[50, 8], [4, 10]]
    assert (part.stride(), part.storage_offset()) == ((1, 3), 1)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("copies", [copy.deepcopy, save_and_load])
def test_copies_of_an_expanded_tensor_are_expanded(copies):
    (x,) = copies([torch.arange(6.0, device="xla")[:3].expand(3, 3)])
    assert (x.stride(), x.tolist()) == ((0, 1), [[0, 1, 2]] * 3)


def test_functional_tensors_of_other_devices_get_the_kernels_of_pytorch():
    """torch.compile on the CPU, after the first xla tensor has brought ours in."""

    def writes(x, y):
        x.add_(1)
        x[1:].mul_(2)
        torch._foreach_add_([x, y], 1.5)
        x.masked_fill_(x > 4, 2.0)
        y.unfold(0, 2, 2).neg_()
        return torch.add(x, 1, out=torch.empty(0)), torch.slice_copy(x, 0, 1), x.clone().as_strided((2,), (3,))

    torch.zeros(1, device="xla")
    compiled, eager = (torch.arange(6.0), torch.arange(4.0)), (torch.arange(6.0), torch.arange(4.0))
    results = torch.compile(writes, backend="aot_eager")(*compiled)
    torch.testing.assert_close((*results, *compiled), (*writes(*eager), *eager))


WRITES_TO_VIEWS = {
    "a sum": lambda x: x.view(-1)[1:4].copy_(x.sum(0)),
    "a sum, changed": lambda x: x.view(-1)[1:4].copy_(x.sum(0)).sub_(2),
    "a sum of a row's view": lambda x: x[1].copy_(x.view(3, 2).sum(0).sum() - x.view(-1)[:3]).sub_(2),
    "a sum of another view": lambda x: x.view(3, 2)[1].copy_(x.sum(1)).mul_(3),
    "a flip": lambda x: x.view(-1)[1:4].copy_(x.flip(0).reshape(-1)[:3]).mul_(2),
    "cumulative sums": lambda x: x.view(1, -1)[0, 1:4].copy_(x.cumsum(1)[1]),
    "a transpose": lambda x: x.view(-1)[1:5].copy_(x.t().reshape(-1)[:4]).add_(1),
}


@pytest.mark.parametrize("write", WRITES_TO_VIEWS.values(), ids=WRITES_TO_VIEWS)
def test_a_view_takes_what_is_computed_from_all_that_it_shows(write):
    """XLA on CPU works in the memory of the source: Note [Writes to a view] in ops/update.py."""
    results = []
    for device in ("cpu", "xla"):
        x = torch.arange(1.0, 7.0, device=device).view(2, 3).clone()
        torch_xla.sync()
        write(x)
        results.append(x.tolist())
    assert results[0] == results[1]


def test_views_after_a_write_are_recorded_once():
    for x in (torch.zeros(2, 3, device="xla"), torch.zeros(2, 3).to("xla")):
        x.add_(1)
        before = RECORDER.pending
        view = x.t()
        view.sum()
        assert RECORDER.pending == before + 2
        x.add_(1)  # `view` sees it
        assert view.cpu().tolist() == [[2, 2]] * 3


def test_gradient_of_a_conjugated_upload():
    """PyTorch's formula for `rfft` keeps a pointer to the sizes of its gradient while it makes views of it."""
    x, g = torch.randn(20), torch.randn(11, dtype=torch.complex64)
    grads = []
    for device in ("cpu", "xla"):
        leaf = x.detach().to(device).requires_grad_()
        torch.fft.rfft(leaf).backward(g.to(device).conj())
        torch.fft.ihfft(leaf).abs().sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(*grads)


def test_only_ops_that_write_have_a_kernel_here():
    torch.zeros(1, device="xla")
    for name, kernel in writes._kernels():
        packet, _, overload = name.partition("::")[2].partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            assert op._schema.is_mutable, name
            assert kernel is not writes._Out or any(a.is_out for a in op._schema.arguments), name
