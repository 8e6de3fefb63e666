"""What is done with one sample of a database entry, on either device.

A call works in two steps, so that all uploads of a batch of calls come first and all their programs become one:
`prepare(device)` copies the sample; the function it returns does the work and gives an Outcome for each variant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tests.conformance.moving import OnHost, cotangent, is_dense, moved, tensors
from tests.conformance.outcome import Outcome, attempt

Work = Callable[[], dict[str, Outcome]]
Shared = dict[int, Any]
Shown = Callable[[Any, Any, Any], Any]  # (sample, its input on the device, results) -> what is compared


def plainly(sample: Any, value: Any, results: Any) -> Any:
    """The results as they are."""
    return results


def processed(sample: Any, value: Any, results: Any) -> Any:
    """What PyTorch's own tests compare, of results that are not unique."""
    return sample.output_process_fn_grad(results)


def pointed_to(sample: Any, value: Any, results: Any) -> Any:
    """Values, and the numbers that the indices with them point to."""
    values, indices = results
    dim = sample.args[1] if len(sample.args) > 1 else sample.kwargs.get("dim", -1)
    reduced = values.ndim < value.ndim
    return [values, value.detach().gather(dim, indices.unsqueeze(dim) if reduced else indices)]


@dataclass
class Call:
    """One sample of an entry. The CPU goes first: what it finds out (shapes of results) is kept for the device."""

    index: int
    sample: Any
    cotangents: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    contents: bool = True  # False: the sample draws random numbers
    watched: ClassVar[bool] = True  # whether its aten ops count for the column "computed by"

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        """Copies everything the call needs to `device`. shared: copies that calls with the same sample have in common."""
        raise NotImplementedError

    def copies(self, device: str, grad: bool, shared: Shared | None) -> Any:
        """The sample's input, args and kwargs on `device`."""
        sample = self.sample
        if shared is None:
            return moved((sample.input, sample.args, sample.kwargs), device, grad)
        if id(sample) not in shared:
            shared[id(sample)] = moved((sample.input, sample.args, sample.kwargs), device, grad)
        return shared[id(sample)]

    def describe(self) -> str:
        """The sample, short."""
        return f"sample {self.index}: {_shown((self.sample.input, *self.sample.args), self.sample.kwargs)}"

    def gradients(self, variant: str, results: Any, leaves: list[torch.Tensor], fed: list[torch.Tensor]) -> Any:
        """The gradients of `leaves`; on the CPU (`fed` is empty then) also makes what is fed to the results."""
        roots = [r for r in tensors(results) if r.requires_grad]
        if not roots or not leaves:
            return ()
        if variant not in self.cotangents:
            self.cotangents[variant] = [cotangent(r) for r in roots]
            fed = self.cotangents[variant]
        return torch.autograd.grad(roots, leaves, fed, allow_unused=True)


