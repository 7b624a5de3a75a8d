"""Consume queues: the log offsets of each queue's messages."""
