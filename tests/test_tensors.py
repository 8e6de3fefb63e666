"""Tensors on device xla behave as on the CPU: reading, printing, views, writes, copies, dtypes, indexing, lifetime."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_xla
from tests.same import raised, same
from torch_xla.debug import metrics

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
DTYPES = [torch.bool, *INTEGERS, *UNSIGNED, *FLOATS, *FP8, *COMPLEX]


def grid(device, rows=3, columns=4, dtype=torch.float32):
    """0, 1, 2 ... in a matrix."""
    return torch.arange(rows * columns, device=device).reshape(rows, columns).to(dtype)


def cases(table):
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())


# ---- what a tensor is ------------------------------------------------------------------------------------------------


def test_is_a_plain_tensor_that_says_it_is_on_xla():
    x = torch.ones(2, 3, device="xla", requires_grad=True)
    assert type(x) is torch.Tensor
    assert x.is_xla
    assert not x.is_cpu
    assert not x.is_cuda
    assert not x.is_meta
    assert not x.is_sparse
    assert not x.is_quantized
    assert x.layout == torch.strided
    assert x.device == torch.device("xla", 0)
    assert (x.device.type, x.device.index, str(x.device)) == ("xla", 0, "xla:0")
    assert x.get_device() == 0
    assert x.is_leaf
    assert not (x * 2).is_leaf
    assert (x * 2).grad_fn is not None
    assert x.type() == "torch.xla.FloatTensor"
    assert not x.is_pinned()
    assert x.is_contiguous()
    assert x.element_size() == 4
    assert x.nbytes == 24
    assert isinstance(x, torch.FloatTensor) is isinstance(torch.ones(1, device="meta"), torch.FloatTensor)


def test_identity_hash_and_weak_references():
    x, y = torch.ones(2, device="xla"), torch.ones(2, device="xla")
    assert hash(x) == id(x)
    assert {x: 1, y: 2}[y] == 2
    assert x in {x}
    died = []
    ref = weakref.ref(x, lambda _: died.append(True))
    assert ref() is x
    del x
    assert died == [True]


SCALARS = {
    "item": lambda d: [torch.tensor(v, device=d).item() for v in (3, 2.5, True, 1 + 2j)],
    "item of one element": lambda d: torch.tensor([[7]], device=d).item(),
    "bool": lambda d: [bool(torch.tensor(v, device=d)) for v in (0, 1.5, False)],
    "int": lambda d: int(torch.tensor(2.9, device=d)),
    "float": lambda d: float(torch.tensor(3, device=d)),
    "complex": lambda d: complex(torch.tensor(1 + 2j, device=d)),
    "index": lambda d: [10, 20, 30][torch.tensor(1, device=d)],
    "range": lambda d: list(range(torch.tensor(3, device=d))),
    "tolist": lambda d: grid(d).tolist(),
    "tolist 0-d": lambda d: torch.tensor(2, device=d).tolist(),
    "tolist empty": lambda d: torch.empty(0, 3, device=d).tolist(),
    "len": lambda d: len(grid(d)),
    "iteration": lambda d: list(grid(d)),
    "unpacking": lambda d: (lambda a, b, c: (a, c))(*grid(d)),
    "contains": lambda d: (5.0 in grid(d), 50 in grid(d)),
    "reversed": lambda d: reversed(torch.arange(3, device=d)),
    "if": lambda d: "yes" if torch.ones((), device=d) > 0 else "no",
    "max of python": lambda d: max(torch.tensor([1, 5, 2], device=d)),
    "sum of python": lambda d: sum(grid(d)),
    "sorted": lambda d: sorted(torch.tensor([3, 1, 2], device=d)),
    "divmod": lambda d: torch.tensor(7, device=d) // 2,
    "python numbers on the left": lambda d: [2 - grid(d), 2 ** grid(d), 1 / (grid(d) + 1), 5 % (grid(d) + 1)],
    "dim and numel": lambda d: (grid(d).dim(), grid(d).numel(), grid(d).size(), grid(d).shape[1]),
    "equal": lambda d: [
        torch.equal(grid(d), grid(d)),
        torch.equal(grid(d), grid(d) + 1),
        torch.equal(grid(d), grid(d)[0]),
    ],
    "allclose": lambda d: [torch.allclose(grid(d), grid(d) + 1e-9), torch.allclose(grid(d), grid(d) + 1)],
    "is_nonzero": lambda d: torch.is_nonzero(torch.tensor([2], device=d)),
    "is_same_size": lambda d: grid(d).is_same_size(grid(d)),
    "result_type": lambda d: torch.result_type(grid(d), 1.5),
}


@cases(SCALARS)
def test_reading(case):
    same(case)


# ---- printing --------------------------------------------------------------------------------------------------------

PRINTED = {str(d): lambda device, d=d: torch.tensor([0, 1, 1]).to(d).to(device) for d in DTYPES} | {
    "empty": lambda d: torch.empty(0, 3, device=d),
    "0-d": lambda d: torch.tensor(2.5, device=d),
    "requires_grad": lambda d: torch.ones(2, device=d, requires_grad=True),
    "with a history": lambda d: torch.ones(2, device=d, requires_grad=True) * 2,
    "large": lambda d: torch.arange(2000, device=d),
    "nan and inf": lambda d: torch.tensor([float("nan"), float("inf"), 1.0], device=d),
    "parameter": lambda d: torch.nn.Parameter(torch.ones(2, device=d)),
    "view": lambda d: grid(d).t()[1:],
}


@cases(PRINTED)
def test_printing(case):
    """As on the CPU, with the device named."""

    def shown(device):
        text = str(case(device))
        return text.replace(", device='xla:0'", "").replace(" ", "").replace("\n", "")

    assert "device='xla:0'" in repr(case("xla"))
    assert shown("xla") == shown("cpu")


def test_formatting():
    x = torch.tensor(2.5, device="xla")
    assert f"{x:.2f}" == "2.50"
    assert f"{x}" == "2.5"  # format() of a 0-d tensor is that of its number
    assert f"{torch.ones(1, device='xla')}" == "tensor([1.], device='xla:0')"
    assert "%.1f" % x == "2.5"  # noqa: UP031  (the operator is what is tested)


# ---- views and writes ------------------------------------------------------------------------------------------------


def written(write):
    """A case: `write(x)` on a matrix; everything that could alias is returned."""

    def case(device):
        x = grid(device)
        result = write(x)
        return x, result

    return case


def _setitem(*index, value=-1.0):
    def write(x):
        x[index if len(index) != 1 else index[0]] = value

    return written(write)


def _write_parts(split):
    def write(x):
        for number, part in enumerate(split(x)):
            part.mul_(number + 2)

    return written(write)


VIEWS = {
    "set row": _setitem(0),
    "set negative row": _setitem(-1),
    "set element": _setitem(1, 2),
    "set column": _setitem(slice(None), 1),
    "set step": _setitem(slice(None, None, 2), slice(1, None, 2)),
    "set ellipsis": _setitem(..., 0),
    "set none": _setitem(None, 1),
    "set empty slice": _setitem(slice(2, 1)),
    "set list": _setitem([0, 2]),
    "set two lists": _setitem([0, 2], [1, 3]),
    "set list and slice": _setitem([0, 2], slice(1, 3)),
    "set bool list": _setitem([True, False, True]),
    "set true": _setitem(True),
    "set int": _setitem(0, value=3),
    "set by cpu scalar tensor": _setitem(0, value=torch.tensor(9.0)),
    "set by cpu scalar index": _setitem(torch.tensor(1)),
    "set by cpu index": _setitem(torch.tensor([0, 2])),
    "set by cpu mask": _setitem(torch.tensor([True, False, True])),
    "set by tensor": written(lambda x: x.__setitem__(slice(0, 2), x[1:3].clone())),
    "set by broadcast tensor": written(lambda x: x.__setitem__(slice(None), x[0].clone() * 2)),
    "set by overlapping rows": written(lambda x: x.__setitem__(0, x[1])),
    "set other dtype": written(lambda x: x.__setitem__(0, torch.arange(4, device=x.device))),
    "set by mask": written(lambda x: x.__setitem__(x > 5, 0)),
    "set by mask of rows": written(lambda x: x.__setitem__(x[:, 0] > 3, 7)),
    "set by mask and tensor": written(lambda x: x.__setitem__(x > 9, torch.tensor([1.0, 2.0], device=x.device))),
    "add to row": written(lambda x: x[1].add_(10)),
    "iadd of a slice": written(lambda x: x[:, 1].__iadd__(2)),
    "t": written(lambda x: x.t()[2].fill_(-1)),
    "T and slice": written(lambda x: x.T[1:, ::2].zero_()),
    "diagonal": written(lambda x: x.diagonal().fill_(9)),
    "fill_diagonal_": written(lambda x: x.fill_diagonal_(9)),
    "view": written(lambda x: x.view(-1)[11].fill_(5)),
    "view of view": written(lambda x: x.view(2, 6)[1].view(3, 2)[0].fill_(5)),
    "reshape": written(lambda x: x.reshape(4, 3)[1].neg_()),
    "flatten": written(lambda x: x.flatten()[::5].neg_()),
    "unsqueeze": written(lambda x: x.unsqueeze(0)[0, 1].neg_()),
    "permute": written(lambda x: x.view(3, 2, 2).permute(2, 0, 1)[1].neg_()),
    "expand then read": written(lambda x: x[:1].expand(3, 4).sum(0)),
    "narrow": written(lambda x: x.narrow(1, 1, 2).mul_(2)),
    "select": written(lambda x: x.select(1, 2).mul_(2)),
    "unfold": written(lambda x: x.unfold(1, 2, 2)[0, 1].mul_(2)),
    "chunk": _write_parts(lambda x: x.chunk(2, 1)),
    "split": _write_parts(lambda x: x.split([1, 2])),
    "unbind": _write_parts(lambda x: x.unbind(1)),
    "hsplit": _write_parts(lambda x: x.hsplit(2)),
    "tensor_split": _write_parts(lambda x: x.tensor_split(2)),
    "iteration": _write_parts(lambda x: x),
    "as_strided": written(lambda x: x.as_strided((2, 2), (5, 1), 1).fill_(-1)),
    "view as other dtype": written(lambda x: x.view(torch.int32)[0].zero_()),
    "real and imag": lambda d: (lambda z: (z.real.add_(1), z.imag.mul_(2), z))(torch.ones(2, dtype=torch.complex64, device=d)),
    "view_as_real": lambda d: (lambda z: (torch.view_as_real(z)[0].add_(1), z))(torch.ones(2, dtype=torch.complex64, device=d)),
    "conj": lambda d: (lambda z: (z.conj() * z, z.conj().resolve_conj(), z.conj().imag))(torch.full((2,), 1 + 2j, device=d)),
    "base then view": written(lambda x: (x[1], x.zero_())[0]),
    "view then base then view": written(lambda x: [v := x[1], x.add_(1), v.mul_(2), x.sub_(1)][0]),
    "two views": written(lambda x: [x[:2].mul_(2), x[1:].add_(1)]),
    "contiguous copies when it must": written(lambda x: x.t().contiguous().zero_()),
    "contiguous is itself": written(lambda x: x.contiguous() is x),
    "clone": written(lambda x: x.clone().zero_()),
    "detach shares": written(lambda x: x.detach().zero_()),
    "data shares": written(lambda x: x.data[0].zero_()),
    "view_as": written(lambda x: x.view_as(torch.ones(4, 3, device=x.device))[0].zero_()),
    "squeeze": written(lambda x: x[:1].squeeze(0).zero_()),
    "movedim": written(lambda x: x.movedim(0, 1)[0].zero_()),
    "swapaxes": written(lambda x: x.swapaxes(0, 1)[0].zero_()),
}  # fmt: skip


@cases(VIEWS)
def test_views_and_writes(case):
    same(case, strides=True)


IN_PLACE = {
    "arithmetic": lambda x: x.add_(1).mul_(2).sub_(x).div_(3).pow_(2),
    "operators": lambda x: x.__iadd__(1).__imul__(2).__isub__(1).__itruediv__(2),
    "alpha": lambda x: x.add_(x, alpha=0.5),
    "addcmul_": lambda x: x.addcmul_(x, x, value=2),
    "copy_ broadcasts": lambda x: x.copy_(torch.arange(4, device=x.device)),
    "fill_ and zero_": lambda x: x.fill_(2)[0].zero_(),
    "clamp_": lambda x: x.clamp_(2, 5),
    "masked_fill_": lambda x: x.masked_fill_(x > 3, -1),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0, 2], device=x.device), -1),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([2, 0], device=x.device), x[:2].clone()),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([1, 1], device=x.device), x[:2].clone()),
    "index_put_": lambda x: x.index_put_((torch.tensor([1, 1], device=x.device),), torch.tensor(1.0), accumulate=True),
    "scatter_": lambda x: x.scatter_(1, torch.tensor([[0, 1]], device=x.device), -1.0),
    "scatter_add_": lambda x: x.scatter_add_(1, torch.tensor([[0, 0]], device=x.device), x[:1, :2].clone()),
    "relu_ and sigmoid_": lambda x: x.sub_(4).relu_().sigmoid_(),
    "sort into itself": lambda x: x.copy_(x.sort(1, descending=True).values),
    "tril_": lambda x: x.tril_(),
    "transpose_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "lerp_": lambda x: x.lerp_(x * 2, 0.5),
    "put_": lambda x: x.put_(torch.tensor([0, 5], device=x.device), torch.tensor([7.0, 8.0], device=x.device)),
    "float into": lambda x: x.copy_(torch.ones(3, 4, dtype=torch.float64, device=x.device)),
    "logical": lambda x: x.gt_(3),
    "resize_ smaller": lambda x: x.resize_(2, 2),
    "set_": lambda x: x.set_(torch.ones(2, device=x.device)),
    "data =": lambda x: (setattr(x, "data", torch.ones(2, 5, device=x.device)), x)[1],
    "data = of another dtype": lambda x: (setattr(x, "data", x.data.half()), x)[1],
    "swap_tensors": lambda x: (torch.utils.swap_tensors(x, torch.ones(5, device=x.device)), x)[1],
}


@cases(IN_PLACE)
def test_in_place(case):
    def run(device):
        x = grid(device)
        result = case(x)
        return x, result, x._version > 0 or case.__name__ == "x"

    same(run, 1e-6)


def test_resize_larger_keeps_what_was_there():
    x = torch.arange(4, device="xla")
    x.resize_(2, 3)
    assert x.shape == (2, 3)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]  # the rest is not initialised, on the CPU too


def _out(shape, fn, dtype=torch.float32):
    def case(device):
        out = torch.full(shape, 9, dtype=dtype, device=device)
        result = fn(grid(device), out)
        return out, result is out

    return case


OUT = {
    "add": _out((3, 4), lambda x, out: torch.add(x, x, out=out)),
    "into another dtype": _out((3, 4), lambda x, out: torch.add(x, x, out=out), torch.float64),
    "mm": _out((3, 3), lambda x, out: torch.mm(x, x.t(), out=out)),
    "into an empty one": _out((0,), lambda x, out: torch.add(x, 1, out=out)),
    "into a view": lambda d: (lambda o: (torch.add(grid(d), 1, out=o[0]), o))(torch.zeros(2, 3, 4, device=d)),
    "into its input": lambda d: (lambda x: (torch.exp(x, out=x) is x, x.shape))(grid(d)),
    "arange": lambda d: torch.arange(5, out=torch.empty(5, dtype=torch.int64, device=d)),
    "linspace": lambda d: torch.linspace(0, 1, 5, out=torch.empty(5, device=d)),
    "eye": lambda d: torch.eye(3, out=torch.empty(3, 3, device=d)),
    "zeros": lambda d: torch.zeros(2, out=torch.ones(2, device=d)),
    "full": lambda d: torch.full((2,), 3.0, out=torch.ones(2, device=d)),
    "cat": lambda d: torch.cat([grid(d), grid(d)], out=torch.empty(6, 4, device=d)),
    "stack": lambda d: torch.stack([grid(d), grid(d)], out=torch.empty(2, 3, 4, device=d)),
    "max with indices": lambda d: tuple(torch.max(grid(d), 1, out=(torch.empty(3, device=d), torch.empty(3, device=d).long()))),
    "sort": lambda d: tuple(torch.sort(grid(d), out=(torch.empty(3, 4, device=d), torch.empty(3, 4, device=d).long()))),
    "sum": lambda d: torch.sum(grid(d), 0, out=torch.empty(4, device=d)),
    "where": lambda d: torch.where(grid(d) > 3, grid(d), -grid(d), out=torch.empty(3, 4, device=d)),
    "index_select": lambda d: torch.index_select(grid(d), 0, torch.tensor([1], device=d), out=torch.empty(1, 4, device=d)),
    "nonzero": lambda d: torch.nonzero(grid(d) > 9, out=torch.empty(2, 2, dtype=torch.long, device=d)),
    "masked_select": lambda d: torch.masked_select(grid(d), grid(d) > 9, out=torch.empty(2, device=d)),
}  # fmt: skip


@cases(OUT)
def test_out(case):
    same(case, 1e-5)


def test_version_counts_writes_as_on_the_cpu():
    def versions(device):
        x = grid(device)
        seen = [x._version]
        for alias in (x, x[0], x.t(), x.detach(), x.data):
            alias.mul_(2)
            seen.append(x._version)
        return [version - seen[0] for version in seen]

    same(versions)


# ---- copies ----------------------------------------------------------------------------------------------------------

COPIES = {
    "to device and back": lambda d: grid("cpu").to(d).to("cpu"),
    "to(dtype)": lambda d: grid(d).to(torch.float64),
    "to(device, dtype)": lambda d: grid("cpu").to(d, torch.bfloat16),
    "to(cpu, dtype)": lambda d: grid(d).to("cpu", torch.int64),
    "to(other)": lambda d: grid("cpu").to(torch.ones(1, dtype=torch.half, device=d)),
    "to is itself": lambda d: (lambda x: (x.to(d) is x, x.to(x.dtype) is x, x.to(d, copy=True) is x))(grid(d)),
    "type methods": lambda d: [m(grid(d)) for m in (Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.int, Tensor.bool)],
    "type_as": lambda d: grid(d).type_as(torch.ones(1, dtype=torch.int8, device=d)),
    "type": lambda d: grid(d).type(torch.float64),
    "non_blocking": lambda d: [grid("cpu").to(d, non_blocking=True), grid(d).to("cpu", non_blocking=True), grid(d).cpu()],
    "host takes device": lambda d: torch.zeros(3, 4).copy_(grid(d)),
    "host takes device, dtype": lambda d: torch.zeros(3, 4, dtype=torch.long).copy_(grid(d)),
    "host takes device, broadcast": lambda d: torch.zeros(2, 3, 4).copy_(grid(d)),
    "host view takes device": lambda d: (lambda h: (h[:, 1].copy_(grid(d)[:, 0]), h))(torch.zeros(3, 4)),
    "device takes host": lambda d: grid(d).copy_(torch.ones(3, 4)),
    "device takes host, dtype": lambda d: grid(d).copy_(torch.ones(3, 4, dtype=torch.long)),
    "device takes host, broadcast": lambda d: grid(d).copy_(torch.arange(4)),
    "device view takes host": lambda d: (lambda x: (x[1:].copy_(torch.ones(2, 4)), x))(grid(d)),
    "transposed from the host": lambda d: torch.arange(6).reshape(2, 3).t().to(d).contiguous(),
    "strided from the host": lambda d: torch.arange(6)[::2].to(d),
    "expanded from the host": lambda d: torch.ones(1, 3).expand(2, 3).to(d).contiguous(),
    "transposed to the host": lambda d: grid(d).t().cpu(),
    "new_*": lambda d: [grid(d).new_zeros(2), grid(d).new_ones(2, dtype=torch.int8), grid(d).new_full((2,), 3)],
    "new_tensor": lambda d: grid(d).new_tensor([1.0]),
    "*_like": lambda d: [torch.zeros_like(grid(d)), torch.ones_like(grid(d), dtype=torch.int8), torch.full_like(grid(d), 2)],
    "empty": lambda d: [torch.empty(0, device=d), torch.empty(2, 0, device=d).sum(0), grid(d).new_empty((0, 2))],
    "tensor": lambda d: [torch.tensor(v, device=d) for v in (1, 1.5, True, [], [[1, 2]], 1j)],
    "tensor of dtype": lambda d: torch.tensor([1, 2], dtype=torch.float16, device=d),
    "as_tensor and asarray": lambda d: [torch.as_tensor(np.ones(2), device=d), torch.asarray([1.5], device=d)],
    "from tensors": lambda d: torch.stack([torch.tensor(1.0, device=d), torch.tensor(2.0, device=d)]),
    "copy": lambda d: [copy.copy(grid(d)), copy.deepcopy(grid(d)), copy.deepcopy(torch.ones(2, device=d, requires_grad=True))],
    "pickle": lambda d: pickle.loads(pickle.dumps(grid(d))),
    "0-d of the host": lambda d: [grid(d) * torch.tensor(2.0), torch.tensor(2) + grid(d), grid(d).maximum(torch.tensor(3.0))],
    "0-d of the host in where": lambda d: torch.where(grid(d) > 3, grid(d), torch.tensor(0.0)),
    "0-d of the host in place": lambda d: grid(d).mul_(torch.tensor(2.0)).add_(torch.tensor(1)),
    "0-d of the host promotes": lambda d: [grid(d).int() * torch.tensor(1.5), grid(d) * torch.tensor(2.0).double()],
    "numpy scalar": lambda d: grid(d) * np.float32(2),
    "channels_last": lambda d: torch.ones(1, 2, 2, 2, device=d).to(memory_format=torch.channels_last).contiguous(),
}  # fmt: skip


@cases(COPIES)
def test_copies(case):
    same(case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels_and_computes(dtype):
    host = torch.tensor([0, 1, 3, 1]).to(dtype)
    x = host.to("xla")
    assert x.dtype == dtype
    assert torch.equal(x.cpu().view(torch.uint8), host.view(torch.uint8))  # bit for bit
    assert x[1].item() == host[1].item()

    def run(device):
        y = host.to(device)
        parts = [y.clone(), y[1:], y.reshape(2, 2).t().contiguous(), torch.cat([y, y]), y.to(torch.complex64).sum()]
        if not dtype.is_complex:
            parts += [y.to(torch.int32), y.to(torch.float32), y.to(torch.float64), y.to(torch.bool)]
        if dtype not in FP8 and dtype not in UNSIGNED:
            parts += [y + y, y == y]
        return parts

    same(run)


def test_64_bits_are_64_bits():
    big = 2**40 + 1
    assert (torch.tensor([big], device="xla") + 1).item() == big + 1
    assert (torch.tensor([big], device="xla").double() * 3).item() == big * 3
    assert torch.tensor([2**63 - 1], device="xla").item() == 2**63 - 1
    assert (torch.ones(1, dtype=torch.float64, device="xla") + 1e-12).item() == 1 + 1e-12
    assert torch.arange(3, device="xla").sum().dtype == torch.int64


def test_bounds_that_determine_a_size_are_no_inputs_of_the_program():
    """A number that differs from last time becomes an input of the program; not one that a shape depends on."""
    for end in (3, 7, 5):
        assert torch.arange(end, device="xla").tolist() == list(range(end))
        assert torch.arange(1, end, 2, device="xla").tolist() == list(range(1, end, 2))
        assert torch.linspace(0, 1, end, device="xla").shape == (end,)


# ---- numpy, dlpack, storages -----------------------------------------------------------------------------------------


def test_numpy_and_dlpack_refuse_clearly():
    x = torch.ones(2, device="xla")
    for convert in (x.numpy, lambda: np.asarray(x), x.__array__):
        error = raised(convert)
        assert isinstance(error, TypeError)
        assert "cpu()" in str(error)
    assert x.cpu().numpy().tolist() == [1, 1]
    assert x.numpy(force=True).tolist() == [1, 1]
    error = raised(lambda: torch.utils.dlpack.to_dlpack(x))
    assert "xla" in str(error)
    error = raised(lambda: x.__dlpack__())
    assert "not on CUDA" in str(error)  # PyTorch's own message; torch_xla.utils.dlpack copies


def test_addresses_tell_which_tensors_share_a_storage():
    """No address of host memory, but good for what Python code does with addresses: finding aliases."""
    x, y = torch.ones(4, device="xla"), torch.ones(4, device="xla")
    assert x.data_ptr() == x.detach().data_ptr() == x.view(2, 2).data_ptr() == x.untyped_storage().data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4
    assert len({x.data_ptr(), y.data_ptr(), x.clone().data_ptr()}) == 3
    assert x.untyped_storage().nbytes() == 16
    with pytest.raises(NotImplementedError, match="CPU"):
        x.storage()


def test_from_numpy_copies():
    array = np.ones(3, np.float32)
    x = torch.from_numpy(array).to("xla")
    array[:] = 5
    assert x.tolist() == [1, 1, 1]
    host = x.cpu()
    host.zero_()
    assert x.tolist() == [1, 1, 1]


# ---- devices that differ ---------------------------------------------------------------------------------------------

MIXED = {
    "add": lambda x, h: x + h,
    "add from the left": lambda x, h: h + x,
    "mm": lambda x, h: x @ h.t(),
    "cat": lambda x, h: torch.cat([x, h]),
    "stack": lambda x, h: torch.stack([x, h]),
    "in place": lambda x, h: x.add_(h),
    "in place on the host": lambda x, h: h.add_(x),
    "where": lambda x, h: torch.where(x > 0, x, h),
    "linear": lambda x, h: torch.nn.functional.linear(x, h),
    "embedding": lambda x, h: torch.nn.functional.embedding(torch.zeros(2, dtype=torch.long), x),
    "cross_entropy": lambda x, h: torch.nn.functional.cross_entropy(x, torch.zeros(3, dtype=torch.long)),
    "gather": lambda x, h: x.gather(0, torch.zeros(1, 1, dtype=torch.long)),
    "layer_norm": lambda x, h: torch.nn.functional.layer_norm(x, (4,), h[0]),
    "out=": lambda x, h: torch.add(x, x, out=h),
    "foreach": lambda x, h: torch._foreach_add([x, x], [h, h]),
}


@cases(MIXED)
def test_tensors_of_the_host_do_not_mix(case):
    x, host = grid("xla"), grid("cpu")
    error = raised(lambda: case(x, host))
    assert isinstance(error, RuntimeError)
    assert "Expected all tensors to be on the same device" in str(error)
    assert x.tolist() == host.tolist()


# ---- indexing --------------------------------------------------------------------------------------------------------

INDEXING = {
    "int": lambda x: [x[1], x[-1], x[1, 2], x[1][2]],
    "slices": lambda x: [x[1:], x[:-1, ::2], x[-2:, -3:-1], x[5:], x[::2, 1::2]],
    "none and ellipsis": lambda x: [x[None], x[..., None], x[..., 1], x[None, ..., 0, None], x[:, None, 1]],
    "bools": lambda x: [x[True], x[False], x[[True, False, True]]],
    "lists": lambda x: [x[[0, 2]], x[[0, 2], [1, 3]], x[:, [1, -1]], x[[-1], 1:]],
    "tensors": lambda x: [
        x[torch.tensor([0, -1], device=x.device)],
        x[:, torch.tensor([[0, 1]], device=x.device)],
        x[torch.tensor(1, device=x.device)],
    ],
    "int32 and uint8": lambda x: [x[torch.tensor([0, 2], dtype=torch.int32, device=x.device)]],
    "host tensors": lambda x: [
        x[torch.tensor([0, 2])],
        x[torch.tensor(1)],
        x[torch.tensor([True, False, True])],
        x[0, torch.tensor([1, 2])],
    ],
    "numpy": lambda x: [x[np.array([0, 2])], x[np.int64(1)]],
    "masks": lambda x: [x[x > 5], x[x[:, 0] > 3], x[:, x[0] > 1], x[x < 0]],
    "mask and int": lambda x: [x[x[:, 0] > 3, 1], x[x[:, 0] > 3, 1:]],
    "separated": lambda x: x.view(3, 2, 2)[[0, 1], :, [0, 1]],
    "mask of two dims in three": lambda x: x.view(3, 2, 2)[x.view(3, 2, 2).sum(-1) > 4],
    "take and gather": lambda x: [
        x.take(torch.tensor([0, 5, -1], device=x.device)),
        x.gather(1, torch.tensor([[3], [0], [1]], device=x.device)),
    ],
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(1, descending=True), 1),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 0], device=x.device)),
    "nonzero": lambda x: [x.nonzero(), x[0].nonzero(), (x > 100).nonzero(), torch.tensor(3, device=x.device).nonzero()],
    "nonzero as tuple": lambda x: [*x.nonzero(as_tuple=True), *torch.where(x > 6), torch.argwhere(x > 9)],
    "unique": lambda x: [(x % 3).unique(), *torch.unique(x % 3, return_inverse=True, return_counts=True)],
    "unique of others": lambda x: [
        torch.tensor(v, device=x.device).unique() for v in ([True, False], [float("nan"), 1, float("nan")], 5)
    ],
    "unique_consecutive": lambda x: [
        (x > 5).unique_consecutive(),
        *torch.unique_consecutive(x // 3, return_inverse=True, return_counts=True),
        *torch.unique_consecutive(x.view(3, 2, 2) // 5, return_counts=True, return_inverse=True, dim=1),
    ],
    "masked_select": lambda x: [x.masked_select(x > 7), x.masked_select(x[0] > 1)],
    "bincount": lambda x: [
        x.flatten().long().bincount(),
        torch.tensor([1, 1, 3], device=x.device).bincount(minlength=6),
    ],
    "repeat_interleave": lambda x: [
        x.repeat_interleave(2, 0),
        x.repeat_interleave(torch.tensor([1, 0, 2], device=x.device), 0),
    ],
    "masked_scatter": lambda x: x.masked_scatter(x > 5, -x),
    "empty index": lambda x: [x[[]], x[torch.tensor([], dtype=torch.long, device=x.device)]],
    "split by sizes": lambda x: list(x.split([1, 3], 1)),
}


@cases(INDEXING)
def test_indexing(case):
    same(lambda device: case(grid(device)))


DATA_DEPENDENT = {
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 500],
    "masked_select": lambda x: x.masked_select(x > 500),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(1000, dtype=torch.long, device=x.device)),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "set by mask": lambda x: x.__setitem__(x > 500, 0),
}


@cases(DATA_DEPENDENT)
def test_data_dependent_shapes_read_back_the_size_only(case):
    x = torch.arange(1000.0, device="xla")
    torch_xla.sync()
    metrics.clear_metrics()
    case(x)
    assert (metrics.metric_data("InboundData") or (0, 0))[1] <= 16


# ---- lifetime --------------------------------------------------------------------------------------------------------


def _values():
    """Live Values, not counting those that wait for the collector."""
    from torch_xla._src.graph.value import Value

    return sum(type(o) is Value for o in gc.get_objects())


def test_a_loop_holds_a_constant_number_of_values_without_the_collector():
    from torch_xla._src.runtime import memory

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(5, 4, device="xla")
    counts = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            x[0].add_(0.0)
            torch_xla.sync()
            counts.append((_values(), memory.live_bytes()))
    finally:
        gc.enable()
    assert len(set(counts[2:])) == 1, counts
