"""Races over the wire: each message against the pull that waits for it, at any broker that speaks RocketMQ."""
