"""Non-blocking stream sockets over the operating system, and an epoll poller that any thread can wake.

Leaves out frames and connections (`service.transport`), and TLS (`runtime.tls`).
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from typing import Final

from longpoll_broker.runtime.interface import Buffer, Listener, Socket

ACCEPT_BACKLOG: Final = 1024
"""Connections the kernel may hold for us; Java's default for Netty here is 1024 as well."""

READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
"""What makes a socket worth reading: bytes, or an end that only a read will show."""


class RealSocket:
    """A connected, non-blocking TCP socket; calls go straight to the operating system's."""

    __slots__ = ("_socket", "close", "fileno", "recv_into", "send")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self.recv_into = connected.recv_into
        self.send = connected.send
        self.fileno = connected.fileno
        self.close = connected.close

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some of the bytes of the parts, in order; raises BlockingIOError when none fit."""
        return self._socket.sendmsg(parts)


class RealListener:
    """A listening, non-blocking TCP socket."""

    __slots__ = ("_address", "_socket")

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(ACCEPT_BACKLOG)
            listening.setblocking(False)
        except (OSError, OverflowError):
            listening.close()
            raise
        self._socket = listening
        self._address: tuple[str, int] = listening.getsockname()[:2]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it is bound to."""
        return self._address

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """A connection and its peer's address; raises BlockingIOError when none waits."""
        connected, peer = self.accept_plain()
        return RealSocket(connected), peer

    def accept_plain(self) -> tuple[socket.socket, tuple[str, int]]:
        """The same for `runtime.tls`, which has its own kind of socket."""
        connected, peer = self._socket.accept()
        return connected, (peer[0], peer[1])

    def fileno(self) -> int:
        """The descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def connect(host: str, port: int, timeout_s: float) -> RealSocket:
    """Connect within `timeout_s` seconds; raises OSError."""
    return RealSocket(socket.create_connection((host, port), timeout_s))


def begin_connect(host: str, port: int) -> RealSocket:
    """Begin to connect; raises OSError when it fails at once. Only the look-up of a name, not of an address, waits."""
    family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        connecting.connect(address)
    except BlockingIOError:
        pass
    except OSError:
        connecting.close()
        raise
    return RealSocket(connecting)


class RealPoller:
    """Level-triggered epoll with an eventfd by which any thread ends a wait.

    Invariant: `_watched` maps every registered descriptor to its data; the eventfd is not in it.
    """

    __slots__ = ("_epoll", "_wake", "_watched")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, object] = {}

    def register(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Watch a socket."""
        self._watched[key.fileno()] = data
        self._epoll.register(key.fileno(), _mask(read=read, write=write))

    def modify(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Change what is watched."""
        self._watched[key.fileno()] = data
        self._epoll.modify(key.fileno(), _mask(read=read, write=write))

    def unregister(self, key: Socket | Listener) -> None:
        """Watch it no more; call before the socket is closed."""
        self._watched.pop(key.fileno(), None)
        self._epoll.unregister(key.fileno())

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        """Wait up to `timeout` seconds; (data, readable, writable) of every ready socket."""
        ready: list[tuple[object, bool, bool]] = []
        for descriptor, events in self._epoll.poll(timeout):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif descriptor in self._watched:
                ready.append((self._watched[descriptor], bool(events & READABLE), bool(events & select.EPOLLOUT)))
        return ready

    def wake(self) -> None:
        """Make a waiting `poll` return now."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Release the descriptors; nobody may call `wake` afterwards."""
        self._epoll.close()
        os.close(self._wake)


def _mask(*, read: bool, write: bool) -> int:
    return (select.EPOLLIN | select.EPOLLRDHUP if read else 0) | (select.EPOLLOUT if write else 0)
