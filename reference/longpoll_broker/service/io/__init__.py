"""Connections, frames and threads: how a request comes to its processor, and its answer back."""
