"""Decides, call by call, whether a step runs frozen, is observed, or just runs. See Note [Frozen steps]."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch_xla._src import api
from torch_xla._src.graph import contents
from torch_xla._src.step import modes
from torch_xla._src.step.arguments import Flat, flatten
from torch_xla._src.step.block import Step
from torch_xla._src.step.frozen import MISS, Frozen
from torch_xla._src.step.observe import NotFrozen, Observation, Observer
from torch_xla._src.step.reach import Unguardable

_MAX_FORMS = 4  # training, evaluation, and a short batch of each
_MAX_PAUSE = 64  # calls: observing costs a walk through all that a function reaches
_logger = logging.getLogger("torch_xla")


class Freezer:
    """The frozen forms of one function, the one used last first."""

    def __init__(self, function: Callable[..., Any], block: Step) -> None:
        self.function, self.block = function, block
        self.forms: list[Frozen] = []
        self.last: Observation | None = None
        self.reason = "it has been called too few times"
        self.num_frozen = self.num_calls = 0
        self.pause = self.failures = 0  # calls to let pass before the next one is observed; failures in a row

    def status(self) -> str:
        """How many calls have run without their Python; why, if the last one has not."""
        text = f"{self.num_frozen} of {self.num_calls} calls ran frozen"
        return text if not self.reason else f"{text}; the last one ran in Python, since {self.reason}"

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.num_calls += 1
        if modes.intercepted():
            self.reason = "a dispatch mode, a function mode, a transform of torch.func or forward-mode AD is active"
            return self._plain(args, kwargs)
        if contents.depth:
            self.reason = "debug.check() is active"
            return self._plain(args, kwargs)
        flat = flatten(args, kwargs)
        result = self._frozen(flat)
        if result is not MISS:
            return result
        if self.pause:
            self.pause -= 1
            return self._plain(args, kwargs)
        return self._observed(flat, args, kwargs)

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.block:
            return self.function(*args, **kwargs)

    def _frozen(self, flat: Flat) -> Any:
        if not self.forms:
            return MISS
        api.sync()
        for position, form in enumerate(self.forms):
            if form.seen.structure == flat.structure and (result := form(flat)) is not MISS:
                if position:
                    self.forms.insert(0, self.forms.pop(position))
                self.num_frozen += 1
                self.reason = ""
                api.sync()  # what is to happen after a step
                return result
        return MISS

    def _observed(self, flat: Flat, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with self.block:
                pass  # launches what is pending: what the step reads has to be there
            observer = Observer(self.function, flat)
        except (NotFrozen, Unguardable) as why:
            self._failed(str(why))
            return self._plain(args, kwargs)
        with self.block:
            result = observer.run(lambda: self.function(*args, **kwargs))
        if observer.observation is None:
            self._failed(observer.reason or "it raised an exception")
        else:
            self._learn(observer.observation, observer, flat)
        return result

    def _failed(self, reason: str) -> None:
        self.reason, self.last = reason, None
        self.failures += 1
        self.pause = min(2 ** max(self.failures - 3, 0), _MAX_PAUSE) - 1
        _logger.debug("%s is not frozen: %s", getattr(self.function, "__name__", self.function), reason)

    def _learn(self, seen: Observation, observer: Observer, flat: Flat) -> None:
        """Takes in an observed call: the second of two that agree makes a form; a later one tells a form more."""
        last, self.last = self.last, seen
        for form in [f for f in self.forms if f.seen.structure == seen.structure]:
            if form.seen.agrees(seen) is None and form.seen.reach.unchanged() and form.refine(seen):
                self.reason, self.failures = "a learning rate has changed for the first time", 0
                return
        reason = "it has been observed only once" if last is None else last.agrees(seen)
        if last is None or reason is not None:
            self.reason = reason or ""
            self.failures += 1
            self.pause = min(2 ** max(self.failures - 6, 0), _MAX_PAUSE) - 1
            return
        # Forms of other objects are not needed any more, and would keep those objects alive.
        objects = [id(x) for x in flat.objects]
        self.forms = [f for f in self.forms if f.objects == objects][: _MAX_FORMS - 1]
        self.forms.insert(0, Frozen(last, seen, observer.places, flat))
        self.reason, self.failures, self.last = "it has been observed often enough only now", 0, None
