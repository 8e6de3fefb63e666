"""Names of PyTorch/XLA's `torch_xla.experimental.tpu`, which has moved to `torch_xla._internal.tpu`."""

from torch_xla._internal.tpu import get_tpu_env, num_available_devices, version
from torch_xla._src import surface

__all__ = ["get_tpu_env", "num_available_devices", "version"]

__getattr__ = surface.missing(__name__)
