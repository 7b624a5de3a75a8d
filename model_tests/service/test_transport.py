"""Connections: whole commands in pieces, answers to slow readers, and an operating system that refuses."""

from __future__ import annotations

import errno
import threading

import pytest
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.harness.topics import make_topic
from model_tests.support.broker.raw_client import pull_fields, records_of, send_fields, send_message
from model_tests.support.service import answer_of, fields_of, served, served_two

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io import transport
from longpoll_broker.io.channel import Channel
from longpoll_broker.io.transport import RECEIVE_SIZE
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime import Address, Socket
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.sockets import RealListener

MAX_OFFSET = {"topic": "T", "queueId": "0"}


def test_a_request_in_single_bytes_is_served(start_broker: StartBroker, connect: Connect) -> None:
    client = connect(start_broker().address)
    for byte in b"".join(encode(Command(RequestCode.GET_MAX_OFFSET, 77, ext_fields=MAX_OFFSET))):
        client.send_bytes(bytes((byte,)))
    reply = answer_of(client, 77)
    assert reply.code == 0


def test_a_slow_reader_gets_every_byte_in_order(start_broker: StartBroker, connect: Connect) -> None:
    """Far more than a socket takes at once: 200 answers of 60 KB asked before the first is read."""
    _broker, client = served(start_broker, connect)
    body = bytes(range(256)) * 234
    send_message(client, "T", body)
    opaques = [client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0)) for _ in range(200)]
    for opaque in opaques:
        reply = answer_of(client, opaque)
        assert [bytes(record.body) for record in records_of(reply)] == [body]


def test_silent_connections_are_closed(start_broker: StartBroker, connect: Connect) -> None:
    broker, silent = served(start_broker, connect, config=BrokerConfig(channel_idle_ms_max=1))
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


def test_files_of_new_queues_stall_no_other_connection(start_broker: StartBroker, connect: Connect) -> None:
    """Another connection is answered while one sends the first messages of many queues, in order."""
    runtime = HeldRuntime()
    files = runtime.held_files
    broker, sender, other = served_two(start_broker, connect, runtime=runtime)
    make_topic(broker.address, "T", NEW_QUEUES)
    sender.send_bytes(sends(b"x"))
    asked = other.send(RequestCode.GET_MAX_OFFSET, MAX_OFFSET)
    files.asked.set()
    assert other.reply(asked) is not None
    files.answered.set()
    queues = [fields_of(answer_of(sender, number))["queueId"] for number in range(NEW_QUEUES)]
    assert (files.made, files.is_stalled) == (NEW_QUEUES, False)
    assert queues == [str(number) for number in range(NEW_QUEUES)]


def sends(body: bytes) -> bytes:
    """A send to each queue, in one piece."""
    commands = [
        Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=send_fields("T", number), body=body)
        for number in range(NEW_QUEUES)
    ]
    return b"".join(b"".join(encode(each)) for each in commands)


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
    sender.send_bytes(sends(body))
    assert all(sender.reply(number) for number in range(NEW_QUEUES))
    assert len(left) > NEW_QUEUES * len(body) // RECEIVE_SIZE
    assert max(left) < len(body)


def test_a_refused_connection_is_accepted_when_there_is_room_again(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ACCEPT_PAUSE_S", 0.01)
    refusals = [OSError(errno.EMFILE, "Too many open files")]
    accept = RealListener.accept

    def refused_once(listener: RealListener) -> tuple[Socket, Address]:
        if refusals:
            raise refusals.pop()
        return accept(listener)

    broker = start_broker()
    monkeypatch.setattr(RealListener, "accept", refused_once)
    assert connect(broker.address).call(RequestCode.GET_MAX_OFFSET, MAX_OFFSET).code == 0
    assert not refusals
