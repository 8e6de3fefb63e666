"""The top-level functions of torch_xla: devices, cutting the recording, seeds."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torch_xla._src import environment, step_closures, step_end
from torch_xla._src.compile import causes
from torch_xla._src.runtime import client, metrics, rng

if TYPE_CHECKING:
    from torch_xla._src.step.block import Step

logger = logging.getLogger("torch_xla")


def recorder() -> Any | None:
    """The recorder, or None while nothing has been recorded in this process."""
    module = sys.modules.get("torch_xla._src.graph.recorder")
    return None if module is None else module.RECORDER


def device(index: int | None = None) -> torch.device:
    """The xla device: the default one, or number `index`. IndexError if there is none of that number."""
    count = device_count()
    if index is not None and not 0 <= index < count:
        raise IndexError(f"Device index {index} out of range in {[str(d) for d in devices()]}")
    return torch.device("xla", index or 0)


def devices() -> list[torch.device]:
    """The xla devices that this process computes on."""
    return [torch.device("xla", 0)]


def device_count() -> int:
    """The number of devices this process computes on."""
    return len(devices())


def real_devices() -> list[str]:
    """Names of the hardware devices of this process, as `CPU:0`. Starts the client."""
    return [f"{client.device_type()}:{d.id}" for d in client.devices()]


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Cuts the pending recording of all live tensors and launches it.

    wait: also block until the device has finished. Near free when nothing is pending.
    """
    metrics.count("MarkStep")
    pending = recorder()
    if pending is not None:
        with causes.because(causes.SYNC):
            pending.cut()
        if wait or environment.flag("XLA_SYNC_WAIT"):
            wait_device_ops()
    step_closures.run_step_closures()
    step_end.finish()


def wait_device_ops(devices: Any = ()) -> None:
    """Blocks until the device has finished all that was launched."""
    module = sys.modules.get("torch_xla._src.compile.launch")
    if module is not None:
        module.wait()


def manual_seed(seed: int, device: Any = None) -> None:
    """Seeds the random numbers of device xla; `torch.manual_seed` does so too."""
    rng.seed(seed)


def launch(
    fn: Callable[..., Any], args: Any = (), start_method: str = "spawn", debug_single_process: bool = False
) -> None:
    """Calls `fn(index, *args)` for each device. With one device, in this process and with index 0.

    NotImplementedError if there are more devices, which takes a process each; debug_single_process: use the first only.
    """
    from torch_xla._src import launching

    launching.launch(fn, tuple(args), debug_single_process)


def step() -> Step:
    """A context whose block is one step: the recording is cut before and after it."""
    from torch_xla._src.step.block import Step

    return Step(None, False, None)


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, Any] | None = None,
) -> Any:
    """Makes the calls of `f` one step each: pending work is launched first, the recorded call at the end.

    Without `f`: a context manager, or a decorator when it is called with a function. full_graph: RuntimeError if
    something inside forces the recording to run early (`.item()`, print); and once calls have proven to be alike, the
    compiled program is run without the Python of `f`: Note [Frozen steps]. max_different_graphs: RuntimeError when the
    calls have recorded more programs than that.
    """
    from torch_xla._src.step.block import Step

    wrapper = Step(name, full_graph, max_different_graphs)
    return wrapper if f is None else wrapper(f)
