"""The real connection of a peer (`longpoll.broker_simulation.client`), which another thread may break."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack, suppress
from typing import Final

from longpoll_runtime import Address
from longpoll_runtime.interface import Buffer

CONNECT_S: Final = 10.0


class RealConnection:
    """A blocking connection; `cut` may be called from any thread. Raises OSError if nothing listens."""

    def __init__(self, address: Address) -> None:
        with ExitStack() as undo:
            # Setting the option fails on a connection that the peer resets at once.
            self._socket = undo.enter_context(socket.create_connection(address, CONNECT_S))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            undo.pop_all()
        self.recv_into = self._socket.recv_into
        self.close = self._socket.close

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait until there is something to receive, or the end; false after `timeout_s`."""
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(ready)

    def send(self, content: Buffer, /) -> int:
        """Send all of the bytes."""
        self._socket.sendall(content)
        return len(content)

    @property
    def is_open(self) -> bool:
        """Whether its owner still uses it."""
        return self._socket.fileno() >= 0

    def cut(self) -> None:
        """Close both directions; its owner notices when it reads."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
