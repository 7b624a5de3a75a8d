"""The client's end of a connection to a broker: it sends numbered requests and raw bytes, and receives commands.

The connection has no thread and never retries. `RawClient` and the suite's `Link` interpret the commands, and decide
which replies to wait for and how long.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from longpoll_protocol.frames import EMPTY, Buffer, Command, Connection, Serialisation, encode
from longpoll_runtime import Address, Runtime
from longpoll_runtime.services import Closeable

CONNECT_S: Final = 10.0
RECEIVE_SIZE: Final = 1 << 18
STALL_S: Final = 30.0
"""If a broker accepts no bytes for this many seconds, the connection raises TimeoutError."""


class BrokerConnection(Closeable):
    """A connection to a broker. Invariant: until `close`, the socket is registered with the poller."""

    def __init__(self, runtime: Runtime, address: Address) -> None:
        """Connect; raises OSError."""
        self.closed = False
        """Whether the peer closed the connection, after all its commands were received."""
        self.written_ns = runtime.monotonic_ns()
        """The time in ns at which the last write began."""
        self._runtime = runtime
        self._socket = runtime.connect(*address, CONNECT_S)
        self._poller = runtime.poller()
        self._poller.register(self._socket, read=True, write=False, data=self)
        self._is_open = True
        self._connection = Connection()
        self._buffer = bytearray(RECEIVE_SIZE)
        self._opaque = 0

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._poller.unregister(self._socket)
            self._poller.close()
            self._socket.close()

    @abstractmethod
    def _received(self, command: Command, read_ns: int) -> None:
        """Handle a command that was read at this time of the runtime's clock."""

    def _request(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        flag: int = 0,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> tuple[int, bytes]:
        """Returns the opaque and the bytes of a new request."""
        self._opaque += 1
        fields = None if fields is None else dict(fields)
        command = Command(code, self._opaque, flag, ext_fields=fields, body=body, serialisation=serialisation)
        return self._opaque, b"".join(encode(command))

    def send_bytes(self, content: bytes) -> None:
        """Send bytes as they are; raises OSError if the peer has closed, TimeoutError if it accepts no more.

        Nothing is read while a write waits.
        """
        rest = memoryview(content)
        self.written_ns = self._runtime.monotonic_ns()
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._wait_writable()

    def _wait_writable(self) -> None:
        self._poller.modify(self._socket, read=False, write=True, data=self)
        ready = self._poller.poll(STALL_S)
        self._poller.modify(self._socket, read=True, write=False, data=self)
        if not ready:
            raise TimeoutError(f"no bytes were taken for {STALL_S:g} s")

    def drain(self) -> None:
        """Read all commands that have arrived, without waiting; raises RemoteProtocolError for other bytes."""
        while not self.closed:
            try:
                size = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if size == 0:
                self.closed = True
                return
            self._connection.receive_data(memoryview(self._buffer)[:size])
            read_ns = self._runtime.monotonic_ns()
            while isinstance(command := self._connection.next_event(), Command):
                self._received(command, read_ns)
            if size < RECEIVE_SIZE:
                return

    def _read_until(self, is_done: Callable[[], bool], left_ns: Callable[[], float]) -> None:
        """Read until the condition holds, the connection is closed, or `left_ns` returns no more time."""
        self.drain()
        while not (is_done() or self.closed):
            wait_ns = left_ns()
            if wait_ns <= 0:
                return
            self._poller.poll(wait_ns / 1e9)
            self.drain()
