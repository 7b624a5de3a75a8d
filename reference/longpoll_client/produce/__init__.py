"""Sends messages, at once or in transactions."""
