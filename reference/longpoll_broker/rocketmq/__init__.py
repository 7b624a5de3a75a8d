"""RocketMQ features beyond sending and pulling: administration, accounts, name server, replication and more.

This package is frozen: it gets only fixes. `hold`, `store`, `io` and `send` do not import it.
"""
