"""Mutants of the specification: one mistake each, by rule or by name, for the explorer, lessons and tests."""
