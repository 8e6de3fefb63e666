"""The table of the public surface and the modules say the same: Note [Public surface]."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import warnings

import pytest

import torch_xla
from torch_xla._src import deprecation
from torch_xla._src.surface import MISSING
from torch_xla._src.surface.entry import Opaque, parse, parse_signature
from torch_xla._src.surface.table import ENTRIES, MODULES, find

STATES = {"works", "deprecated", "absent"} | {f"waits:{issue}" for issue in MISSING}
WORKING = [e for e in ENTRIES if e.state in ("works", "deprecated")]
WAITING = [e for e in ENTRIES if e.waits_for is not None]
ABSENT = [e for e in ENTRIES if e.state == "absent"]
EMPTY = ((), [], {}, None, b"")  # the same thing as a default: what is not given

# Modules that PyTorch/XLA has as attributes after `import torch_xla`.
ATTRIBUTES = """
runtime core.xla_model core.xla_builder debug.metrics debug.profiler distributed.spmd distributed.xla_backend
distributed.xla_multiprocessing experimental.eager experimental.scan stablehlo utils.utils tpu _internal.tpu _internal.pjrt
_XLAC xm xr xmp xu xenv
"""


def name_of(entry):
    return f"{entry.module.removeprefix('torch_xla')}.{entry.name}"


# Modules that are built in another line of work; their rows are compared as soon as they are there.


def get(entry):
    return getattr(importlib.import_module(entry.module), entry.name)


def same_default(ours, theirs):
    if isinstance(theirs, Opaque) or theirs is Ellipsis:
        return ours is not inspect.Parameter.empty
    return ours == theirs or (theirs in EMPTY and ours in EMPTY)


def differences(ours, theirs):
    """What callers of `theirs` would notice. Parameters of ours that are more, with defaults, are none."""
    mine, wanted = list(ours.parameters.values()), list(theirs.parameters.values())
    found = []
    for m, w in zip(mine, wanted, strict=False):
        if (m.name, m.kind) != (w.name, w.kind) or not same_default(m.default, w.default):
            found.append(f"{m} instead of {w}")
    found += [f"{w} is missing" for w in wanted[len(mine) :]]
    return found + [f"{m} is too much" for m in mine[len(wanted) :] if m.default is inspect.Parameter.empty]


def test_the_table_is_well_formed():
    assert {e.state for e in ENTRIES} <= STATES
    assert len({(e.module, e.name) for e in ENTRIES}) == len(ENTRIES)
    assert {e.mark for e in ENTRIES} == {"must", "should", "rare", "new"}


def test_every_public_name_has_a_row():
    names = [m.name for m in pkgutil.walk_packages(torch_xla.__path__, "torch_xla.") if "._src" not in m.name]
    without = []
    for name in ("torch_xla", *(n for n in names if not n.endswith("__main__"))):
        module = importlib.import_module(name)
        listed = [n for n in getattr(module, "__all__", ()) if find(name, n) is None]
        without += [f"{name}.{n}" for n in listed if not inspect.ismodule(getattr(module, n))]
    assert without == []


@pytest.mark.parametrize("entry", [e for e in ABSENT if e.mark == "must"], ids=name_of)
def test_nothing_that_must_be_there_is_absent(entry):
    raise AssertionError(f"{name_of(entry)} is absent")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_module_can_be_imported(module):
    importlib.import_module(module)


@pytest.mark.parametrize("entry", WORKING, ids=name_of)
def test_what_works_is_there_with_its_signature(entry):
    found = get(entry)
    if entry.arguments is None or entry.module == "torch_xla._XLAC":
        return
    assert inspect.isclass(found) == entry.is_class
    assert differences(inspect.signature(found), entry.signature) == []


@pytest.mark.parametrize("entry", WAITING, ids=name_of)
def test_what_waits_says_what_for(entry):
    found = get(entry)
    assert inspect.isclass(found) == entry.is_class
    assert inspect.signature(found) == entry.signature or entry.arguments is None
    with pytest.raises(NotImplementedError, match=f"{entry.name} needs {MISSING[entry.waits_for]}"):
        found()


@pytest.mark.parametrize("entry", ABSENT, ids=name_of)
def test_what_is_absent_says_so(entry):
    with pytest.raises(AttributeError, match=f"{entry.name} of PyTorch/XLA is not offered"):
        get(entry)


def test_an_unknown_name_is_an_ordinary_attribute_error():
    for module in (torch_xla, torch_xla.xm, torch_xla.runtime, torch_xla.distributed, torch_xla._XLAC):
        with pytest.raises(AttributeError, match="has no attribute 'nonesuch'"):
            _ = module.nonesuch


DEPRECATED_CALLS = {
    "torch_xla.core.xla_model.xla_device": ((), "xla:0"),
    "torch_xla.core.xla_model.mark_step": ((), "None"),
    "torch_xla.core.xla_model.xrt_world_size": ((), "1"),
    "torch_xla.core.xla_model.get_ordinal": ((), "0"),
    "torch_xla.core.xla_model.parse_xla_device": (("xla:0",), "('XLA', 0)"),
    "torch_xla.runtime.using_pjrt": ((), "True"),
    "torch_xla.runtime.xla_device": ((), "xla:0"),
    "torch_xla.runtime.requires_pjrt": ((len,), "<function len"),
    "torch_xla.experimental.pjrt.world_size": ((), "1"),
    "torch_xla.experimental.pjrt.global_ordinal": ((), "0"),
    "torch_xla.experimental.pjrt.local_ordinal": ((), "0"),
    "torch_xla.experimental.pjrt.device_type": ((), "CPU"),
    "torch_xla.experimental.pjrt.using_pjrt": ((), "True"),
    "torch_xla.experimental.pjrt.rendezvous": (("tag",), "[b'']"),
    "torch_xla.experimental.pjrt.xla_device": ((), "xla:0"),
    "torch_xla.experimental.compile": ((len,), "<function len"),
}


@pytest.mark.parametrize("name", DEPRECATED_CALLS)
def test_deprecated_names_work_and_warn_once_at_the_callers_line(name, monkeypatch):
    monkeypatch.setattr(deprecation, "_warned", set())
    module, _, attribute = name.rpartition(".")
    function = getattr(importlib.import_module(module), attribute)
    arguments, result = DEPRECATED_CALLS[name]
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated") as caught:
        assert str(function(*arguments)).startswith(result)
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(*arguments)


def test_attributes_after_import_and_what_loading_them_loads():
    code = f"""
