"""Calls a listener: the threads that run it (`workers`), and the two ways to give it messages.

`concurrent` and `orderly` are these ways; `service` is their base class.
"""
