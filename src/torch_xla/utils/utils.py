"""Names of PyTorch/XLA's `torch_xla.utils.utils`, usually imported as `xu`: small things that training scripts use."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from torch_xla._src import environment, surface
from torch_xla._src.nested import DataWrapper, for_each_instance, for_each_instance_rewrite

# ---- data -----------------------------------------------------------------------------------------------------------


class SampleGenerator:
    """A loader that gives the same `data` `sample_count` times, for benchmarks and tests. Can be iterated over again."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data, self._sample_count, self._given = data, sample_count, 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The data, or StopIteration after the last time."""
        if self._given >= self._sample_count:
            raise StopIteration
        self._given += 1
        return self._data


class FnDataGenerator:
    """A loader of `count` pairs (x, func(x)), with x made by `gen_tensor(batch_size, *dims)`."""

    def __init__(
        self,
        func: Callable[..., Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func, self._batch_size, self._gen_tensor = func, batch_size, gen_tensor
        self._dims, self._count, self._given = tuple(dims or ()), count, 0

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(self._func, self._batch_size, self._gen_tensor, self._dims, self._count)

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next pair, or StopIteration after the last."""
        if self._given >= self._count:
            raise StopIteration
        self._given += 1
        data = self._gen_tensor(self._batch_size, *self._dims)
        return data, self._func(data)


# ---- environment, files, network ------------------------------------------------------------------------------------


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """An environment variable as `type`, or `defval` if it is not set. For bool, "1", "true" and the like are True."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return environment.is_on(text) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether an environment variable says yes: "true", "yes", "on" or a number other than 0."""
    return environment.is_on(os.environ.get(name, default))


class TmpFolder:
    """A directory that exists while this object does: `name` is its path. A context too."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()

    def clean(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.name, ignore_errors=True)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.clean()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # Python may be ending
            self.clean()


class Cleaner:
    """Calls `func()` when it is garbage."""

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    def __del__(self) -> None:
        self.func()


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """`n` ports of this machine that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


# ---- functions ------------------------------------------------------------------------------------------------------


class LazyProperty:
    """`value` is what `gen_fn()` gives, which is called when that is first asked for."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._gen_fn = gen_fn

    @property
    def value(self) -> Any:
        """The value."""
        if "_value" not in self.__dict__:
            self._value = self._gen_fn()
        return self._value


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """`list(map(fn, *args))` on `num_workers` threads."""
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        return list(pool.map(fn, *args))


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to standard error."""
    print(*args, file=sys.stderr, **kwargs)


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """`eprint` if `debug` (by default, if the variable DEBUG says so), else `null_print`."""
    return eprint if (environment.flag("DEBUG") if debug is None else debug) else null_print


class TimedScope:
    """A context that tells, after `msg`, how many milliseconds its block took."""

    def __init__(self, msg: str = "", printfn: Callable[..., Any] | None = eprint) -> None:
        self._message, self._print = msg, printfn

    def __enter__(self) -> TimedScope:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None and self._print is not None:
            self._print(f"{self._message}{(time.perf_counter() - self._start) * 1e3:.3f}ms")


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., Any] = eprint) -> Any:
    """What `fn()` returns; tells, after `msg`, how many milliseconds it took."""
    with TimedScope(msg, printfn):
        return fn()


# ---- lists ----------------------------------------------------------------------------------------------------------


def as_list(t: Any) -> Any:
    """`t` if it is a list or tuple, else a list of it."""
    return t if isinstance(t, (list, tuple)) else [t]


def shape(inputs: Any) -> list[int]:
    """The sizes of nested lists, by their first elements."""
    sizes = []
    while isinstance(inputs, (list, tuple)):
        sizes.append(len(inputs))
        if not inputs:
            break
        inputs = inputs[0]
    return sizes


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """The elements of tuples inside tuples as one tuple."""

    def elements(value: Any) -> Iterator[Any]:
        for item in value:
            if isinstance(item, tuple):
                yield from elements(item)
            else:
                yield item

    return tuple(elements(inputs))


def list_copy_append(ilist: Sequence[Any], item: Any) -> list[Any]:
    """A new list with one more item."""
    return [*ilist, item]


__all__ = ["DataWrapper", "for_each_instance", "for_each_instance_rewrite"]

__getattr__ = surface.missing(__name__)
