"""Settings of PyTorch/XLA's `torch_xla._dynamo.config`, kept for code that sets them."""

skip_input_data_check = False  # nothing to skip: inputs of a captured graph are looked at by torch.compile's own guards
