"""What this package does, as named spans in traces of JAX's profiler.

While a trace is recorded (or a server is there that may record one), the functions that record, compile, launch and copy
are wrapped in annotations; else they are as they were. *recording* is from the first op after a cut to the next cut.
"""

from __future__ import annotations

import threading
from typing import Any

from torch_xla._src.wrapping import Wrapped

RECORDING, COMPILE, LAUNCH = "torch_xla recording", "torch_xla compile", "torch_xla launch"
UPLOAD, DOWNLOAD, WAIT = "torch_xla upload", "torch_xla download", "torch_xla wait"


class Spans:
    """Annotates traces from `install` to `remove`."""

    def __init__(self) -> None:
        self._wrapped = Wrapped()
        self._installed = False
        self._open: Any = None  # the span of the recording that is pending
        self._thread = 0

    def install(self) -> None:
        """Begins, unless it has begun."""
        if self._installed:
            return
        self._installed = True
        from torch_xla._src.compile import launch, padded_program
        from torch_xla._src.graph.recorder import RECORDER
        from torch_xla._src.runtime import transfer

        for home, name, span in (
            (launch.Launch, "build", COMPILE), (padded_program, "_build", COMPILE), (launch.Launch, "run", LAUNCH),
            (transfer, "upload", UPLOAD), (transfer, "download", DOWNLOAD), (launch, "wait", WAIT),
        ):  # fmt: skip
            self._named(home, name, span)
        self._before(RECORDER, "record", self._begin)
        self._before(RECORDER, "record_values", self._begin)
        self._before(RECORDER, "cut", self._end)

    def remove(self) -> None:
        """Ends, if it has begun."""
        self._end()
        self._wrapped.undo()
        self._installed = False

    def _named(self, home: Any, name: str, span: str) -> None:
        import jax

        def make(original: Any) -> Any:
            def named(*args: Any, **kwargs: Any) -> Any:
                with jax.profiler.TraceAnnotation(span):
                    return original(*args, **kwargs)

            return named

        self._wrapped.replace(home, name, make)

    def _before(self, home: Any, name: str, first: Any) -> None:
        def make(original: Any) -> Any:
            def noticed(*args: Any, **kwargs: Any) -> Any:
                first()
                return original(*args, **kwargs)

            return noticed

        self._wrapped.replace(home, name, make)

    def _begin(self) -> None:
        if self._open is None:
            import jax

            self._open, self._thread = jax.profiler.TraceAnnotation(RECORDING), threading.get_ident()
            self._open.__enter__()

    def _end(self) -> None:
        if self._open is not None and threading.get_ident() == self._thread:  # spans belong to a thread
            self._open.__exit__(None, None, None)
            self._open = None


SPANS = Spans()
