"""A server on loopback that answers each request as a test defines, for faults that real brokers do not show.

The server can answer late, never, twice, out of order or partially, send invalid bytes or its own requests, and close
the connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from model_tests.support.broker.raw_client import PATIENCE_S

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import CLOSED, Command, Connection, encode, reply
from longpoll_runtime.services import Stoppable

Handler = Callable[["Peer", Command], None]


class Peer:
    """One connection to the server; any thread may call `send`."""

    def __init__(self, connected: socket.socket, server: ScriptedServer) -> None:
        self.server = server
        self._socket = connected
        self._lock = threading.Lock()

    def send(self, *commands: Command) -> None:
        self.send_bytes(b"".join(b"".join(encode(command)) for command in commands))

    def answer(self, request: Command, code: int = 0, fields: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send(reply(request, code, ext_fields=fields, body=body))

    def send_bytes(self, content: bytes) -> None:
        with self._lock:
            self._socket.sendall(content)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)


class ScriptedServer(Stoppable):
    """Listens on its own port. Each connection has a thread, which calls `handler` with every command."""

    def __init__(self, handler: Handler) -> None:
        self.received: list[Command] = []
        self._handler = handler
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listening.getsockname()
        self.address = f"{self.host}:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        self.refuse_connections()
        self._threads[0].join(PATIENCE_S)
        self._listening.close()
        for connected in self._sockets:
            connected.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def refuse_connections(self) -> None:
        """Stop listening, as if the server were gone, but keep open connections."""
        with suppress(OSError):  # The server has already stopped listening.
            self._listening.shutdown(socket.SHUT_RDWR)

    def codes(self) -> list[int]:
        return [command.code for command in self.received]

    def _accept(self) -> None:
        while True:
            try:
                connected, _address = self._listening.accept()
            except OSError:
                return
            self._sockets.append(connected)
            thread = threading.Thread(target=self._serve, args=(connected,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        connection, peer = Connection(), Peer(connected, self)
        try:
            while content := connected.recv(65_536):
                connection.receive_data(content)
                for command in commands(connection):
                    if command.code == RequestCode.HEART_BEAT and command.is_one_way:
                        # A heartbeat of a producer needs no answer.
                        continue
                    self.received.append(command)
                    self._handler(peer, command)
        except OSError:
            return


def commands(connection: Connection) -> Iterable[Command]:
    while isinstance(event := connection.next_event(), Command):
        yield event
    assert event is not CLOSED
