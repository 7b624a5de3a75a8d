"""Fakes, second implementations and strategies for tests of the reference; never used by it."""
