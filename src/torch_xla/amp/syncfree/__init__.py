"""Names of PyTorch/XLA's `torch_xla.amp.syncfree`: optimizers the device tells whether to take a step, not the host."""

from torch_xla._src.device.syncfree import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
