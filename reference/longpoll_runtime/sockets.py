"""Non-blocking stream sockets over the operating system, and an epoll poller that any thread can wake.

Leaves out frames and connections (`io.transport`), and TLS (`tls`).
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
"""Connections the kernel may hold for us; Java's default for Netty here is 1024 as well."""

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
"""Segments that congestion control lets a peer send unasked over a network (RFC 6928)."""

OUTSIDE: Final = ("192.0.2.1", 9)
"""An address that nobody has (RFC 5737), by whose route one sees which interface leads out."""
READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
"""What makes a socket worth reading: bytes, or an end that only a read will show."""


class RealSocket:
    """A connected, non-blocking TCP socket; calls go straight to the operating system's."""

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
        """Send some of the bytes of the parts, in order; raises BlockingIOError when none fit."""
        return self._socket.sendmsg(parts)

    def acknowledge(self) -> None:
        """Have the kernel acknowledge now what was read, if nothing unread waits."""
        # Not kept by the kernel: the next answer to the peer puts acknowledgements off again.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def arrived(self) -> tuple[int, int]:
        """How many bytes had come; and how many more, at least, the peer may send unasked.

        A peer keeps a segment back that does not fit into the rest of the window, so one is taken off. A segment is no
        longer than half the window. On this machine nothing else limits it, for acknowledgements wait for nobody.
        """
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        segment, usual_window, segment_max, came, window = _INFO.unpack(info.ljust(_INFO_SIZE, b"\0"))
        # A kernel that does not tell its window: it is the usual one, or what is left of it, which is over half.
        window = window or usual_window // 2
        room = window - max(segment, min(segment_max, window // 2))
        if self._is_local is None:
            self._is_local = self._socket.getpeername()[0] == self._socket.getsockname()[0]
        return came, max(room if self._is_local else min(room, FLIGHT * segment), 0)

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes. Raises OSError."""
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
        """Host and port it is bound to."""
        return self._address

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """A connection and its peer's address; raises BlockingIOError when none waits."""
        connected, peer = self.accept_plain()
        return RealSocket(connected), peer

    def accept_plain(self) -> tuple[socket.socket, tuple[str, int]]:
        """The same for `tls`, which has its own kind of socket."""
        connected, peer = self._socket.accept()
        return connected, (peer[0], peer[1])

    def fileno(self) -> int:
        """The descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def connect(host: str, port: int, timeout_s: float) -> RealSocket:
    """Connect within `timeout_s` seconds; raises OSError. The look-up of a name may take longer."""
    try:
        return RealSocket(socket.create_connection((host, port), timeout_s))
    except UnicodeError as error:
        raise _no_name(host, error) from None


def look_up(host: str, port: int) -> str:
    """The first address of a host, which may take many seconds; raises OSError when it has none, or is no name."""
    try:
        address: str = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[assignment]
    except UnicodeError as error:
        raise _no_name(host, error) from None
    return address


def own_address() -> bytes:
    """The IPv4 address of the interface that leads out, four bytes; 127.0.0.1 where none does. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(OUTSIDE)
        except OSError:
            return socket.inet_aton("127.0.0.1")
        return socket.inet_aton(asking.getsockname()[0])


def _no_name(host: str, error: UnicodeError) -> OSError:
    """Python's codec of names refuses empty and long labels by an error of its own kind."""
    return OSError(f"{host!r} is not a host name: {error}")


def begin_connect(address: str, port: int) -> RealSocket:
    """Begin to connect to an address in digits, never waiting; raises OSError when it fails at once."""
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

    A thread that writes to it holds a reference. So its number is never closed, nor given to another file, meanwhile.
    A lock would do the same, but a signal handler or a forked process may wake a poller too.
    """

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        # Without a descriptor when the process had none left.
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
        wake = self._wake
        for descriptor, events in self._epoll.poll(timeout):
            if wake is not None and descriptor == wake.descriptor:
                os.eventfd_read(descriptor)
            elif descriptor in self._watched:
                ready.append((self._watched[descriptor], bool(events & READABLE), bool(events & select.EPOLLOUT)))
        return ready

    def wake(self) -> None:
        """Make a waiting `poll` return now; after `close` it does nothing."""
        wake = self._wake
        if wake is not None:
            os.eventfd_write(wake.descriptor, 1)

    def close(self) -> None:
        """Release the descriptors, the eventfd after the last `wake` that is under way."""
        self._epoll.close()
        self._wake = None


def _mask(*, read: bool, write: bool) -> int:
    return (select.EPOLLIN | select.EPOLLRDHUP if read else 0) | (select.EPOLLOUT if write else 0)
