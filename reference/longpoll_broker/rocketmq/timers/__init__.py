"""Delay levels and timers: delayed delivery of messages, and recall."""
