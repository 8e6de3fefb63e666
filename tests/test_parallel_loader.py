"""Batches that are uploaded in the background."""

from __future__ import annotations

import gc
import threading
import time
from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl

DEVICE = torch.device("xla:0")
Pair = namedtuple("Pair", "x y")


def loader_threads():
    return [t for t in threading.enumerate() if t.name == "torch_xla loader"]


def wait_for_threads(count):
    for _ in range(300):
        if len(loader_threads()) <= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{len(loader_threads())} threads of loaders still run")


@pytest.fixture(autouse=True)
def _no_threads_stay():
    yield
    gc.collect()
    wait_for_threads(0)


class Failing:
    """A loader that fails after some batches."""

    def __init__(self, good):
        self.good = good

    def __iter__(self):
        for i in range(self.good):
            yield torch.full((2,), float(i))
        raise KeyError("no more samples")

    def __len__(self):
        return self.good + 1


def test_the_values_are_those_of_the_loader_on_the_device_in_order_and_again_each_epoch():
    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    loader = pl.MpDeviceLoader(DataLoader(data, batch_size=3), DEVICE)
    assert len(loader) == 4
    for _ in range(2):
        batches = list(loader)
        assert [x.device for batch in batches for x in batch] == [DEVICE] * 8
        assert torch.cat([x for x, _ in batches]).tolist() == data.tensors[0].tolist()
        assert torch.cat([y for _, y in batches]).tolist() == list(range(10))


@pytest.mark.parametrize(("every", "syncs"), [(1, 5), (2, 3), (3, 2), (7, 1)])
def test_it_syncs_between_batches_and_once_at_the_end(every, syncs):
    met.clear_all()
    seen = []
    for _ in pl.MpDeviceLoader([torch.ones(2)] * 5, DEVICE, batches_per_execution=every):
        seen.append(met.counter_value("MarkStep") or 0)
    assert seen == [i // every for i in range(5)]
    assert met.counter_value("MarkStep") == syncs


@pytest.mark.parametrize("good", [0, 1, 5, 40])
def test_an_exception_of_the_users_loader_is_raised_where_the_batches_are_taken(good):
    taken = []

    def take():
        for batch in pl.MpDeviceLoader(Failing(good), DEVICE):
            taken.append(batch[0].item())

    with pytest.raises(KeyError, match="no more samples") as caught:
        take()
    assert taken == [float(i) for i in range(good)]
    assert "Failing" in str(caught.traceback[-1].frame.f_locals["self"].__class__)


def test_an_exception_of_an_upload_is_raised_too():
    batches = [torch.ones(2), _Unmovable(), torch.ones(2)]
    with pytest.raises(ZeroDivisionError):
        list(pl.MpDeviceLoader(batches, DEVICE))


class _Unmovable(torch_xla.xu.DataWrapper):
    def get_tensors(self):
        raise ZeroDivisionError("cannot be moved")


def test_nested_batches():
    batch = {"a": torch.ones(2), "b": [torch.zeros(1), Pair(torch.ones(1), "text")], "n": 3}
    [moved] = list(pl.MpDeviceLoader([batch], DEVICE))
    assert moved["a"].device == moved["b"][0].device == moved["b"][1].x.device == DEVICE
    assert (moved["n"], moved["b"][1].y) == (3, "text")
    assert batch["a"].device.type == "cpu"  # the user's own batch is as it was


def test_an_epoch_may_be_left_and_another_started():
    loader = pl.MpDeviceLoader([torch.full((1,), float(i)) for i in range(100)], DEVICE, device_prefetch_size=2)
    for batch in loader:
        assert batch.item() == 0
        break
    assert [batch.item() for batch in loader] == list(range(100))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    wait_for_threads(0)


def test_a_loader_that_is_dropped_ends_its_threads():
    for _ in pl.MpDeviceLoader([torch.ones(1)] * 100, DEVICE, loader_prefetch_size=1, device_prefetch_size=1):
        break
    gc.collect()
    wait_for_threads(0)


def test_it_does_not_run_further_ahead_than_asked():
    made = []

    def batches():
        for i in range(50):
            made.append(i)
            yield torch.ones(1)

    loader = pl.ParallelLoader(batches(), [DEVICE], loader_prefetch_size=2, device_prefetch_size=3)
    for _ in range(100):
        time.sleep(0.005)
    assert len(made) <= 2 + 3 + 3  # in the queues, and one in the hands of each thread and of the generator
    loader.close()


def test_several_devices_take_turns_and_an_incomplete_round_is_dropped():
    devices = [torch.device("xla:0"), torch.device("cpu")]
    loader = pl.ParallelLoader([torch.full((1,), float(i)) for i in range(5)], devices)
    got = {device: [batch.item() for batch in loader.per_device_loader(device)] for device in devices}
    assert got == {devices[0]: [0, 2], devices[1]: [1, 3]}
    assert loader.per_device_samples() == 2
    loader.close()


def test_several_threads_upload_in_order():
    loader = pl.MpDeviceLoader(
        [torch.full((1,), float(i)) for i in range(60)], DEVICE, host_to_device_transfer_threads=3
    )
    assert [batch.item() for batch in loader] == list(range(60))


def test_the_attributes_that_libraries_use():
    source = [torch.ones(1)]
    loader = pl.MpDeviceLoader(source, DEVICE, device_prefetch_size=4)
    assert (loader._loader, loader._device, loader._parallel_loader_kwargs) == (
        source,
        DEVICE,
        {"device_prefetch_size": 4},
    )

    class Derived(pl.MpDeviceLoader):  # as accelerate does
        def __init__(self, dataloader, device):
            super().__init__(dataloader, device)
            self._rng_types = None

        def __iter__(self):
            yield from super().__iter__()

    assert len(list(Derived(source, DEVICE))) == 1


def test_training_from_a_loader_replays():
    model = torch.nn.Linear(2, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for x in pl.MpDeviceLoader([torch.randn(4, 2) for _ in range(6)], DEVICE):
        met.clear_all()
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        steps.append((met.counter_value("RowsRebuilt"), met.counter_value("UncachedCompile")))
    assert steps[2:] == [(None, None)] * 4
