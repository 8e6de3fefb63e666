"""Every module of torch.nn, through PyTorch's own database of modules, on device xla against the CPU."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_modules import module_db

SAMPLES = 2  # inputs per module
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}

# Module -> why it cannot agree with the CPU.
EXPECTED_FAILURES: dict[str, str] = {}


def _copy(x, device):
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().to(device, copy=True).requires_grad_(x.requires_grad)


def _tensors(x):
    return [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def _run(module, args, kwargs):
    """Outputs and gradients of everything that has one."""
    outputs = _tensors(module(*args, **kwargs))
    roots = [o for o in outputs if o.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(o) for o in roots])
    inputs = [t for t in _tensors((args, kwargs)) if t.is_leaf]
    return outputs, [t.grad for t in inputs], [p.grad for p in module.parameters()], list(module.buffers())


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name.replace("nn.", ""))
def test_module_agrees_with_the_cpu(info, request):
    name = info.name
    if name in EXPECTED_FAILURES:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED_FAILURES[name], strict=True))
    dtype = torch.float64 if "Fractional" in name else torch.float32  # its samples hold float64 numbers
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of torch.nn itself
        for sample in itertools.islice(inputs, SAMPLES):
            torch.manual_seed(0)
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            _compare(module, sample.forward_input)


def _compare(module, forward):
    stochastic = any(isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p for m in module.modules())
    stochastic |= isinstance(module, (torch.nn.RReLU, torch.nn.FractionalMaxPool2d, torch.nn.FractionalMaxPool3d))
    if getattr(module, "has_uninitialized_params", bool)():  # lazy modules draw their weights where they first run
        module(*forward.args, **forward.kwargs)
    twin = copy.deepcopy(module).to("xla")
    # Some samples are results of an op: gradients are compared at leaves, so make them leaves.
    on_cpu = pytree.tree_map(lambda t: _copy(t, "cpu"), (forward.args, forward.kwargs))
    args, kwargs = pytree.tree_map(lambda t: _copy(t, "xla"), (forward.args, forward.kwargs))
    expected = _run(module, *on_cpu)
    actual = _run(twin, args, kwargs)
    for want, got in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        if want is None:
            assert got is None
            continue
        assert got.is_xla
        if stochastic:
            assert got.shape == want.shape
        else:
            torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True, **TOLERANCE)
