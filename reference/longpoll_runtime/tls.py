"""TLS on the same port as plain connections: a connection is TLS if its first byte is a handshake's.

RocketMQ's frames begin with a length below 16 MiB, so their first byte is 0, never 22. If TLS is required, a plain
connection is refused before any of its bytes is served.

Source: `NettyRemotingServer.HandshakeHandler`, `TlsMode.java`, `TlsHelper.java` of 4.9.7.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NoReturn

from attrs import frozen

from longpoll_runtime.interface import Buffer, Listener, Socket
from longpoll_runtime.logs import event
from longpoll_runtime.sockets import RealListener, RealSocket
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

PLAIN_REFUSED: Final = "a plain connection is refused, for TLS is required here"
HANDSHAKE: Final = 0x16
"""`HANDSHAKE_MAGIC_CODE`: the first byte of a TLS handshake record."""
RECORD_SIZE_MAX: Final = 16 * 1024
"""Maximum bytes of one record: a read with room for this many leaves nothing in the library, hidden from the poller."""


@frozen
class ServerTls:
    """TLS settings of a server."""

    context: ssl.SSLContext
    is_required: bool = False
    """`TlsMode.ENFORCING`: refuse plain connections. False is `PERMISSIVE`: serve them too."""


def server_context(certificate_file: str, key_file: str, client_authority_file: str | None = None) -> ssl.SSLContext:
    """Create a server's context; raises ConfigError.

    With `client_authority_file`, clients need a certificate from these authorities (`tls.server.need.client.auth`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake costs the server much more than its client, so only one per connection.
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
    """Create a client's context that trusts the file's certificates and checks the host's name; raises ConfigError.

    `certificate_file` and `key_file` are shown to a server that requests a certificate.
    """
    try:
        context = ssl.create_default_context(cafile=authority_file)
    except OSError as error:
        raise ConfigError(f"certificates {authority_file} cannot be used: {error}; use a file in PEM format") from None
    if certificate_file is not None:
        _load_own(context, certificate_file, key_file)
    return context


def _load_own(context: ssl.SSLContext, certificate_file: str, key_file: str | None) -> None:
    """Load the own certificate; raises ConfigError."""
    try:
        context.load_cert_chain(certificate_file, key_file)
    except OSError as error:
        raise ConfigError(
            f"certificate {certificate_file} and key {key_file} cannot be used: {error}; use two PEM files"
        ) from None


class TlsSocket:
    """A non-blocking TLS connection. Each call takes its lock, because the library is not thread-safe."""

    def __init__(self, secured: ssl.SSLSocket) -> None:
        self._socket = secured
        self._lock = threading.Lock()
        self.fileno = secured.fileno

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive whole records into the buffer; returns 0 at the end of the stream.

        Raises BlockingIOError without data.
        """
        view = memoryview(buffer)
        size = 0
        with self._lock:
            while len(view) - size >= RECORD_SIZE_MAX or not size:
                try:
                    received = self._socket.recv_into(view[size:])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    # A handshake's few bytes always fit a new socket, so waiting to read is enough.
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
        """Send some bytes of the parts, small ones in one record. Raises BlockingIOError."""
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
        """Receive; the first call detects the protocol. Raises ConnectionRefusedError if it is not allowed."""
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

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Returns a connection and its peer's address; raises BlockingIOError if none waits."""
        connected, peer = self._listener.accept_plain()
        return DetectingSocket(connected, self._tls, peer), peer

    def fileno(self) -> int:
        """The descriptor."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def listen(host: str, port: int, tls: ServerTls) -> Listener:
    """Listen for both kinds of connections, or refuse plain ones; raises OSError."""
    return DetectingListener(RealListener(host, port), tls)


def connect(host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> TlsSocket:
    """Connect and shake hands within `timeout_s` seconds; raises OSError, also for an untrusted certificate."""
    connected = socket.create_connection((host, port), timeout_s)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = context.wrap_socket(connected, server_hostname=host)
    except OSError:
        connected.close()
        raise
    secured.setblocking(False)
    return TlsSocket(secured)