def _shown(args: Any, kwargs: dict[str, Any]) -> str:
    def show(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(show(y) for y in x[:6]) + (", ..." if len(x) > 6 else "") + "]"
        return repr(x)[:60]

    return ", ".join([show(a) for a in args] + [f"{k}={show(v)}" for k, v in kwargs.items()])[:300]


@dataclass
class Forward(Call):
    """The op itself, and the gradients of its inputs. shown: what is compared."""

    op: Any = None
    grad: bool = False
    shown: Shown = plainly
    writes: bool = True  # to its inputs, as the CPU showed

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        sample = self.sample
        value, args, kwargs = self.copies(device, self.grad, shared)
        inputs = tensors((value, () if isinstance(sample.args, OnHost) else args, kwargs))
        leaves = [t for t in inputs if t.requires_grad]
        fed = moved(self.cotangents.get("gradient", []), device)

        def work() -> dict[str, Outcome]:
            results = attempt(lambda: self.op(value, *args, **kwargs))
            if results.error is not None:
                return {"forward": results}
            process = sample.output_process_fn_grad
            shown = attempt(lambda: self.shown(sample, value, results.value))
            # Inputs come along: some ops write to them (running statistics).
            plain = [t.clone() if shared is not None else t for t in inputs if not t.requires_grad]
            if device == "cpu":
                before = tensors((sample.input, () if isinstance(sample.args, OnHost) else sample.args, sample.kwargs))
                strided = all(b.layout is torch.strided for b in before)
                self.writes = not (strided and all(torch.equal(b.detach(), i.detach()) for b, i in zip(before, inputs)))
            outcomes = {"forward": Outcome([shown.value, plain], shown.error)}
            if leaves and tensors(results.value):
                outcomes["gradient"] = attempt(lambda: self.gradients("gradient", process(results.value), leaves, fed))
            return outcomes

        return work


@dataclass
class InPlace(Call):
    """The in-place variant: what is returned is self, with the new contents; gradients go through the write."""

    op: Any = None
    grad: bool = False

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        sample = self.sample
        if shared is not None and not all(is_dense(t) for t in tensors(sample.input)):
            shared = None  # a clone would not be laid out like the sample
        value, args, kwargs = self.copies(device, self.grad, shared)
        leaves = [t for t in tensors((value, args, kwargs)) if self.grad and t.requires_grad]
        fed = moved(self.cotangents.get("inplace", []), device)

        def run() -> Any:
            target = _writable(value, shared is not None)
            result = self.op(target, *args, **kwargs)
            if result is None:  # foreach ops return nothing
                result = target
            return [target, result is target, self.gradients("inplace", result, leaves, fed)]

        def work() -> dict[str, Outcome]:
            with torch.set_grad_enabled(self.grad):
                return {"inplace": attempt(run)}

        return work


def _writable(value: Any, shared: bool) -> Any:
    """`value`, or clones of what must not be written to: leaves that need gradients, and what other calls read."""
    if isinstance(value, (list, tuple)):
        return [_writable(v, shared) for v in value]
    return value.clone() if value.requires_grad or shared else value


@dataclass
class Out(Call):
    """The out= variant. form: what out= is ("same", "empty": to be resized, or the name of another dtype)."""

    watched = False  # the copies that bring results into `out` are no part of the op

    op: Any = None
    form: str = "same"
    shown: Shown = plainly

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        sample = self.sample
        value, args, kwargs = self.copies(device, False, shared)
        if "shapes" not in self.cotangents:
            with torch.no_grad():
                results = self.op(*moved((sample.input, *sample.args), "cpu", False), **moved(sample.kwargs, "cpu"))
            self.cotangents["shapes"] = results if isinstance(results, torch.Tensor) else list(results)
        out = moved(self._targets(), device)

        def work() -> dict[str, Outcome]:
            def run() -> Any:
                target = out if isinstance(out, torch.Tensor) else tuple(out)
                with torch.no_grad():
                    result = self.op(value, *args, **kwargs, out=target)
                returned = tensors(result)
                shown = self.shown(sample, value, target)
                return [shown, [any(r is t for r in returned) for t in tensors(target)]]

            return {self.variant: attempt(run)}

        return work

    @property
    def variant(self) -> str:
        """Another dtype is a matter of its own: it is cast to or refused."""
        return "out" if self.form in ("same", "empty") else "cast"

    def _targets(self) -> Any:
        def make(t: torch.Tensor) -> torch.Tensor:
            if self.form == "empty":
                return torch.empty(0, dtype=t.dtype)
            return torch.ones(t.shape, dtype=t.dtype if self.form == "same" else getattr(torch, self.form))

        shapes: Any = self.cotangents["shapes"]
        return make(shapes) if isinstance(shapes, torch.Tensor) else [make(t) for t in shapes]

    def describe(self) -> str:
        return super().describe() + ("" if self.form == "same" else f", out of {self.form}")


@dataclass
class Raises(Call):
    """An input that the CPU refuses."""

    watched = False

    op: Any = None

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        sample = self.sample
        value, args, kwargs = moved((sample.input, sample.args, sample.kwargs), device)
        return lambda: {"errors": attempt(lambda: self.op(value, *args, **kwargs))}


@dataclass
class Module(Call):
    """Constructs a module, runs it, and takes gradients of inputs and parameters. sample: a ModuleInput."""

    cls: Any = None
    training: bool = True
    grad: bool = False
    module: Any = None  # made by the first `prepare`, so that both devices start from the same weights

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        forward = self.sample.forward_input
        if self.module is None:
            constructor = self.sample.constructor_input
            self.module = self.cls(*constructor.args, **constructor.kwargs).train(self.training)
            if getattr(self.module, "has_uninitialized_params", bool)():  # lazy: weights are drawn at the first run
                self.module(*forward.args, **forward.kwargs)
        twin = copy.deepcopy(self.module).to(device)
        args, kwargs = moved((forward.args, forward.kwargs), device, self.grad)
        fed = moved(self.cotangents.get("gradient", []), device)

        def work() -> dict[str, Outcome]:
            results = attempt(lambda: twin(*args, **kwargs))
            if results.error is not None:
                return {"forward": results}
            outcomes = {"forward": Outcome([results.value, list(twin.buffers())])}
            leaves = [t for t in [*tensors((args, kwargs)), *twin.parameters()] if t.requires_grad]
            if self.grad:
                outcomes["gradient"] = attempt(lambda: self.gradients("gradient", results.value, leaves, fed))
            return outcomes

        return work

    def describe(self) -> str:
        constructor, forward = self.sample.constructor_input, self.sample.forward_input
        mode = "" if self.training else ", in eval mode"
        return (
            f"sample {self.index}: ({_shown(constructor.args, constructor.kwargs)}) called with "
            f"{_shown(forward.args, forward.kwargs)}{mode}"
        )


@dataclass
class Optimize(Call):
    """Three steps of an optimizer on two parameters. sample: an OptimizerInput."""

    cls: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    sparse: bool = False
    needs_closure: bool = False

    def prepare(self, device: str, shared: Shared | None = None) -> Work:
        generator = torch.Generator().manual_seed(0)
        start = [torch.randn(4, 3, generator=generator), torch.randn(3, 2, generator=generator)]
        parameters = [torch.nn.Parameter(t.to(device)) for t in start]
        slopes = [[torch.randn(p.shape, generator=generator) for p in start] for _ in range(3)]
        slopes_there = moved(slopes, device)
        options = moved(self.sample.kwargs, device) | self.extra

        def work() -> dict[str, Outcome]:
            def run() -> Any:
                optimizer = self.cls(parameters, **options)

                def closure() -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = sum((p * g).sum() + (p * p).sum() for p, g in zip(parameters, slopes_there[0]))
                    loss.backward()
                    return loss

                closures = [closure] if self.needs_closure else []
                for step in slopes_there:
                    for parameter, slope in zip(parameters, step):
                        parameter.grad = slope.to_sparse() if self.sparse else slope.clone()
                    optimizer.step(*closures)
                state = [optimizer.state[p] for p in parameters]  # LBFGS keeps all of its own at the first
                return [[p.detach() for p in parameters], moved(state, device, False)]

            return {"forward": attempt(run)}

        return work

    def describe(self) -> str:
        return f"{self.sample.kwargs | self.extra}"
