"""Connections: whole commands in pieces, answers to slow readers, and an operating system that refuses."""

from __future__ import annotations

import errno
import threading

import pytest
from model_tests.support.service_b import answer_of
from msgspec.structs import replace

from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.io.channel import Channel
from longpoll_broker.service.io.transport import RECEIVE_SIZE
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.harness.topics import make_topic
from longpoll_broker.testing.raw_client import pull_fields, records_of, send_fields, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime import Listener, Socket
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime

MAX_OFFSET = {"topic": "T", "queueId": "0"}


def test_a_request_in_single_bytes_is_served(start_broker: StartBroker, connect: Connect) -> None:
    client = connect(start_broker().address)
    for byte in b"".join(encode(Command(RequestCode.GET_MAX_OFFSET, 77, ext_fields=MAX_OFFSET))):
        client.send_bytes(bytes((byte,)))
    reply = answer_of(client, 77)
    assert reply.code == 0


def test_a_slow_reader_gets_every_byte_in_order(start_broker: StartBroker, connect: Connect) -> None:
    """Far more than a socket takes at once: 200 answers of 60 KB asked before the first is read."""
    broker = start_broker()
    client = connect(broker.address)
    body = bytes(range(256)) * 234
    send_message(client, "T", body)
    opaques = [client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0)) for _ in range(200)]
    for opaque in opaques:
        reply = answer_of(client, opaque)
        assert [bytes(record.body) for record in records_of(reply)] == [body]


def test_silent_connections_are_closed(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(config=BrokerConfig(channel_idle_ms_max=1))
    silent = connect(broker.address)
    loop = broker.loops[0]

    def is_closed() -> bool:
        loop._idle_check_ns = 0
        loop.wake()
        silent.reply(1, 0.01)
        return silent.closed

    wait_until(is_closed)
    assert silent.closed


class HeldFiles(RealFiles):
    """The directories of topic T's queues, which come with their first files, wait for another connection.

    The first until that has asked, the one in the middle until it is answered, each for `PATIENCE_S` at most.
    """

    def __init__(self) -> None:
        self.made = 0
        self.asked, self.answered = threading.Event(), threading.Event()
        self.is_stalled = False
        """Whether the other connection was not answered while the one in the middle waited."""

    def make_directory(self, path: str) -> None:
        if "/consumequeue/T/" in path:
            self.made += 1
            if self.made == 1:
                assert self.asked.wait(PATIENCE_S)
            if self.made == NEW_QUEUES // 4:
                self.is_stalled = not self.answered.wait(PATIENCE_S)
        super().make_directory(path)


class HeldRuntime(RealRuntime):
    """A runtime with such files."""

    def __init__(self) -> None:
        super().__init__()
        self._files = self.held_files = HeldFiles()


NEW_QUEUES = 64
PATIENCE_S = 10.0


def is_stalled_by_new_queues(start_broker: StartBroker, connect: Connect) -> tuple[bool, list[str | None]]:
    """One connection sends the first messages of many queues; whether another one has to wait for most of them.

    The other asks while the first of them gets its files. Also the queues that the answers name.
    """
    runtime = HeldRuntime()
    files = runtime.held_files
    broker = start_broker(runtime=runtime)
    sender, other = connect(broker.address), connect(broker.address)
    make_topic(broker.address, "T", NEW_QUEUES)
    numbers = range(NEW_QUEUES)
    sends = [Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=send_fields("T", number)) for number in numbers]
    sender.send_bytes(b"".join(b"".join(encode(replace(each, body=b"x"))) for each in sends))
    asked = other.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    files.asked.set()
    assert other.reply(asked) is not None
    files.answered.set()
    replies = [sender.reply(number) for number in numbers]
    queues = [reply.ext_fields.get("queueId") if reply and reply.ext_fields else None for reply in replies]
    assert files.made == NEW_QUEUES
    return files.is_stalled, queues


def test_files_of_new_queues_stall_no_other_connection(start_broker: StartBroker, connect: Connect) -> None:
    is_stalled, answered = is_stalled_by_new_queues(start_broker, connect)
    assert not is_stalled
    assert answered == [str(number) for number in range(NEW_QUEUES)]


def test_reads_wait_for_requests(start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that gives way again and again has no more than one read of the loop in memory."""
    broker = start_broker()
    make_topic(broker.address, "T", NEW_QUEUES)
    body = bytes(64 * 1024)
    left: list[int] = []
    receive_into = Channel.receive_into

    def noted(channel: Channel, buffer: bytearray) -> int:
        frames = channel.connection._frames
        left.append(len(frames._chunk) - frames._start + sum(map(len, frames._waiting)))
        return receive_into(channel, buffer)

    monkeypatch.setattr(Channel, "receive_into", noted)
    sender = connect(broker.address)
    numbers = range(NEW_QUEUES)
    sends = [Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=send_fields("T", number)) for number in numbers]
    sender.send_bytes(b"".join(b"".join(encode(replace(each, body=body))) for each in sends))
    assert all(sender.reply(number) for number in numbers)
    assert len(left) > len(numbers) * len(body) // RECEIVE_SIZE
    assert max(left) < len(body)


class RefusingRuntime(RealRuntime):
    """Its listeners refuse their first connection as a process out of descriptors does."""

    def listen(self, host: str, port: int) -> Listener:
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
        return self._listener.address

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self.refused:
            self.refused = True
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


def test_a_refused_connection_is_accepted_when_there_is_room_again(start_broker: StartBroker, connect: Connect) -> None:
    """The loop pauses accepting, serves on, and comes back to the one that waits."""
    broker = start_broker(runtime=RefusingRuntime())
    assert connect(broker.address).call(RequestCode.GET_MAX_OFFSET, MAX_OFFSET).code == 0
