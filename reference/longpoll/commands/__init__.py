"""The commands, one module per family; `cli` imports each only when it runs."""
