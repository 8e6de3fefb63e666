"""Names of PyTorch/XLA's `torch_xla.distributed.fsdp.xla_flatten_params_wrapper`, not there yet."""

from torch_xla._src import surface

__getattr__ = surface.missing(__name__)
