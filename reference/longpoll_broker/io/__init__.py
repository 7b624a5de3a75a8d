"""Connections: sockets, frames, I/O threads, and the dispatch of requests to processors."""
