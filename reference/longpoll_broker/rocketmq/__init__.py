"""RocketMQ features beyond sending and pulling: administration, accounts, name server, replication and more.

Frozen: changes only fix faults. `hold`, `store`, `io` and `send` do not import it.
"""
