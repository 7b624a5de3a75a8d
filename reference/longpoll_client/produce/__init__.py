"""Sends: at once, and in transactions."""
