"""The commands, one module a family; each loaded only when it is asked for."""
