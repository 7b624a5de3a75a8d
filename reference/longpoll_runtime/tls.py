"""TLS on the same port as plain connections: a connection whose first byte is a handshake's is TLS, any other is not.

RocketMQ's own frames begin with a length below 16 MiB, so their first byte is 0 and never 22. Leaves out asking
clients for certificates, and which addresses are listened on.

Source: `NettyRemotingServer.HandshakeHandler`, `TlsMode.PERMISSIVE`, `TlsHelper.java` of 4.9.7.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from longpoll_runtime.interface import Buffer, Listener, Socket
from longpoll_runtime.sockets import RealListener, RealSocket
from longpoll_spec.errors import ConfigError

HANDSHAKE: Final = 0x16
"""`HANDSHAKE_MAGIC_CODE`: the first byte of a TLS handshake record."""
RECORD_SIZE_MAX: Final = 16 * 1024
"""Most bytes of one record: a read with room for this many leaves nothing in the library, where no poller sees it."""


def server_context(certificate_file: str, key_file: str) -> ssl.SSLContext:
    """What a server shows its clients; raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate_file, key_file)
    except OSError as error:
        raise ConfigError(
            f"certificate {certificate_file} and key {key_file} cannot be used: {error}; give both as PEM"
        ) from None
    return context


def client_context(authority_file: str) -> ssl.SSLContext:
    """What a client trusts: the certificates in the file, for the host that it connects to; raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=authority_file)
    except OSError as error:
        raise ConfigError(f"certificates {authority_file} cannot be used: {error}; give them as PEM") from None


class TlsSocket:
    """A non-blocking TLS connection. Its lock is held for each call: the library is not for two threads at once."""

    def __init__(self, secured: ssl.SSLSocket) -> None:
        self._socket = secured
        self._lock = threading.Lock()
        self.fileno = secured.fileno

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive whole records into the buffer; 0 at end of stream; raises BlockingIOError when nothing is there."""
        view = memoryview(buffer)
        size = 0
        with self._lock:
            while len(view) - size >= RECORD_SIZE_MAX or not size:
                try:
                    received = self._socket.recv_into(view[size:])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    # A handshake's few bytes always fit into a new socket, so waiting to read is enough.
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
        """Send some of the bytes; raises BlockingIOError when none fit."""
        with self._lock:
            try:
                return self._socket.send(content)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some of the bytes of the parts; small ones leave in one record. Raises BlockingIOError."""
        sizes = accumulate(len(part) for part in parts)
        count = next((number for number, size in enumerate(sizes, 1) if size >= RECORD_SIZE_MAX), len(parts))
        return self.send(b"".join(parts[:count]) if count > 1 else parts[0])

    def close(self) -> None:
        """Close both directions."""
        with self._lock:
            self._socket.close()


class DetectingSocket:
    """An accepted connection that is not known to be TLS or plain until its first byte is there."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        self._connected = connected
        self._context = context
        self._inner: Socket = RealSocket(connected)
        self._is_known = False
        self.fileno = connected.fileno

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive; the first time find out what the peer speaks."""
        if not self._is_known:
            first = self._connected.recv(1, socket.MSG_PEEK)
            self._is_known = True
            if first and first[0] == HANDSHAKE:
                secured = self._context.wrap_socket(self._connected, server_side=True, do_handshake_on_connect=False)
                self._inner = TlsSocket(secured)
                self.fileno = secured.fileno
        return self._inner.recv_into(buffer)

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes; raises BlockingIOError when none fit."""
        return self._inner.send(content)

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some of the bytes of the parts; raises BlockingIOError when none fit."""
        return self._inner.send_parts(parts)

    def close(self) -> None:
        """Close both directions."""
        self._inner.close()


class DetectingListener:
    """A listener whose connections may be TLS or plain."""

    def __init__(self, listener: RealListener, context: ssl.SSLContext) -> None:
        self._listener = listener
        self._context = context

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it is bound to."""
        return self._listener.address

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """A connection and its peer's address; raises BlockingIOError when none waits."""
        connected, peer = self._listener.accept_plain()
        return DetectingSocket(connected, self._context), peer

    def fileno(self) -> int:
        """The descriptor."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def listen(host: str, port: int, context: ssl.SSLContext) -> Listener:
    """Listen for both kinds of connections; raises OSError."""
    return DetectingListener(RealListener(host, port), context)


def connect(host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> TlsSocket:
    """Connect and shake hands within `timeout_s` seconds; raises OSError, also when the certificate is not trusted."""
    connected = socket.create_connection((host, port), timeout_s)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = context.wrap_socket(connected, server_hostname=host)
    except OSError:
        connected.close()
        raise
    secured.setblocking(False)
    return TlsSocket(secured)
