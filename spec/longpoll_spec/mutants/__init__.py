"""Mutants of the specification, each with one mistake, for the explorer, the lessons and the tests."""
