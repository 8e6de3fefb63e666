"""Names of PyTorch/XLA's `torch_xla.distributed.parallel_loader`: batches are uploaded while the step before runs.

One thread iterates over the user's loader, others upload, queues between them bound how far they run ahead. What any of
them raises is raised where the batches are taken.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xla._src import api, surface
from torch_xla._src.compile import causes
from torch_xla.core import xla_model as xm

_POLL = 0.1  # seconds after which a thread that waits for room looks whether the loader has been closed


class _End:
    """Comes after the last batch. error: what the user's loader or an upload raised, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class PerDeviceQueue:
    """The batches on their way to one device: `loader_queue` of the host's, `queue` of those on the device."""

    def __init__(self, device: torch.device, loader_prefetch_size: int, device_prefetch_size: int) -> None:
        self.device = device
        self.loader_queue: queue.Queue[Any] = queue.Queue(maxsize=loader_prefetch_size)
        self.queue: queue.Queue[Any] = queue.Queue(maxsize=device_prefetch_size)
        self.lock = threading.Lock()  # taking a batch of the host and putting it on the device keep one order


class PerDeviceLoader:
    """The batches of one device, in order. Syncs before each but the first, and after the last."""

    def __init__(self, loader: ParallelLoader, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._batches_per_execution = loader.batches_per_execution
        self._count = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def next(self) -> Any:
        """The next batch; StopIteration after the last; what the user's loader raised, if it has."""
        item = self._loader.next_item(self._device)
        if item is None or (self._count and self._count % self._batches_per_execution == 0):
            _sync()
        if item is None:
            raise StopIteration
        self._count += 1
        return item[0]


def _sync() -> None:
    with causes.because(causes.LOADER):
        api.sync()


class _Pipeline:
    """What the threads work on. They hold no ParallelLoader, so one that nobody holds is garbage, and closes this."""

    def __init__(self, cpu_loader: Any, queues: dict[torch.device, PerDeviceQueue]) -> None:
        self.cpu_loader, self.queues = cpu_loader, queues
        self.done = threading.Event()

    def start(self, threads_per_device: int) -> None:
        """Starts the thread that reads and those that upload."""
        jobs: list[Callable[[], None]] = [self._read]
        for found in self.queues.values():
            jobs += [functools.partial(self._upload, found)] * threads_per_device
        for job in jobs:
            threading.Thread(target=job, daemon=True, name="torch_xla loader").start()

    def close(self) -> None:
        """Ends the threads, and drops what waits."""
        self.done.set()
        for found in self.queues.values():
            for waiting in (found.queue, found.loader_queue):
                _drain(waiting)
            self._put(found.queue, _End(None), force=True)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            batches = iter(self.cpu_loader)
            while not self.done.is_set():
                group = list(itertools.islice(batches, len(self.queues)))
                if len(group) < len(self.queues):
                    break
                for found, batch in zip(self.queues.values(), group, strict=True):
                    self._put(found.loader_queue, batch)
        except BaseException as raised:
            error = raised
        for found in self.queues.values():
            self._put(found.loader_queue, _End(error))

    def _upload(self, found: PerDeviceQueue) -> None:
        while not self.done.is_set():
            with found.lock:
                try:
                    item = found.loader_queue.get(timeout=_POLL)
                except queue.Empty:
                    continue
                if not isinstance(item, _End):
                    try:
                        item = xm.send_cpu_data_to_device([item], found.device)
                    except BaseException as raised:
                        item = _End(raised)
                if isinstance(item, _End):
                    self._put(found.loader_queue, item)  # for the other threads
                    self._put(found.queue, item)
                    return
                self._put(found.queue, item)

    def _put(self, where: queue.Queue[Any], item: Any, force: bool = False) -> None:
        while force or not self.done.is_set():
            try:
                where.put(item, timeout=_POLL)
                return
            except queue.Full:
                if force:
                    _drain(where)


class ParallelLoader:
    """Uploads the batches of a loader in the background, the i-th to `devices[i % len(devices)]`.

    An incomplete last round over several devices is dropped, so that all take as many steps.
    batchdim: the dim of a batch that counts its samples. batches_per_execution: batches between two syncs.
    loader_prefetch_size, device_prefetch_size: how many batches wait on the host and on the device, for each device.
    host_to_device_transfer_threads: threads that upload, for each device.
    """

    def __init__(
        self,
        cpu_loader: Any,
        devices: Sequence[Any],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        if input_sharding is not None:
            raise NotImplementedError(
                "input_sharding needs sharding over several devices, which torch_xla does not have yet"
            )
        self._cpu_loader, self._batchdim = cpu_loader, batchdim
        self._batches_per_execution = batches_per_execution
        self._queues = {
            device: PerDeviceQueue(device, loader_prefetch_size, device_prefetch_size)
            for device in map(torch.device, devices)
        }
        self._pipeline = _Pipeline(cpu_loader, self._queues)
        self._pipeline.start(host_to_device_transfer_threads)
        weakref.finalize(self, self._pipeline.close)

    @property
    def batches_per_execution(self) -> int:
        """Batches between two syncs."""
        return self._batches_per_execution

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        """The batches of one of the devices."""
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """How many batches each device gets."""
        return len(self._cpu_loader) // len(self._queues)

    def next_item(self, device: Any) -> Any:
        """The next batch of a device in a list, waiting for it; None after the last.

        Raises what the user's loader raised.
        """
        found = self._queues[torch.device(device)]
        item = found.queue.get()
        if not isinstance(item, _End):
            return item
        found.queue.put(item)  # whoever asks again is told again
        if item.error is not None:
            raise item.error
        return None

    def close(self) -> None:
        """Ends the threads; batches that have been uploaded are dropped. So does a loader that nobody holds any more."""
        self._pipeline.close()

    def send_cpu_data_to_device(self, batches: Any, device: Any) -> Any:
        """Uploads all tensors inside a batch."""
        return xm.send_cpu_data_to_device(batches, device)


def _drain(waiting: queue.Queue[Any]) -> None:
    while True:
        try:
            waiting.get_nowait()
        except queue.Empty:
            return


class MpDeviceLoader:
    """A loader whose batches are on `device`, uploaded in the background. kwargs: those of ParallelLoader."""

    def __init__(self, loader: Any, device: Any, **kwargs: Any) -> None:
        self._loader, self._device = loader, device
        self._parallel_loader_kwargs = kwargs
        self._parallel_loader: ParallelLoader | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._parallel_loader is not None:
            self._parallel_loader.close()  # an epoch that was left early
        self._parallel_loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return _Epoch(self._parallel_loader, self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def close(self) -> None:
        """Ends the threads of the current epoch."""
        if self._parallel_loader is not None:
            self._parallel_loader.close()
            self._parallel_loader = None


class _Epoch(PerDeviceLoader):
    """The iterator of one epoch, which ends its threads with it."""

    def __init__(self, loader: ParallelLoader, device: Any) -> None:
        super().__init__(loader, torch.device(device))

    def next(self) -> Any:
        try:
            return super().next()
        except BaseException:
            self._loader.close()
            raise


__getattr__ = surface.missing(__name__)
