"""Message storage in RocketMQ 4.9's format: commit log, consume queues, index, recovery and inspection.

`message_store.MessageStore` is the entry point; `messages` defines its data. `inspect` and `verify` read any store
directory without writing.
"""
