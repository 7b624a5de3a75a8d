"""Ports of this machine on which no server listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_port() -> Iterator[tuple[str, int]]:
    """Yields an address that refuses connections and that no other test gets meanwhile.

    The socket is bound but does not listen. A server that gets this address may listen on it.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()
