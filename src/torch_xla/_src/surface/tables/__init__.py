"""The rows of the table, by area: torch_xla and core; distributed; experimental; tools; bindings."""
