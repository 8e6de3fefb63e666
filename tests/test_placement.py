"""Tensors in the host's memory: a no-op on CPU, and copies to host memory in what the TPU compiler makes of it."""

from __future__ import annotations

import logging

import pytest
import torch

import torch_xla
from tests.tpu import figures, needs_libtpu
from torch_xla._src import placement
from torch_xla.experimental.scan import scan
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host


def test_values_and_gradients_are_those_without(caplog, monkeypatch):
    monkeypatch.setattr(placement, "_told", False)
    x = torch.arange(6.0).view(2, 3)

    def run(there, back):
        leaf = x.to("xla").requires_grad_()
        held = there(leaf.sin())
        y = (back(held) * 3).square().sum()
        y.backward()
        return y.item(), leaf.grad.tolist()

    with caplog.at_level(logging.WARNING, "torch_xla"):
        assert run(place_to_host, place_to_device) == run(lambda t: t, lambda t: t)
        assert run(torch.ops.xla.place_to_host, torch.ops.xla.place_to_device) == run(lambda t: t, lambda t: t)
    assert caplog.text.count("one memory") == 1


def test_kept_over_a_cut_and_under_no_grad():
    with torch.no_grad():
        held = place_to_host(torch.ones(3, dtype=torch.bfloat16, device="xla") * 2)
        torch_xla.sync()
        assert place_to_device(held).tolist() == [2, 2, 2]
    assert held.dtype is torch.bfloat16
    assert place_to_host(torch.zeros((), dtype=torch.int64, device="xla")).item() == 0


def test_tensors_of_other_devices_are_refused():
    for wrong in (torch.ones(2), [1.0], None):
        with pytest.raises(TypeError, match="only tensors of device xla are placed"):
            place_to_host(wrong)


@needs_libtpu
def test_the_tpu_compiler_puts_them_into_the_hosts_memory():
    def measured(where):
        return figures("offload", where)

    _, host_bytes, named = measured("host")
    assert host_bytes >= 4096 * 4096 * 4
    assert named > 0
    assert measured("device")[1:] == [0, 0]


@needs_libtpu
def test_the_tpu_compiler_keeps_what_a_scan_offloads_in_the_hosts_memory():
    temporaries, host_bytes, named = figures("scan", "offload")
    assert host_bytes >= 8 * 2 * 4096 * 1024 * 4  # both products of eight layers
    assert named > 0
    on_device, *without = figures("scan", "dots")
    assert without == [0, 0]
    assert temporaries < on_device / 2


def test_a_scan_that_offloads_says_once_that_there_is_one_memory(caplog, monkeypatch):
    monkeypatch.setattr(placement, "_told", False)
    weights = torch.ones(2, 3, 3).to("xla").requires_grad_()
    with caplog.at_level(logging.WARNING, "torch_xla"):
        for remat in ("dots", "offload", "offload"):
            y, _ = scan(lambda x, w: ((x @ w).sin(), None), torch.ones(3, 3, device="xla"), weights, remat=remat)
            y.sum().backward()
            assert ("one memory" in caplog.text) == (remat == "offload")
        place_to_host(y.detach())
    assert caplog.text.count("one memory") == 1
