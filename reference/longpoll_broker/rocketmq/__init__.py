"""Parity with RocketMQ beyond sending and pulling: administration, accounts, name server, replication and more.

Frozen: it changes only to fix a fault. Nothing in `hold`, `store`, `io` or `send` imports it.
"""
