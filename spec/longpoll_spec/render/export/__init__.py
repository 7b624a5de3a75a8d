"""Exports the specification as Promela, as TLA+ and for the explorer, and a run as JSON."""
