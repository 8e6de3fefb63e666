"""Names of PyTorch/XLA's `torch_xla.core.dynamo_bridge`: what torch's `openxla` backend of torch.compile calls."""

from torch_xla._dynamo.dynamo_bridge import extract_compiled_graph
from torch_xla._src import surface

__all__ = ["extract_compiled_graph"]

__getattr__ = surface.missing(__name__)
