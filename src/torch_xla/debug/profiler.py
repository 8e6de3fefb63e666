"""Names of PyTorch/XLA's `torch_xla.debug.profiler`, usually imported as `xp`: traces for TensorBoard and Perfetto.

JAX's profiler does the work; JAX is loaded when one of these is used.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch_xla._src import api, surface
from torch_xla._src.compile import causes
from torch_xla._src.spans import SPANS

_marked_step = False
_tracing = False
_served_ports: set[int] = set()


def start_server(port: int, only_on_master: bool = True) -> object:
    """Starts a server that TensorBoard asks for traces. The server lives as long as the object that is returned."""
    import jax

    server = jax.profiler.start_server(port)
    _served_ports.add(port)
    SPANS.install()  # a trace may be asked for at any time
    return server


def start_trace(log_dir: str | os.PathLike[str], *, perfetto: bool = False) -> None:
    """Starts to record a trace, to be written below `log_dir` by `stop_trace`. RuntimeError if one is being recorded.

    TensorBoard and XProf read the folder. perfetto: also writes `perfetto_trace.json.gz` for https://ui.perfetto.dev.
    """
    global _tracing
    import jax

    if _tracing:
        raise RuntimeError("Profile has already been started. Only one profile may be run at a time.")
    jax.profiler.start_trace(os.fspath(log_dir), create_perfetto_trace=perfetto)
    SPANS.install()
    _tracing = True


def stop_trace() -> None:
    """Writes the trace, after what has been launched is done. RuntimeError if none is being recorded."""
    global _tracing
    import jax

    if not _tracing:
        raise RuntimeError("No profile started")
    api.wait_device_ops()
    _tracing = False
    if not _served_ports:
        SPANS.remove()
    jax.profiler.stop_trace()


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Records `duration_ms` of what this process does, for `logdir`, after `delay_ms`.

    service_addr: "localhost:PORT" of a server started here by `start_server`; ValueError for another. Tries again, up to
    `num_tracing_attempts` times, `interval_s` seconds apart, while another trace is being recorded.
    """
    host, _, port = service_addr.rpartition(":")
    if (
        host not in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")
        or not port.isdigit()
        or int(port) not in _served_ports
    ):
        raise ValueError(
            f"{service_addr} is no profiler server of this process: xp.start_server(PORT) starts one, 'localhost:PORT' is its "
            "address. Traces of other processes are captured with TensorBoard or xprof"
        )
    time.sleep(delay_ms / 1e3)
    for attempt in range(num_tracing_attempts):
        try:
            start_trace(logdir)
            break
        except RuntimeError:
            if attempt == num_tracing_attempts - 1:
                raise
            time.sleep(interval_s)
    try:
        time.sleep(duration_ms / 1e3)
    finally:
        stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """`trace` on a thread of its own: returns at once."""
    threading.Thread(target=trace, args=args, kwargs=kwargs, name="torch_xla trace").start()


class Trace:
    """A context whose block is named in traces. kwargs: shown as its arguments.

    A decorator too. Recording happens on the host, so a block that must show up on the device has to hold a sync.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.name, self.kwargs = name, kwargs

    def _annotation(self) -> Any:
        import jax

        return jax.profiler.TraceAnnotation(self.name, **self.kwargs)

    def __enter__(self) -> Any:
        self._open = self._annotation()
        self._open.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._open.__exit__(kind, value, tb)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self.name, **self.kwargs):
                return function(*args, **kwargs)

        return traced


class StepTrace(Trace):
    """A Trace of one training step, with `step_num=`; syncs at the end unless the block has done so itself."""

    def _annotation(self) -> Any:
        import jax

        return jax.profiler.StepTraceAnnotation(self.name, **self.kwargs)

    def __enter__(self) -> Any:
        set_tracer_marked_step(False)
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None and not get_tracer_marked_step():
                set_tracer_marked_step(True)
                with causes.because(causes.STEP_TRACE):
                    api.sync()
        finally:
            super().__exit__(kind, value, tb)


def trace_me(scope: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that names the calls of a function in traces."""
    return Trace(scope)


def set_tracer_marked_step(value: bool) -> None:
    """Says whether the current StepTrace has been synced."""
    global _marked_step
    _marked_step = value


def get_tracer_marked_step() -> bool:
    """Whether the current StepTrace has been synced."""
    return _marked_step


__getattr__ = surface.missing(__name__)
