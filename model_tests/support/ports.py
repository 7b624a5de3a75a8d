"""Ports of this machine on which nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_port() -> Iterator[tuple[str, int]]:
    """An address that refuses connections, and that no other test is given meanwhile.

    The socket is bound and does not listen. A server that is told this address may listen on it.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()
