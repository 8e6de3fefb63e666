"""Stock torch learns device `xla`. `install()` needs neither JAX nor a client; it runs when torch_xla is loaded."""

from __future__ import annotations

from functools import cache


@cache
def install() -> None:
    """Teaches torch the device, once."""
    from torch_xla._src.device import (
        aliasing,
        attention,
        autocast,
        checkpoint,
        composite,
        dynamo,
        functionalize,
        guard,
        identity,
        kernels,
        linear,
        optim,
        random,
        recurrent,
        serialization,
    )

    guard.install()
    kernels.install()
    functionalize.install()
    aliasing.install()
    attention.install()
    composite.install()
    dynamo.install()
    autocast.install()
    checkpoint.install()
    identity.install()
    linear.install()
    optim.install()
    random.install()
    recurrent.install()
    serialization.install()
