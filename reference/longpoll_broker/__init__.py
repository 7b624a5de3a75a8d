"""The reference: a threaded broker with RocketMQ's bytes on disk and on the wire.

Leaves out replication, transactions' check-back and POP; `docs/architecture.md` says where each would go.
"""
