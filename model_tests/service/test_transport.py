"""Connections: whole commands in pieces, answers to slow readers, and an operating system that refuses."""

from __future__ import annotations

import errno

from longpoll_broker.config import BrokerConfig
from longpoll_broker.runtime import Listener, Socket
from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import pull_fields, records_of, send_message
from longpoll_broker.wire.codes import RequestCode
from longpoll_broker.wire.command import Command, encode

MAX_OFFSET = {"topic": "T", "queueId": "0"}


def test_a_request_in_single_bytes_is_served(start_broker: StartBroker, connect: Connect) -> None:
    """However the stream is cut."""
    client = connect(start_broker().address)
    for byte in b"".join(encode(Command(RequestCode.GET_MAX_OFFSET, 77, ext_fields=MAX_OFFSET))):
        client.send_bytes(bytes((byte,)))
    reply = client.reply(77)
    assert reply is not None
    assert reply.code == 0


def test_a_slow_reader_gets_every_byte_in_order(start_broker: StartBroker, connect: Connect) -> None:
    """Far more than a socket takes at once: 200 answers of 60 KB asked before the first is read."""
    broker = start_broker()
    client = connect(broker.address)
    body = bytes(range(256)) * 234
    send_message(client, "T", body)
    opaques = [client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0)) for _ in range(200)]
    for opaque in opaques:
        reply = client.reply(opaque)
        assert reply is not None
        assert [bytes(record.body) for record in records_of(reply)] == [body]


def test_silent_connections_are_closed(start_broker: StartBroker, connect: Connect) -> None:
    """After the idle time; the look for them, every ten seconds, is brought forward here."""
    broker = start_broker(config=BrokerConfig(channel_idle_ms_max=1))
    silent = connect(broker.address)
    loop = broker._loops[0]

    def is_closed() -> bool:
        loop._idle_check_ns = 0
        loop.wake()
        silent._read(0.01)
        return silent.closed

    wait_until(is_closed)
    assert silent.closed


class RefusingRuntime(RealRuntime):
    """Its listeners refuse their first connection as a process out of descriptors does."""

    def listen(self, host: str, port: int) -> Listener:
        """A listener whose first accept fails."""
        return RefusingOnce(super().listen(host, port))


class RefusingOnce:
    """A listener that fails once."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.refused = False
        self.fileno = listener.fileno
        self.close = listener.close

    @property
    def address(self) -> tuple[str, int]:
        """The real one's."""
        return self._listener.address

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Fail, then accept."""
        if not self.refused:
            self.refused = True
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


def test_a_refused_connection_is_accepted_when_there_is_room_again(start_broker: StartBroker, connect: Connect) -> None:
    """The loop pauses accepting, serves on, and comes back to the one that waits."""
    broker = start_broker(runtime=RefusingRuntime())
    assert connect(broker.address).call(RequestCode.GET_MAX_OFFSET, MAX_OFFSET).code == 0
