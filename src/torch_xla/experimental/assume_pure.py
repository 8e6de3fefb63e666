"""Names of PyTorch/XLA's `torch_xla.experimental.assume_pure`: functions that are traced once, and then replayed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src import surface


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Callable[..., Any]:
    """`fn` such that its Python runs once for each set of shapes of its arguments; later calls cost one op.

    fn: takes and gives xla tensors, nested, has no effects beside its result and reads nothing that changes but its
    arguments and the tensors it captures. Differentiable. add_rng_seed_argument: the result takes the seed of its random
    numbers, an integer tensor, as its first argument; without it a function that draws random numbers is
    NotImplementedError.
    """

    @functools.wraps(fn)
    def traced_once(*args: Any, **kwargs: Any) -> Any:
        from torch_xla._src.loops import pure

        seed = None
        if add_rng_seed_argument:
            seed, *rest = args
            args = tuple(rest)
            seed = torch.as_tensor(seed, device="xla")
        return pure(adapter, args, kwargs, seed)

    adapter = _Adapter(fn)
    return traced_once


class _Adapter:
    """A function as one of its positional and keyword arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.__wrapped__ = function, function

    def __call__(self, args: Any, kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class PureModule(torch.nn.Module):
    """A module whose forward pass is traced once. Its parameters are those of the module it wraps."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module
        self._traced = assume_pure(_Forward())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives. Buffers that it writes to stay as they are."""
        module = self._module
        parameters = dict(module.named_parameters()) | dict(module.named_buffers())
        return self._traced(_Constant(module), module.training, parameters, args, kwargs)


class _Constant:
    """A constant of a trace, told apart by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and other.value is self.value


class _Forward:
    """The forward pass of a module as a function of its parameters."""

    def __call__(self, module: _Constant, training: bool, parameters: Any, args: Any, kwargs: Any) -> Any:
        return torch.func.functional_call(module.value, parameters, args, kwargs)


def assume_pure_torch(func: Callable[..., Any], use_cache: bool = False) -> Callable[..., Any]:
    """The same as `assume_pure`."""
    return assume_pure(func)


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function as a function of xla tensors, with gradients. It is traced once for each set of shapes."""

    @functools.wraps(fn)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        from torch_xla._src.jax_function import call

        return call(fn, args, kwargs)

    return on_tensors


__getattr__ = surface.missing(__name__)
