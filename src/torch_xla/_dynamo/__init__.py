"""Names of PyTorch/XLA's `torch_xla._dynamo`."""

from torch_xla._src import surface

__getattr__ = surface.missing(__name__)
