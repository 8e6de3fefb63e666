"""What PyTorch's databases of operators and modules say is an error: xla raises the class that the CPU raises."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.torch_version import TorchVersion

import torch_xla

# torch 2.15 raises NotImplementedError or TypeError where 2.13, whose classes ours are, raises RuntimeError.
NEWER = TorchVersion(torch.__version__) >= (2, 14)
# What xla does not refuse, or refuses with another class: "name number" -> why.
EXPECTED = {
    "narrow_copy 1": "IndexError, as `narrow` raises; the CPU's kernel of the copy fails an assertion of its own",
}
if NEWER:
    EXPECTED |= {"aminmax 4": "torch 2.15 asks whether both outputs overlap"}

OPS = [op for op in op_db if op.error_inputs_func is not None]
MODULES = [info for info in module_db if info.module_error_inputs_func is not None]


class _Move:
    """Moves tensors to xla; those that share memory on the CPU share it there."""

    def __init__(self):
        self.storages = {}

    def __call__(self, x):
        if isinstance(x, torch.Tensor):
            return self._tensor(x) if x.device.type == "cpu" else x
        return torch.device("xla") if isinstance(x, torch.device) and x.type == "cpu" else "xla" if x == "cpu" else x

    def _tensor(self, x):
        storage = x.untyped_storage()
        key = storage.data_ptr(), x.dtype
        if not key[0] or x.is_conj() or x.is_neg():
            return x.detach().to("xla").requires_grad_(x.requires_grad)
        if key not in self.storages:
            flat = x.detach().as_strided((storage.nbytes() // x.dtype.itemsize,), (1,), 0)
            self.storages[key] = flat.to("xla")
        moved = self.storages[key].as_strided(x.shape, x.stride(), x.storage_offset())
        return moved.detach().requires_grad_(x.requires_grad)


def notes_of(error):
    return getattr(error, "__notes__", [])


def _raised(fn, inputs, device):
    """The exception that `fn(*args, **kwargs)` raises on a device, or None.

    One that comes only when the result is read has to name the line of the call.
    """
    reading = False
    try:
        args, kwargs = inputs if device == "cpu" else pytree.tree_map(_Move(), inputs)
        results = pytree.tree_leaves(fn(*args, **kwargs))
        reading = True
        for x in results:
            if isinstance(x, torch.Tensor):
                x.detach().cpu()
    except Exception as error:
        if device == "xla" and reading and not any(__file__ in text for text in (str(error), *notes_of(error))):
            return AssertionError(f"no line is named: {error!r}")
        return error.with_traceback(None)  # which would keep the arguments
    return None


def _disagreements(name, calls):
    """Error inputs on which xla does not raise what the CPU raises, and those it does against expectation."""
    wrong, fixed = {}, []
    for number, (fn, inputs) in enumerate(calls):
        with contextlib.suppress(Exception):  # left behind by the call before
            torch_xla.sync(wait=True)
        want, got = _raised(fn, inputs, "cpu"), _raised(fn, inputs, "xla")
        key = f"{name} {number}"
        agree = want is None or isinstance(got, type(want)) or (NEWER and isinstance(want, type(got)))
        if not agree and key not in EXPECTED:
            wrong[key] = f"the CPU raises {want!r}, xla {got!r}"
        elif agree and key in EXPECTED:
            fixed.append(key)
    return wrong, fixed


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_operators(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of PyTorch, and resized out=
        samples = [error.sample_input for error in op.error_inputs("cpu")]
        calls = [(op, ((s.input, *s.args), s.kwargs)) for s in samples]
        wrong, fixed = _disagreements(op.formatted_name, calls)
    assert not wrong
    assert not fixed, "no longer expected to fail"


# Statements that the databases lack; `t` makes a tensor of data, `o` one of ones.
STATEMENTS = [
    lambda t, o: o(2, 2).sort(3),
    lambda t, o: torch.argsort(o(2), dim=2),
    lambda t, o: o(2) << 1,
    lambda t, o: o(0).argmax(),
    lambda t, o: o(0, 3).argmin(0),
    lambda t, o: torch.var(o(2).long()),
    lambda t, o: torch.std(t([1, 2]), 0),
    lambda t, o: t([True]) - 1,
    lambda t, o: torch.clamp(o(2)),
    lambda t, o: torch.lerp(t([1, 2]), t([1, 2]), 0.5),
    lambda t, o: torch.addcdiv(t([1]), t([1]), t([1])),
    lambda t, o: torch.heaviside(o(2), o(2).double()),
    lambda t, o: o(2).bernoulli_(2),
    lambda t, o: torch.bernoulli(o(2), p=2),
    lambda t, o: o(2).uniform_(1, 0),
    lambda t, o: torch.binomial(o(2), o(3)),
    lambda t, o: torch.multinomial(t([1, 2]), 1),
    lambda t, o: torch.randn_like(t([1, 2])),
    lambda t, o: F.cross_entropy(o(2, 3), t([0, 1], dtype=torch.int32)),
    lambda t, o: F.nll_loss(o(2, 3), o(2)),
    lambda t, o: F.binary_cross_entropy(o(2), t([0, 1])),
    lambda t, o: F.smooth_l1_loss(o(2), o(2), beta=-1.0),
    lambda t, o: F.ctc_loss(o(4, 1, 3), t([[1]]), [5], [1]),
    lambda t, o: F.ctc_loss(o(4, 1, 3), t([[1]]), t([4]), t([1]), blank=3),
    lambda t, o: F.conv1d(o(1, 1, 4), o(1, 1, 2), stride=0),
    lambda t, o: F.conv1d(o(1, 1, 4), o(1, 1, 2), padding=-1),
    lambda t, o: F.conv1d(o(1, 1, 4), o(1, 1, 2), dilation=0),
    lambda t, o: F.conv_transpose1d(o(1, 1, 4), o(1, 1, 2), output_padding=2),
    lambda t, o: F.conv_transpose1d(o(1, 1, 4), o(1, 1, 2), output_padding=-1),
    lambda t, o: F.max_pool2d(o(4, 4), 2),
    lambda t, o: torch.searchsorted(o(2), o(2), side="up"),
    lambda t, o: torch.bucketize(o(2), o(2, 2)),
    lambda t, o: torch.bincount(o(2)),
    lambda t, o: torch.bincount(t([0, 1]), minlength=-1),
    lambda t, o: torch.cat([o(2), o()]),
    lambda t, o: torch.complex(o(2), o(2).double()),
    lambda t, o: torch.polar(o(2), o(2).double()),
    lambda t, o: o(3, 4).index_add(0, t([0]), o(4)),
    lambda t, o: o(2).index_add(0, t([0]), t([1])),
    lambda t, o: o(2).index_copy(0, t([0]), o(2)),
    lambda t, o: o(2).index_copy(0, t([0]), t([1])),
    lambda t, o: o(2).index_put((t([0]),), t([1])),
    lambda t, o: o(2, 2)[t([0, 1]), t([0, 1, 0])],
    lambda t, o: o(2).masked_scatter(t([1, 0]), o(2)),
    lambda t, o: o(2).masked_scatter(o(2) > 0, t([1, 2])),
    lambda t, o: torch.as_strided_scatter(o(2), o(2, 2), (2, 2), (3, 1)),
    lambda t, o: torch.histogramdd(o(3, 2), [2, 2, 2]),
    lambda t, o: o(2, 0).amax(1),
    lambda t, o: t([True]).abs(),
    lambda t, o: t([True]) % t([True]),
]


@pytest.mark.parametrize("number", range(len(STATEMENTS)))
def test_statements(number):
    def call(anchor):
        device = anchor.device
        return STATEMENTS[number](lambda *a, **k: torch.tensor(*a, **k).to(device), lambda *s: torch.ones(s).to(device))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not isinstance(_raised(call, ((torch.ones(1),), {}), "cpu"), (NameError, type(None)))
        wrong, _ = _disagreements("statement", [(call, ((torch.ones(1),), {}))])
    assert not wrong


# Dtypes of the databases that have no CPU kernel. "name dtype" -> why xla computes it, or raises another class.
_FACTORY = "an op that makes a tensor is not asked which dtypes the CPU makes"
EXPECTED_DTYPES = {
    "arange bool": _FACTORY,
    "arange complex64": _FACTORY,
    "triu_indices bool": _FACTORY,
    "triu_indices complex64": _FACTORY,
    "tril_indices bool": _FACTORY,
    "tril_indices complex64": _FACTORY,
    "randint_like bool": _FACTORY,
    "randint_like complex64": _FACTORY,
    "normal complex64": "the standard deviation may be complex",
    "scatter_reduce_mean bool": "the CPU reduces booleans with all of the other reductions",
}


@pytest.mark.skipif(NEWER, reason="which dtypes the CPU refuses, and how, is another table in each release of torch")
# All operators would take two minutes; `python -m pytest --every-dtype` asks for them.
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64], ids=str)
def test_dtypes(dtype, request):
    """The first sample of operators in a dtype that they do not support."""
    wrong, fixed = {}, []
    for op in op_db if request.config.getoption("--every-dtype") else op_db[::4]:
        if dtype in op.dtypes or op.name.startswith("sparse"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                sample = next(iter(op.sample_inputs("cpu", dtype)))
            except Exception:  # there are no samples of it
                continue
            key = f"{op.formatted_name} {str(dtype).removeprefix('torch.')}"
            found, _ = _disagreements(key, [(op, ((sample.input, *sample.args), sample.kwargs))])
        if found and key not in EXPECTED_DTYPES:
            wrong |= found
        elif not found and key in EXPECTED_DTYPES:
            fixed.append(key)
    assert not wrong
    assert not fixed, "no longer expected to fail"


@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name.replace("nn.", ""))
def test_modules(info):
    def call(constructor):
        def run(*args, **kwargs):
            tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            module = info.module_cls(*constructor.args, **constructor.kwargs)
            return module.to(tensors[0].device if tensors else "cpu")(*args, **kwargs)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": False}
        inputs = [error.module_error_input for error in info.module_error_inputs_func(info, **options)]
        calls = []
        for x in inputs:
            forward = x.forward_input
            calls.append((call(x.constructor_input), (forward.args, forward.kwargs) if forward else ((), {})))
        wrong, fixed = _disagreements(info.name, calls)
    assert not wrong
    assert not fixed, "no longer expected to fail"
