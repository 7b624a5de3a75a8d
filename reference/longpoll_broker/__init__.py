"""The reference broker: RocketMQ's storage format and wire protocol. It has no POP."""
