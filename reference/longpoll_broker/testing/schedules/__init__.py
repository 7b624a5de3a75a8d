"""Threads that are stopped, raced and let go on in a chosen order."""
