"""Names of PyTorch/XLA's `torch_xla.experimental.gru`: there is no need for a GRU of its own, torch's is a loop on xla."""

from torch.nn import GRU

from torch_xla._src import surface

__all__ = ["GRU"]

__getattr__ = surface.missing(__name__)
