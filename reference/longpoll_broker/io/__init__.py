"""Connections: sockets, frames, the I/O threads, and the way of a request to its processor."""