import torch_xla, sys
for name in {ATTRIBUTES.split()}:
    found = torch_xla
    for part in name.split("."):
        found = getattr(found, part)
print("jax" in sys.modules, torch_xla.xmp is torch_xla.distributed.xla_multiprocessing)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_the_import_loads_no_table_and_no_optional_part():
    code = (
        "import torch_xla, sys; print(sorted(m for m in sys.modules if m.startswith('torch_xla') and 'jax' not in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("surface.table", "experimental", "distributed", "profiler", "_XLAC", "stablehlo"):
        assert name not in done.stdout


def test_classes_that_wait_can_be_named_in_isinstance():
    import torch

    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
    from torch_xla.distributed.spmd import XLAShardedTensor

    assert not isinstance(torch.ones(2), (XLAShardedTensor, XlaFullyShardedDataParallel))


def test_parsing():
    [entry] = parse("# m\nrare absent class C(a, b=(1, 2), *args, c, d=eprint, **kw) : because")
    assert (entry.module, entry.name, entry.mark, entry.is_class, entry.reason) == ("m", "C", "rare", True, ": because")
    assert str(entry.signature) == "(a, b=(1, 2), *args, c, d='eprint', **kw)"
    assert find("torch_xla", "sync").mark == "must"
    assert differences(parse_signature("(a, b=1)"), parse_signature("(a, c=1)")) == ["b=1 instead of c=1"]
    assert differences(parse_signature("(a)"), parse_signature("(a, c=1)")) == ["c=1 is missing"]
    assert differences(parse_signature("(a, b)"), parse_signature("(a)")) == ["b is too much"]
