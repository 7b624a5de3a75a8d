"""Sends requests to a name server, one at a time on one connection.

After a failure, the next request connects again. If an account is set, every request is signed. A name server with
accounts refuses unsigned requests unless the sender's address is allow-listed. Requests: see `registrar`.

Source: `BrokerOuterAPI.java` 4.9.7, `newAclRPCHook` 5.5.
"""

from __future__ import annotations

import contextlib
from typing import Final

from attrs import define, field

from longpoll_broker.errors import BrokerError
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames import CLOSED, EMPTY, NEED_DATA, Buffer, Command, Connection, encode
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Address, Poller, Runtime, Socket
from longpoll_spec.errors import ConfigError

ASK_S: Final = 3.0
"""Time limit for an answer, seconds."""
RECEIVE_SIZE: Final = 64 * KIB


class PeerError(BrokerError):
    """A peer did not answer, or refused the request; the message names the peer and the reason."""


@define(slots=True, eq=False)
class PeerClient:
    """A connection to one peer, used by one thread. Another thread may call `give_up` to end a wait."""

    runtime: Runtime
    address: Address
    access_key: str = ""
    """The account that signs the requests; empty if the requests are not signed."""
    secret_key: str = field(default="", repr=False)
    _poller: Poller = field(init=False)
    _socket: Socket | None = field(default=None, init=False)
    _connection: Connection = field(factory=Connection, init=False)
    _opaque: int = field(default=0, init=False)
    _is_over: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._poller = self.runtime.poller()

    def ask(self, code: int, fields: dict[str, str] | None = None, body: Buffer = EMPTY) -> Command:
        """Send a request and return its successful answer; raises PeerError, RemoteProtocolError and OSError."""
        self._opaque += 1
        request = Command(code, self._opaque, ext_fields=self._signed(fields, body), body=body)
        is_answered = False
        try:
            found = self._ask(request)
            is_answered = True
        finally:
            if not is_answered:
                self._disconnect()
        if found.code != ResponseCode.SUCCESS:
            raise PeerError(f"{self} refuses request {code}: {found.code} {(found.remark or '')[:200]}")
        return found

    def tell(self, code: int, fields: dict[str, str]) -> None:
        """Send a request without waiting for its answer. Does nothing without a connection, and ignores errors."""
        self._opaque += 1
        if self._socket is not None:
            with contextlib.suppress(OSError):
                request = Command(code, self._opaque, ext_fields=self._signed(fields, EMPTY))
                self._socket.send(b"".join(encode(request)))

    def _signed(self, fields: dict[str, str] | None, body: Buffer) -> dict[str, str] | None:
        if not self.access_key:
            return fields
        named = {**(fields or {}), ACCESS_KEY: self.access_key}
        return {**named, SIGNATURE: sign(named, body, self.secret_key)}

    def _ask(self, request: Command) -> Command:
        socket = self._socket
        if socket is None:
            socket = self.runtime.connect(*self.address, ASK_S)
            self._socket, self._connection = socket, Connection()
            self._poller.register(socket, read=True, write=True, data=None)
        rest = b"".join(encode(request))
        received = bytearray(RECEIVE_SIZE)
        deadline_ns = self.runtime.monotonic_ns() + int(ASK_S * 1e9)
        while True:
            event = self._connection.next_event()
            if isinstance(event, Command):
                if event.is_response and event.opaque == request.opaque:
                    return event
                continue
            if event is CLOSED:
                raise PeerError(f"{self} has closed the connection")
            assert event is NEED_DATA
            left_ns = deadline_ns - self.runtime.monotonic_ns()
            if left_ns <= 0 or self._is_over:
                raise PeerError(f"{self} does not answer request {request.code}")
            try:
                while rest:
                    rest = rest[socket.send(rest) :]
            except BlockingIOError:
                pass
            self._poller.modify(socket, read=True, write=bool(rest), data=None)
            self._poller.poll(left_ns / 1e9)
            self._receive(socket, received)

    def _receive(self, socket: Socket, received: bytearray) -> None:
        try:
            size = socket.recv_into(received)
        except BlockingIOError:
            return
        if size:
            self._connection.receive_data(memoryview(received)[:size])
        else:
            self._connection.receive_eof()

    def _disconnect(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            self._poller.unregister(socket)
            socket.close()

    def give_up(self) -> None:
        """Make the current and all later requests fail; callable from any thread."""
        self._is_over = True
        self._poller.wake()

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        self._poller.close()

    def __str__(self) -> str:
        return "{}:{}".format(*self.address)


def address_in(text: str | None, key: str = "an address") -> Address | None:
    """Parse HOST:PORT; an empty text gives None. Raises ConfigError with the key for an invalid text."""
    if not text:
        return None
    host, _colon, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16 - 1:
        raise ConfigError(f"{key} is {text[:100]!r}; write HOST:PORT, such as 127.0.0.1:10911")
    return host.strip("[]"), int(port)
