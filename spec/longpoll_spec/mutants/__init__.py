"""Mutants of the specification: the law with one mistake, by rule or by name, for the explorer, lessons and tests."""
