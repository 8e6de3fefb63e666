"""One contender in a process of its own: takes commands on stdin, answers in JSON on stdout.

    python -m benchmarks.worker CONTENDER MODEL OPTIMIZER

    step N     N steps; {"host": [...], "step": [...]}: milliseconds until Python returned, until results were ready
    facts      {"loss": ..., "programs": ..., "peak_mib": ..., "versions": {...}}

Runs under any interpreter that has the contender's packages: PyTorch/XLA 2.9 needs an older Python.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import models


class Eager:
    """An unmodified PyTorch loop on one device; on the CPU, torch eager."""

    device = "cpu"

    def __init__(self, name: str, optimizer: str) -> None:
        self.case = models.CASES[name]
        self.model = self.case.model()
        self.batch = self.case.batch()
        self.move()
        self.optimizer = models.OPTIMIZERS[optimizer](self.model.parameters())
        self.loss: Any = None
        self.forward: Callable[..., Any] = self.case.loss

    def move(self) -> None:
        self.model = self.model.to(self.device)
        self.batch = tuple(t.to(self.device) for t in self.batch)

    def train(self) -> Any:
        """One step, of which the loss is returned."""
        if not self.case.trains:
            with torch.no_grad():
                return self.forward(self.model, self.batch)
        self.optimizer.zero_grad()
        loss = self.forward(self.model, self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self) -> None:
        self.loss = self.train()

    def wait(self) -> None:
        pass

    def programs(self) -> int | None:
        return None


class Inductor(Eager):
    """torch.compile with its default backend, of model and loss."""

    def __init__(self, name: str, optimizer: str) -> None:
        super().__init__(name, optimizer)
        self.forward = torch.compile(self.case.loss)


class Xla(Eager):
    """This package."""

    device = "xla"

    def __init__(self, name: str, optimizer: str) -> None:
        import torch_xla

        self.sync = torch_xla.sync
        super().__init__(name, optimizer)

    def step(self) -> None:
        super().step()
        self.sync()

    def wait(self) -> None:
        self.sync(wait=True)

    def programs(self) -> int | None:
        import torch_xla.debug.metrics as met

        return int(met.counter_value("UncachedCompile") or 0)


class Frozen(Xla):
    """This package, the step given to `torch_xla.compile(full_graph=True)`."""

    def __init__(self, name: str, optimizer: str) -> None:
        import torch_xla

        super().__init__(name, optimizer)
        model, batch, forward, trained = self.model, self.batch, self.forward, self.optimizer

        def train() -> Any:
            trained.zero_grad()
            loss = forward(model, batch)
            loss.backward()
            trained.step()
            return loss.detach()

        step = train if self.case.trains else torch.no_grad()(lambda: forward(model, batch))
        self.compiled = torch_xla.compile(step, full_graph=True)

    def step(self) -> None:
        self.loss = self.compiled()


class XlaOfOld(Xla):
    """PyTorch/XLA 2.9 in C++."""

    def __init__(self, name: str, optimizer: str) -> None:
        import torch_xla.core.xla_model as xm

        self.device = xm.xla_device()
        self._wait = xm.wait_device_ops
        super().__init__(name, optimizer)

    def wait(self) -> None:
        self.sync()
        self._wait()


class Jax:
    """Hand-written JAX."""

    def __init__(self, name: str, optimizer: str) -> None:
        from benchmarks.by_hand import Trainer

        self.trainer = Trainer(name, optimizer)
        self.step, self.wait = self.trainer.step, self.trainer.wait

    @property
    def loss(self) -> Any:
        return self.trainer.loss

    def programs(self) -> int | None:
        return int(self.trainer.function._cache_size())


CONTENDERS = {"torch_xla": Xla, "frozen": Frozen, "jax": Jax, "eager": Eager, "inductor": Inductor, "xla-2.9": XlaOfOld}


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("torch", "torch_xla", "jax"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "?"))
    return found


def main() -> None:
    contender, name, optimizer = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not mix with answers
    torch.manual_seed(0)
    run = CONTENDERS[contender](name, optimizer)
    run.wait()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "step":
            times: dict[str, list[float]] = {"host": [], "step": []}
            for _ in range(int(arguments[0])):
                start = time.perf_counter()
                run.step()
                times["host"].append((time.perf_counter() - start) * 1e3)
                run.wait()
                times["step"].append((time.perf_counter() - start) * 1e3)
            print(json.dumps(times), file=answers, flush=True)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            facts = {"loss": float(run.loss), "programs": run.programs(), "peak_mib": peak, "versions": _versions()}
            print(json.dumps(facts), file=answers, flush=True)


if __name__ == "__main__":
    main()
