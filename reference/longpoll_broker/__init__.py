"""The reference broker: implements RocketMQ's storage format and wire protocol, without POP consumption."""
