"""What a tensor that was written in place holds if a check of its recording fails.

Note [Writes undone]
A training step that looks up a row that is not there has updated its parameters, in one launch, by the time that anybody
looks at the flags (Note [Failed checks]), and what they held has been overwritten. On the CPU the lookup raises, and no
write after it takes place. So once a row with checks has been recorded, the recorder notes for each write which output
or leaf the tensor held before. The program returns what that was if a check before the write has failed, and the new
value if not: a selection by a scalar, in the loop that computes the new value. Of a tensor that the recording has not
read, the buffer is kept until the flags have been looked at.

Launches that follow, before anybody has looked, would write what they compute from tensors that are wrong (another
optimizer's step) or simply too late (an average of the weights). So once a program with checks has run in this process,
each program takes one more input, whether a check of an earlier launch has failed, and undoes all writes if so; a program
with checks returns the same for the next. What is pending when the failure is found is launched before it is raised.

Not undone: writes in a later launch to a tensor that it did not read, and what PyTorch's C++ kernels write without a
kernel of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from torch_xla._src.ops import placement

if TYPE_CHECKING:
    from torch_xla._src.compile.program import Inputs

# Number of an output -> what the tensor that was given it held before: the number of an output or leaf, or a buffer.
Replaced = Mapping[int, Any]


def key(replaced: Replaced) -> tuple[tuple[int, Any], ...]:
    """What a program depends on: any buffer is like another."""
    kinds = (held if held is None or type(held) is int else "buffer" for held in replaced.values())
    return tuple(zip(replaced, kinds))


def earlier(live: Iterable[int], replaced: Replaced) -> set[int]:
    """The outputs that tensors whose last Values are `live` held before."""
    found: set[int] = set()
    for number in live:
        held = replaced.get(number)
        while type(held) is int and held >= 0 and held not in found:
            found.add(held)
            held = replaced.get(held)
    return found


class Place(NamedTuple):
    """Where an output is what it is to be if a check before its write has failed.

    key: of `Replaced`, where a buffer stands that is to be taken then; None if the program returns what is right.
    num_checks: how many checks come before the write.
    """

    key: int | None
    num_checks: int


def settle(live: Sequence[int], inputs: Inputs, replaced: Replaced) -> tuple[list[Any], dict[int, Place]]:
    """The live outputs, with writes undone by failed checks, and the Places of those for which that is possible."""
    found = {number: _settled(number, inputs, replaced) for number in live}
    return [found[n][0] for n in live], {n: place for n, (_, place) in found.items() if place is not None}


def _settled(number: int, inputs: Inputs, replaced: Replaced) -> tuple[Any, Place | None]:
    new, counts, chain = inputs.outs[number], inputs.checks_before, [number]
    watched, num_checks = inputs.prior is not None, counts.get(number, 0)
    while chain[-1] >= 0 and (watched or chain[-1] in counts):
        held = replaced.get(chain[-1])
        if type(held) is not int:
            alike = held is not None and counts.get(chain[-1], 0) == num_checks
            return new, Place(chain[-1], num_checks) if alike else None
        chain.append(held)
    if len(chain) == 1:
        return new, None
    value = inputs.outs[chain[-1]] if chain[-1] >= 0 else inputs.leaves[-1 - chain[-1]]
    for position in range(len(chain) - 2, -1, -1):
        count = counts.get(chain[position], 0)
        if position and count == counts.get(chain[position - 1], 0):
            continue  # the next selection undoes this write, too
        value = placement.where(any_failed(inputs, count), value, inputs.outs[chain[position]])
    return value, Place(None, num_checks)


def any_failed(inputs: Inputs, count: int) -> Any:
    """bool[]: whether one of the first `count` checks of this run has failed, or one of an earlier launch."""
    prior = [] if inputs.prior is None else [inputs.prior]
    return reduce(jnp.logical_or, [*prior, *inputs.flags[:count]])
