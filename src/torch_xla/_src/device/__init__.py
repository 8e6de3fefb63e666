"""Stock torch learns device `xla`. `install()` needs neither JAX nor a client; it runs when torch_xla is loaded."""

from __future__ import annotations

from functools import cache


@cache
def install() -> None:
    """Teaches torch the device, once."""
    from torch_xla._src import donors, placement
    from torch_xla._src.device import (
        accumulation,
        aliasing,
        attention,
        autocast,
        checkpoint,
        composite,
        dynamo,
        functionalize,
        grad_scaler,
        guard,
        identity,
        kernels,
        linear,
        optim,
        random,
        recurrent,
        serialization,
    )
    from torch_xla._src.runtime import precision

    guard.install()
    kernels.install()
    functionalize.install()
    accumulation.install()
    aliasing.install()
    attention.install()
    composite.install()
    dynamo.install()
    autocast.install()
    checkpoint.install()
    identity.install()
    linear.install()
    optim.install()
    grad_scaler.install()
    precision.install()
    donors.install()
    placement.install()
    random.install()
    recurrent.install()
    serialization.install()
