"""Importing is free, and device xla is there without an import. Each case in a fresh interpreter."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

import torch_xla
from torch_xla._src import versions


def run(code, **environment):
    """Standard output of a fresh interpreter; its standard error must stay empty."""
    variables = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"} | environment
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=variables, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.strip()


@pytest.mark.parametrize("first", ["torch", "torch_xla", "torch_xla.core.xla_model", "torch_xla.runtime"])
def test_import_loads_neither_jax_nor_a_client(first):
    assert (
        run(f"import {first}, torch_xla, sys; print('jax' in sys.modules, 'torch_xla._src.ops' in sys.modules)")
        == "False False"
    )


def test_device_without_an_import():
    assert run("import torch; x = torch.ones(3, device='xla'); print((x + 1).sum().item(), x.device)") == "6.0 xla:0"


def test_device_with_autoload_off_and_an_import():
    code = "import torch, torch_xla; print(torch.ones(3, device=torch_xla.device()).sum().item())"
    assert run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "3.0"


def test_cpu_backward_before_the_first_xla_op():
    """The engine counts devices once, at the first backward: the guard stands before that."""
    code = """
import torch
torch.ones(3, requires_grad=True).sum().backward()
w = torch.ones(3, device="xla", requires_grad=True)
(w * 2).sum().backward()
print(w.grad.tolist())
"""
    assert run(code) == "[2.0, 2.0, 2.0]"


def test_mark_step_without_any_tensor_starts_nothing():
    assert (
        run(
            "import torch_xla, sys, warnings; torch_xla.sync(); warnings.simplefilter('ignore'); torch_xla.xm.mark_step();"
            "print('jax' in sys.modules)"
        )
        == "False"
    )


@pytest.mark.parametrize("name", ["CPU", "cpu", "CPU_2"])
def test_pjrt_device_chooses(name):
    code = "import torch, torch_xla.runtime as xr; torch.ones(2, device='xla').sum().item(); print(xr.device_type())"
    assert run(code, PJRT_DEVICE=name) == "CPU"


def test_an_unknown_device_type_is_an_error_that_names_the_choices():
    code = """
import torch
try:
    torch.ones(2, device="xla").sum().item()
except RuntimeError as error:
    print(error)
"""
    message = run(code, PJRT_DEVICE="BANANA")
    assert "PJRT_DEVICE=BANANA" in message
    assert "CPU, CUDA, TPU" in message


def test_a_device_that_is_not_there_is_an_error_and_not_a_crash():
    code = """
import torch
for _ in range(2):
    try:
        torch.ones(2, device="xla").sum().item()
    except RuntimeError as error:
        print("PJRT_DEVICE=CUDA" in str(error))
"""
    assert run(code, PJRT_DEVICE="CUDA") == "True\nTrue"


def test_no_device_named_means_the_best_there_is_and_is_silent():
    code = (
        "import os; os.environ.pop('PJRT_DEVICE', None); import torch; print(torch.ones(2, device='xla').sum().item())"
    )
    assert run(code) == "2.0"


def test_metadata():
    assert importlib.metadata.version("torch_xla") == torch_xla.__version__ == "3.0.0.dev0"
    requirements = [r for r in importlib.metadata.requires("torch_xla") if "extra ==" not in r]
    assert sorted(r.split(">")[0] for r in requirements) == ["jax", "numpy", "torch"]


@pytest.mark.parametrize(("package", "found"), [("torch", "2.8.1"), ("jax", "0.9.2"), ("torch", None)])
def test_what_does_not_fit_is_an_import_error_that_says_what_to_do(monkeypatch, package, found):
    def version(name):
        if name != package:
            return "99.0"
        if found is None:
            raise importlib.metadata.PackageNotFoundError
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ImportError, match=rf"needs {package} >= .*pip install"):
        versions.check()
