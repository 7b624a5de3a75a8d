"""Message storage in RocketMQ 4.9's bytes: a commit log, consume queues over it, and what reads and repairs them.

`message_store.MessageStore` is the door; `messages` holds what goes in and out. `inspect` and `verify` read any store
directory without writing. Leaves out the extended consume queue.
"""
