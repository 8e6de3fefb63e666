"""Names of PyTorch/XLA's `torch_xla.experimental`."""

from torch_xla._src import api, surface
from torch_xla._src.deprecation import alias
from torch_xla.experimental.eager import eager_mode, eager_mode_context, is_eager_mode

compile = alias("torch_xla.experimental.compile", "torch_xla.compile", api.compile)

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]

__getattr__ = surface.missing(__name__)
