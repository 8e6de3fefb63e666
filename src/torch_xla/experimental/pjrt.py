"""Names of PyTorch/XLA's `torch_xla.experimental.pjrt`, which have long moved to `torch_xla.runtime` and `xla_model`."""

from torch_xla import runtime as xr
from torch_xla._src import api, surface
from torch_xla._src.deprecation import alias
from torch_xla.core import xla_model as xm
from torch_xla.distributed import xla_multiprocessing as xmp


def _xla_device(n: int | None = None, devkind: str | None = None) -> object:
    return api.device(n)


def _using_pjrt() -> bool:
    return True


world_size = alias("torch_xla.experimental.pjrt.world_size", "torch_xla.runtime.world_size", xr.world_size)
global_ordinal = alias(
    "torch_xla.experimental.pjrt.global_ordinal", "torch_xla.runtime.global_ordinal", xr.global_ordinal
)
local_ordinal = alias("torch_xla.experimental.pjrt.local_ordinal", "torch_xla.runtime.local_ordinal", xr.local_ordinal)
device_type = alias("torch_xla.experimental.pjrt.device_type", "torch_xla.runtime.device_type", xr.device_type)
using_pjrt = alias("torch_xla.experimental.pjrt.using_pjrt", "nothing: there is no other runtime", _using_pjrt)
broadcast_master_param = alias(
    "torch_xla.experimental.pjrt.broadcast_master_param",
    "torch_xla.core.xla_model.broadcast_master_param",
    xm.broadcast_master_param,
)
rendezvous = alias("torch_xla.experimental.pjrt.rendezvous", "torch_xla.core.xla_model.rendezvous", xm.rendezvous)
spawn = alias("torch_xla.experimental.pjrt.spawn", "torch_xla.distributed.xla_multiprocessing.spawn", xmp.spawn)
xla_device = alias("torch_xla.experimental.pjrt.xla_device", "torch_xla.device", _xla_device)

__getattr__ = surface.missing(__name__)
