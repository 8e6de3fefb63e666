"""Names of PyTorch/XLA's `torch_xla.utils`."""
