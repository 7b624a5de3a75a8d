"""The real runtime: the operating system's clock, and its sockets with and without TLS. Scheduling points do nothing.

A test may subclass `RealRuntime` to act at a scheduling point. For threads see `threads`, and for files `files`.

RocketMQ's frames begin with a length below 16 MiB, so their first byte is 0, and never 22, the first byte of TLS. If
TLS is required, a plain connection is refused before any of its bytes is served.

Sources: `NettyRemotingServer.HandshakeHandler`, `TlsMode.java`, `TlsHelper.java` of 4.9.7.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NoReturn

from attrs import frozen

from longpoll_runtime import (
    Buffer,
    Condition,
    Event,
    Files,
    Listener,
    Lock,
    PlainSocket,
    Poller,
    Queue,
    Socket,
    Thread,
)
from longpoll_runtime.files import RealFiles
from longpoll_runtime.logs import event
from longpoll_runtime.threads import Died, RealCondition, RealEvent, RealQueue, spawn, when_forked
from longpoll_spec.errors import ConfigError

ACCEPT_BACKLOG: Final = 1024
"""Maximum connections that the kernel queues; Java's default for Netty is also 1024."""

# The fields of `struct tcp_info` (linux/tcp.h) that are read, in host byte order. A kernel before 6.2 does not report
# this end's window.
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
"""The number of segments that congestion control lets a peer send at once over a network (RFC 6928)."""

