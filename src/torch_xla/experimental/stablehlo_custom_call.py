"""Names of PyTorch/XLA's `torch_xla.experimental.stablehlo_custom_call`: those that are not there yet or not offered say so."""

from torch_xla._src import surface

__getattr__ = surface.missing(__name__)
