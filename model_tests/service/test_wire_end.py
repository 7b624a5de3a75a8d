"""Common parts of both test clients: writes, reads and closed connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from model_tests.support.broker import wire_connection as connection
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.wire_connection import BrokerConnection

from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import Command, encode
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime

PUSH = b"".join(encode(Command(40, 1)))
CONTENT = bytes(range(256)) * 100_000
"""More than the sockets of both sides hold."""


class Noting(BrokerConnection):
    """Keeps the codes of what it reads."""

    def __init__(self, address: Address, *, reads: bool) -> None:
        super().__init__(RealRuntime(), address, reads_while_writing=reads)
        self.codes: list[int] = []

    def _received(self, command: Command, read_ns: int) -> None:
        assert self.written_ns <= read_ns <= self._runtime.monotonic_ns()
        self.codes.append(command.code)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connected(listening: socket.socket, *, reads: bool = True) -> tuple[Noting, socket.socket]:
    client = Noting(listening.getsockname(), reads=reads)
    return client, listening.accept()[0]


@pytest.mark.parametrize("reads", [False, True])
def test_who_is_said_to_reads_while_a_write_waits(reads: bool, listening: socket.socket) -> None:
    client, peer = connected(listening, reads=reads)
    taken = bytearray()

    def take() -> None:
        # A peer that takes at once leaves no write to wait: it begins when its push was read.
        wait_until(lambda: client.codes == [40] * reads)
        while len(taken) < len(CONTENT):
            taken.extend(peer.recv(1 << 20))

    with client, peer:
        peer.sendall(PUSH)
        thread = threading.Thread(target=take)
        thread.start()
        client.send_bytes(CONTENT)
        thread.join()
        assert taken == CONTENT
        assert client.codes == [40] * reads
        client._read_until(lambda: bool(client.codes), lambda: PATIENCE_S * 1e9)
        assert client.codes == [40]


def test_a_write_that_is_not_taken_in_time_is_a_time_out(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.01)
    client, peer = connected(listening)
    with client, peer, pytest.raises(TimeoutError, match="no bytes were taken for"):
        client.send_bytes(CONTENT)


def test_a_closed_connection_is_noted_after_what_came_before(listening: socket.socket) -> None:
    client, peer = connected(listening)
    with client:
        with peer:
            peer.sendall(PUSH)
        client._read_until(lambda: bool(client.codes), lambda: PATIENCE_S * 1e9)
        assert client.codes == [40]
        client._read_until(lambda: False, lambda: PATIENCE_S * 1e9)
        assert client.closed
    client.close()


def test_what_is_no_command_is_an_error_of_the_peers(listening: socket.socket) -> None:
    client, peer = connected(listening)
    with client, peer:
        peer.sendall(b"\xff" * 64)
        with pytest.raises(RemoteProtocolError):
            client._read_until(lambda: False, lambda: PATIENCE_S * 1e9)
