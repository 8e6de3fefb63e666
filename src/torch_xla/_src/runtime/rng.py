"""State of the random number generator of device xla.

Note [Random state]
The state is one 64-bit integer: `manual_seed(s)` sets it to s, each random op advances it. A random op takes a PRNG key
derived from the state as an input of the program, so neither a seed nor a restored state ever recompiles, and an op
that is recomputed (checkpointing) after the state was restored draws the same numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # SplitMix64 (Steele, Lea, Flood 2014): a Weyl sequence, hashed by `_mix`

_state: int | None = None
num_borrowed = 0  # draws from a generator of the host so far
num_seeded = 0  # seeds that have been set so far


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def key_of(state: int) -> tuple[int, int]:
    """The two 32-bit words of the PRNG key that belongs to a state."""
    z = _mix((state + _STEP) & _MASK)
    return z >> 32, z & 0xFFFFFFFF


def next_key() -> tuple[int, int]:
    """The key for one random op; advances the state."""
    global _state
    state = get_state()
    _state = advanced(state, 1)
    return key_of(state)


def advanced(state: int, draws: int) -> int:
    """The state after so many draws."""
    return (state + draws * _STEP) & _MASK


def get_state() -> int:
    """The current state, an integer in [0, 2**64). Drawn from the system the first time if no seed was set."""
    global _state
    if _state is None:
        _state = secrets.randbits(63)
    return _state


def set_state(state: int) -> None:
    """Sets the state (a seed, or what `get_state` gave). Negative seeds count from 2**64 down, as in PyTorch."""
    global _state
    _state = int(state) & _MASK


def seed(value: int) -> None:
    """Sets the state to a seed."""
    global num_seeded
    num_seeded += 1
    set_state(value)


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Random ops in the block take their keys from a host generator, if one is given, instead of the device's state."""
    global _state, num_borrowed
    if generator is None:
        yield
        return
    saved = _state
    num_borrowed += 1
    high, low = torch.randint(0, 2**32, (2,), generator=generator, dtype=torch.int64).tolist()
    _state = (high << 32) | low
    try:
        yield
    finally:
        _state = saved
