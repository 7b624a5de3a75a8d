"""Non-blocking TCP sockets, and an epoll poller that any thread can wake.

Frames and connections: see `io.transport`. TLS: see `tls`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Final

from longpoll_runtime.interface import Buffer, Listener, Socket

ACCEPT_BACKLOG: Final = 1024
"""Connections that the kernel may queue; Java's default for Netty here is also 1024."""

# What is read of `struct tcp_info` (linux/tcp.h), host byte order. A kernel before 6.2 tells no window of ours.
#
# | offset | size | field                                                                     |
# |--------|------|---------------------------------------------------------------------------|
# | 20     | 4    | rcv_mss: the largest segment that came lately                              |
# | 64     | 4    | rcv_ssthresh: the window offered when nothing unread waits                 |
# | 84     | 4    | advmss: the largest segment that may come                                  |
# | 128    | 8    | bytes_received: in order, read or not                                      |
# | 232    | 4    | rcv_wnd: the window that the latest acknowledgement offered, bytes         |
_INFO_SIZE: Final = 236
_INFO: Final = struct.Struct("=20xI40xI16xI40xQ96xI")
FLIGHT: Final = 10
"""Segments that congestion control lets a peer send at once over a network (RFC 6928)."""

OUTSIDE: Final = ("192.0.2.1", 9)
"""A documentation address (RFC 5737), whose route shows the outgoing interface."""
READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
"""Conditions to read a socket: bytes, or an end that only a read reveals."""


class RealSocket:
    """A connected, non-blocking TCP socket; calls go directly to the operating system."""

    __slots__ = ("_is_local", "_socket", "close", "fileno", "recv_into", "send")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._is_local: bool | None = None
        self.recv_into = connected.recv_into
        self.send = connected.send
        self.fileno = connected.fileno
        self.close = connected.close

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some bytes of the parts, in order; raises BlockingIOError if nothing fits."""
        return self._socket.sendmsg(parts)

    def acknowledge(self) -> None:
        """Make the kernel acknowledge the read bytes now, if no unread ones wait."""
        # The kernel does not keep this: the next answer to the peer delays acknowledgements again.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def arrived(self) -> tuple[int, int]:
        """Returns the arrived bytes, and a lower bound of those that the peer may send next.

        One segment is subtracted, because a peer holds back a segment that does not fit the window. A segment is at
        most half the window. On this machine nothing else limits it.
        """
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        segment, usual_window, segment_max, came, window = _INFO.unpack(info.ljust(_INFO_SIZE, b"\0"))
        # If the kernel does not report the window, it is at least half of the usual one.
        window = window or usual_window // 2
        room = window - max(segment, min(segment_max, window // 2))
        if self._is_local is None:
            self._is_local = self._socket.getpeername()[0] == self._socket.getsockname()[0]
        return came, max(room if self._is_local else min(room, FLIGHT * segment), 0)

    def end_sending(self) -> None:
        """End sending. Raises OSError."""
        self._socket.shutdown(socket.SHUT_WR)


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
        """The bound host and port."""
        return self._address

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Returns a connection and its peer's address; raises BlockingIOError if none waits."""
        connected, peer = self.accept_plain()
        return RealSocket(connected), peer

    def accept_plain(self) -> tuple[socket.socket, tuple[str, int]]:
        """Like `accept`, for `tls`, which creates another kind of socket."""
        connected, peer = self._socket.accept()
        return connected, (peer[0], peer[1])

    def fileno(self) -> int:
        """The descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def connect(host: str, port: int, timeout_s: float) -> RealSocket:
    """Connect within `timeout_s` seconds; raises OSError. Name resolution may take longer."""
    try:
        return RealSocket(socket.create_connection((host, port), timeout_s))
    except UnicodeError as error:
        raise _no_name(host, error) from None


def look_up(host: str, port: int) -> str:
    """Resolve a host to its first address, which may take many seconds; raises OSError."""
    try:
        address: str = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[assignment]
    except UnicodeError as error:
        raise _no_name(host, error) from None
    return address


def own_address() -> bytes:
    """Returns the IPv4 address of the outgoing interface, four bytes; 127.0.0.1 without one. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(OUTSIDE)
        except OSError:
            return socket.inet_aton("127.0.0.1")
        return socket.inet_aton(asking.getsockname()[0])


def _no_name(host: str, error: UnicodeError) -> OSError:
    """Convert the UnicodeError that Python raises for empty and long labels of a name."""
    return OSError(f"{host!r} is not a host name: {error}")


def begin_connect(address: str, port: int) -> RealSocket:
    """Begin to connect to an address in digits, without waiting; raises OSError on an immediate failure."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except UnicodeError as error:
        raise _no_name(address, error) from None
    family, kind, protocol, _name, place = found[0]
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        connecting.connect(place)
    except BlockingIOError:
        pass
    except OSError:
        connecting.close()
        raise
    return RealSocket(connecting)


class _WakeEvent:
    """An eventfd that is closed once no thread uses it.

    A writing thread holds a reference, so its number is neither closed nor reused meanwhile. A lock would do the same,
    but a signal handler or a forked process may wake a poller too.
    """

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        # Without a descriptor if the process had none left.
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class RealPoller:
    """Level-triggered epoll with an eventfd by which any thread ends a wait.

    Invariant: `_watched` maps every registered descriptor to its data; the eventfd is not in it.
    """

    __slots__ = ("_epoll", "_wake", "_watched")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake: _WakeEvent | None = _WakeEvent()
        self._epoll.register(self._wake.descriptor, select.EPOLLIN)
        self._watched: dict[int, object] = {}

    def register(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Watch a socket."""
        self._watched[key.fileno()] = data
        self._epoll.register(key.fileno(), _mask(read=read, write=write))

    def modify(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Change the watched conditions."""
        self._watched[key.fileno()] = data
        self._epoll.modify(key.fileno(), _mask(read=read, write=write))

    def unregister(self, key: Socket | Listener) -> None:
        """Stop watching a socket; call this before it is closed."""
        self._watched.pop(key.fileno(), None)
        self._epoll.unregister(key.fileno())

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        """Wait up to `timeout` seconds; returns (data, readable, writable) of every ready socket."""
        ready: list[tuple[object, bool, bool]] = []
        wake = self._wake
        for descriptor, events in self._epoll.poll(timeout):
            if wake is not None and descriptor == wake.descriptor:
                os.eventfd_read(descriptor)
            elif descriptor in self._watched:
                ready.append((self._watched[descriptor], bool(events & READABLE), bool(events & select.EPOLLOUT)))
        return ready

    def wake(self) -> None:
        """Make a waiting `poll` return now; does nothing after `close`."""
        wake = self._wake
        if wake is not None:
            os.eventfd_write(wake.descriptor, 1)

    def close(self) -> None:
        """Release the descriptors; the eventfd after the last running `wake`."""
        self._epoll.close()
        self._wake = None


def _mask(*, read: bool, write: bool) -> int:
    return (select.EPOLLIN | select.EPOLLRDHUP if read else 0) | (select.EPOLLOUT if write else 0)
