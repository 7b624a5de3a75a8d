"""Consumers of a group: they share queues, pull, deliver to a listener or a caller of `poll`, and commit."""
