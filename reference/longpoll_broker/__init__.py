"""The broker: threads over RocketMQ's bytes on disk and on the wire.

Leaves out replication and POP.
"""
