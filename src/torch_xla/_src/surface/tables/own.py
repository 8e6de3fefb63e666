"""Rows of what PyTorch/XLA never had: see Note [Public surface]."""

TABLE = """
# torch_xla
new works mark_dynamic(tensor, dim, *, min=None, max=None)
new works class VaryingLengthError

# torch_xla.debug
new works check(function=None, *, nonfinite=True, against_cpu=True, rtol=None, atol=None)
new works class CheckError
new works why_compiled(count=None)
new works limit_compiles(count)
new works class CompileLimitError
new works time_report(every=None)
new works donation_report(module=None)
new works assert_donated(module=None)

# torch_xla.debug.memory
new works plan(program=None)
new works last()
new works live()
new works class MemoryPlan

# torch_xla.debug.program
new works pending(tensors=None)
new works compiled()

# torch_xla.report
new works report()

# torch_xla.utils
new works load_checkpoint(model, path, dtype=None, strict=True, device='xla')
new works offload_optimizer_state(optimizer)
"""