OUTSIDE: Final = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). The route to this address shows the outgoing network interface."""
READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
"""The epoll conditions for reading a socket: bytes, or an end that only a read reveals."""


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
        """Make the kernel acknowledge the read bytes now, unless unread bytes wait."""
        # This setting does not last: after the next response to the peer, the kernel delays acknowledgements again.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def arrived(self) -> tuple[int, int]:
        """Return the number of arrived bytes, and a lower bound of the number that the peer may send next.

        The bound is the window minus one segment, because a peer holds back a segment that does not fit the window, and
        a segment is at most half the window. A peer on another machine may send at most `FLIGHT` segments.
        """
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        segment, usual_window, segment_max, came, window = _INFO.unpack(info.ljust(_INFO_SIZE, b"\0"))
        # If the kernel does not report the window, assume half of the usual window, because the window is never
        # smaller.
        window = window or usual_window // 2
        room = window - max(segment, min(segment_max, window // 2))
        if self._is_local is None:
            self._is_local = self._socket.getpeername()[0] == self._socket.getsockname()[0]
        return came, max(room if self._is_local else min(room, FLIGHT * segment), 0)

    def end_sending(self) -> None:
        """End sending. Raises OSError."""
        self._socket.shutdown(socket.SHUT_WR)


class RealListener:
    """A bound, non-blocking TCP socket, which refuses connections until `listen`."""

    __slots__ = ("_address", "_socket")

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.setblocking(False)
        except (OSError, OverflowError):
            bound.close()
            raise
        self._socket = bound
        self._address: tuple[str, int] = bound.getsockname()[:2]

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        return self._address

    def listen(self) -> None:
        """Accept connections from now on. Raises OSError if another socket listens at the address."""
        self._socket.listen(ACCEPT_BACKLOG)

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Returns a connection and its peer's address; raises BlockingIOError if no connection waits."""
        connected, peer = self.accept_plain()
        return RealSocket(connected), peer

    def accept_plain(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return a connection as `accept` does, but as Python's socket object, because `ssl` needs such an object."""
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
    """Return the IPv4 address of the outgoing interface as 4 bytes; 127.0.0.1 if none exists. Sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(OUTSIDE)
        except OSError:
            return socket.inet_aton("127.0.0.1")
        return socket.inet_aton(asking.getsockname()[0])


def _no_name(host: str, error: UnicodeError) -> OSError:
    """Convert the UnicodeError that Python raises for an empty or too long label of a host name."""
    return OSError(f"{host!r} is not a host name: {error}")


def begin_connect(address: str, port: int) -> RealSocket:
    """Begin to connect to a numeric address, without waiting; raises OSError on an immediate failure."""
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
    """An eventfd that is closed when no thread uses it any more.

    A writing thread holds a reference, so the descriptor's number is neither closed nor reused meanwhile. A lock is not
    used, because a signal handler or a forked process may wake a poller too.
    """

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        # `descriptor` is missing if the process had no descriptor left for the eventfd.
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class RealPoller:
    """Level-triggered epoll, with an eventfd by which any thread ends a wait.

    Invariant: `_watched` maps every registered descriptor except the eventfd to its data. `ring` writes to the eventfd.
    """

    __slots__ = ("_epoll", "_ring", "_wake", "_watched")

    def __init__(self, ring: Callable[[int, int], None] = os.eventfd_write) -> None:
        self._ring = ring
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
        """Stop watching a socket; call this method before you close the socket."""
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
            self._ring(wake.descriptor, 1)

    def close(self) -> None:
        """Release the descriptors; the eventfd is closed after the last running `wake`."""
        self._epoll.close()
        self._wake = None


def _mask(*, read: bool, write: bool) -> int:
    return (select.EPOLLIN | select.EPOLLRDHUP if read else 0) | (select.EPOLLOUT if write else 0)


log = logging.getLogger(__name__)

PLAIN_REFUSED: Final = "a plain connection is refused, for TLS is required here"
HANDSHAKE: Final = 0x16
"""`HANDSHAKE_MAGIC_CODE`: the first byte of a TLS handshake record."""
RECORD_SIZE_MAX: Final = 16 * 1024
"""Maximum bytes of one TLS record. A read with room for a whole record leaves no bytes in the TLS library, where the
poller does not see them."""


@frozen
class ServerTls:
    """TLS settings of a server."""

    context: ssl.SSLContext
    is_required: bool = False
    """`TlsMode.ENFORCING`: refuse plain connections. False means `PERMISSIVE`: serve plain connections too."""


def server_context(certificate_file: str, key_file: str, client_authority_file: str | None = None) -> ssl.SSLContext:
    """Create a server's TLS context; raises ConfigError.

    With `client_authority_file`, clients need a certificate from these authorities (`tls.server.need.client.auth`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A connection may have only one handshake, because a handshake costs the server much more than its client.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_own(context, certificate_file, key_file)
    if client_authority_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_authority_file)
        except OSError as error:
            raise ConfigError(
                f"certificates {client_authority_file} cannot be used: {error}; use a file in PEM format"
            ) from None
    return context


def client_context(
    authority_file: str, certificate_file: str | None = None, key_file: str | None = None
) -> ssl.SSLContext:
    """Create a client's TLS context that trusts the file's certificates and checks the host name; raises ConfigError.

    `certificate_file` and `key_file` are for a server that requests a client certificate.
    """
    try:
        context = ssl.create_default_context(cafile=authority_file)
    except OSError as error:
        raise ConfigError(f"certificates {authority_file} cannot be used: {error}; use a file in PEM format") from None
    if certificate_file is not None:
        _load_own(context, certificate_file, key_file)
    return context


def _load_own(context: ssl.SSLContext, certificate_file: str, key_file: str | None) -> None:
    """Load the certificate and key of this end of the connection from two PEM files.

    Raises ConfigError if a file cannot be used.
    """
    try:
        context.load_cert_chain(certificate_file, key_file)
    except OSError as error:
        raise ConfigError(
            f"certificate {certificate_file} and key {key_file} cannot be used: {error}; use two PEM files"
        ) from None


class TlsSocket:
    """A non-blocking TLS connection. Each method holds the socket's lock, as the TLS library is not thread-safe."""

    def __init__(self, secured: ssl.SSLSocket) -> None:
        self._socket = secured
        self._lock = threading.Lock()
        self.fileno = secured.fileno

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive whole records into the buffer; returns 0 at the end of the stream.

        Raises BlockingIOError if no data has arrived.
        """
        view = memoryview(buffer)
        size = 0
        with self._lock:
            while len(view) - size >= RECORD_SIZE_MAX or not size:
                try:
                    received = self._socket.recv_into(view[size:])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    # The few bytes of a handshake always fit a new socket, so waiting for input is enough.
                    break
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return size
                if received == 0:
                    return size
                size += received
        if not size:
            raise BlockingIOError
        return size

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes; raises BlockingIOError if nothing fits."""
        with self._lock:
            try:
                return self._socket.send(content)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some bytes of the parts; small parts share a TLS record. Raises BlockingIOError if nothing fits."""
        sizes = accumulate(len(part) for part in parts)
        count = next((number for number, size in enumerate(sizes, 1) if size >= RECORD_SIZE_MAX), len(parts))
        return self.send(b"".join(parts[:count]) if count > 1 else parts[0])

    def close(self) -> None:
        """Close both directions."""
        with self._lock:
            self._socket.close()


class DetectingSocket:
    """An accepted connection that becomes TLS or plain with its first byte."""

    def __init__(self, connected: socket.socket, tls: ServerTls, peer: tuple[str, int]) -> None:
        self._connected = connected
        self._tls = tls
        self._peer = peer
        self._inner: Socket = RealSocket(connected)
        self._is_known = False
        self.fileno = connected.fileno

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive into the buffer, after detecting TLS; raises ConnectionRefusedError if required TLS is missing."""
        if not self._is_known:
            first = self._connected.recv(1, socket.MSG_PEEK)
            self._is_known = True
            if first and first[0] == HANDSHAKE:
                context = self._tls.context
                secured = context.wrap_socket(self._connected, server_side=True, do_handshake_on_connect=False)
                self._inner = TlsSocket(secured)
                self.fileno = secured.fileno
            elif first and self._tls.is_required:
                self._refuse()
        return self._inner.recv_into(buffer)

    def _refuse(self) -> NoReturn:
        peer = "{}:{}".format(*self._peer)
        log.warning("%s: %s", peer, PLAIN_REFUSED, extra=event("connection_refused", peer=peer, reason=PLAIN_REFUSED))
        raise ConnectionRefusedError(errno.ECONNREFUSED, PLAIN_REFUSED)

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes; raises BlockingIOError if nothing fits."""
        return self._inner.send(content)

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some bytes of the parts; raises BlockingIOError if nothing fits."""
        return self._inner.send_parts(parts)

    def close(self) -> None:
        """Close both directions."""
        self._inner.close()


class DetectingListener:
    """A listener for TLS and plain connections."""

    def __init__(self, listener: RealListener, tls: ServerTls) -> None:
        self._listener = listener
        self._tls = tls

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        return self._listener.address

    def listen(self) -> None:
        """Accept connections from now on. Raises OSError if another socket listens at the address."""
        self._listener.listen()

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Returns a connection and its peer's address; raises BlockingIOError if no connection waits."""
        connected, peer = self._listener.accept_plain()
        return DetectingSocket(connected, self._tls, peer), peer

    def fileno(self) -> int:
        """The descriptor."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def connect_tls(host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> TlsSocket:
    """Connect and shake hands within `timeout_s` seconds; raises OSError, for example for an untrusted certificate."""
    connected = socket.create_connection((host, port), timeout_s)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = context.wrap_socket(connected, server_hostname=host)
    except OSError:
        connected.close()
        raise
    secured.setblocking(False)
    return TlsSocket(secured)


class RealRuntime:
    """The `Runtime` for production.

    With `server_tls` every listener accepts TLS connections, and plain connections unless `server_tls` forbids them.
    With `client_tls` every outgoing connection uses TLS. A thread that ends by an exception ends the process with exit
    code 70, or calls `thread_died`, if it is given, with the thread's name and the exception.
    """

    def __init__(
        self,
        *,
        server_tls: ServerTls | ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        thread_died: Died | None = None,
    ) -> None:
        self._thread_died = thread_died
        self._server_tls = ServerTls(server_tls) if isinstance(server_tls, ssl.SSLContext) else server_tls
        self._client_tls = client_tls
        self._files = RealFiles()
        self.monotonic_ns: Callable[[], int] = time.monotonic_ns

    process_id = staticmethod(os.getpid)
    when_forked = staticmethod(when_forked)

    @property
    def files(self) -> Files:
        """The file layer."""
        return self._files

    def unix_ms(self) -> int:
        """Returns wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    def lock(self) -> Lock:
        """Create a lock."""
        return threading.Lock()

    def condition(self) -> Condition:
        """Create a condition variable with its lock."""
        return RealCondition(threading.Lock())

    def event(self) -> Event:
        """Create a flag that is not set."""
        return RealEvent()

    def queue(self, capacity: int) -> Queue[Any]:
        """Create a queue for up to `capacity` items."""
        return RealQueue(capacity)

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread that runs `target`, and pass its exceptions to `thread_died`."""
        return spawn(name, target, self._thread_died)

    def bind(self, host: str, port: int) -> Listener:
        """Reserve an address for a listener; port 0 picks a free one. Raises OSError if the address is in use."""
        listener = RealListener(host, port)
        return listener if self._server_tls is None else DetectingListener(listener, self._server_tls)

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect and return a non-blocking socket. Raises OSError."""
        if self._client_tls is not None:
            return connect_tls(host, port, timeout_s, self._client_tls)
        return connect(host, port, timeout_s)

    def look_up(self, host: str, port: int) -> str:
        """Resolve a host to its first address. Raises OSError."""
        return look_up(host, port)

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect without waiting. Raises OSError."""
        return begin_connect(address, port)

    def poller(self) -> Poller:
        """Create a poller."""
        return RealPoller()

    def memory_size(self) -> int:
        """Returns the machine's physical memory, bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        """The TLS context of outgoing connections."""
        return self._client_tls

    def identity(self) -> bytes:
        """Returns the address of the outgoing interface, and four random bytes."""
        return own_address() + os.urandom(4)

    def step(self, action: str) -> None:
        """Do nothing, because production code does not stop at scheduling points."""
