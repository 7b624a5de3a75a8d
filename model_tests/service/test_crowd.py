"""Crowds of bad neighbours: a port scan, slow connections, and everything oversized."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack

import pytest
from attrs import define

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.tables.topics import TopicConfig
from longpoll_broker.service.io.channel import Channel
from longpoll_broker.service.io.transport import IoLoop
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import (
    PATIENCE_S,
    RawClient,
    pull_fields,
    records_of,
    send_fields,
    send_message,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command, encode

SCAN_COUNT, SLOW_COUNT = 300, 300


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    """An embedded broker."""
    return start_broker()


@define
class Bystander:
    """A client with a topic of its own; the test decides when its next message goes round."""

    client: RawClient
    count: int = 0

    def is_served(self, count: int = 1) -> None:
        """Send and pull so many messages."""
        for _ in range(count):
            body = b"%d" % self.count
            assert send_message(self.client, "Own", body) == self.count
            (record,) = records_of(self.client.call(RequestCode.PULL_MESSAGE, pull_fields("Own", self.count)))
            assert record.body == body
            self.count += 1


@pytest.fixture
def bystander(broker: Broker, connect: Connect) -> Bystander:
    """A client that is served before the crowd comes."""
    bystander = Bystander(connect(broker.address))
    bystander.is_served()
    return bystander


def test_a_port_scan_leaves_others_served(broker: Broker, bystander: Bystander) -> None:
    """300 connections to each port, some with a word in another language; nobody waits for their end."""
    for number in range(SCAN_COUNT):
        for address in (broker.address, broker.name_server_address):
            with socket.create_connection(address) as sock:
                if number % 3 == 0:
                    sock.sendall((b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", b"SSH-2.0-x\r\n")[number % 9 // 3])
        if number % 10 == 0:
            bystander.is_served()
    bystander.is_served()


def test_many_slow_connections_leave_others_served(broker: Broker, bystander: Bystander) -> None:
    """Each of them is in the middle of a frame that it never ends."""
    whole = b"".join(encode(Command(RequestCode.GET_MAX_OFFSET, 1, ext_fields={"topic": "T", "queueId": "0"})))
    with ExitStack() as stack:
        for number in range(SLOW_COUNT):
            slow = stack.enter_context(socket.create_connection(broker.address))
            slow.sendall(whole[: 1 + number % (len(whole) - 1)])
        wait_until(lambda: broker.connection_count >= SLOW_COUNT)
        bystander.is_served(10)


def is_closed_after(client: RawClient, content: bytes) -> bool:
    """Whether the broker closes the connection, even before all of the content is sent."""
    try:
        client.send_bytes(content)
        return client.wait_closed()
    except ConnectionError:
        return True


def test_everything_oversized_leaves_others_served(broker: Broker, bystander: Bystander) -> None:
    """Frame, header, body, properties, topic, group and subscription, each answered or its connection closed."""
    huge = "x" * 1_000_000
    for frame in (
        struct.pack(">iI", 2**31 - 1, 4),
        struct.pack(">iI", 1_000, 2**24 - 1),
        struct.pack(">iI", 9_000_000, 8_999_996) + b" " * 8_999_996,
    ):
        with RawClient(broker.address) as client:
            assert is_closed_after(client, frame)
    with RawClient(broker.address) as client:
        for fields, body in (
            (send_fields("T", 0), b"x" * (5 * 1024 * 1024)),
            (send_fields("T", 0) | {"i": f"name\x01{huge}\x02"}, b"x"),
            (send_fields(huge, 0), b"x"),
        ):
            assert client.call(RequestCode.SEND_MESSAGE_V2, fields, body).code != 0
        pull = pull_fields("TBW102", 0) | {"subscription": huge, "sysFlag": "4"}
        assert client.call(RequestCode.PULL_MESSAGE, pull).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        wants = b'{"clientID":"x","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T",%b}]}]}'
        tags = b",".join(b'"%d"' % number for number in range(10_001))
        for part in (b'"subString":"%b"' % huge.encode(), b'"tagsSet":[%b]' % tags):
            assert client.call(RequestCode.HEART_BEAT, None, wants % part).code == 1
        heartbeat = b'{"clientID":"%b","consumerDataSet":[{"groupName":"%b","subscriptionDataSet":[]}]}'
        assert client.call(RequestCode.HEART_BEAT, None, heartbeat % (b"x", b"g" * 5_000_000)).code == 1
        assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
        bystander.is_served()


def test_a_connection_that_says_nothing_is_closed_in_time(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker closes a connection after its idle time; one that speaks stays."""
    monkeypatch.setattr("longpoll_broker.service.io.transport.IDLE_CHECK_S", 0.02)
    broker = start_broker(config=BrokerConfig(channel_idle_ms_max=200))
    silent, speaking = connect(broker.address), connect(broker.address)
    while not silent.closed:
        assert speaking.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
        silent.reply(1, 0.01)
    assert not speaking.closed


def test_planted_a_loop_that_waits_for_whole_frames_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one unfinished frame kept the loop, nobody else would be served."""
    original = IoLoop._receive
    was_asked = threading.Event()

    def wait_for_the_rest(self: IoLoop, channel: Channel, now_ns: int) -> int:
        has_more = original(self, channel, now_ns)
        was_asked.wait(PATIENCE_S)
        return has_more

    monkeypatch.setattr(IoLoop, "_receive", wait_for_the_rest)
    with ExitStack() as stack:
        for _number in range(4):
            slow = stack.enter_context(socket.create_connection(broker.address, PATIENCE_S))
            slow.sendall(b"\x00")
        with RawClient(broker.address) as client:
            opaque = client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            try:
                assert client.reply(opaque, 0.5) is None
            finally:
                was_asked.set()
            assert client.reply(opaque) is not None


def test_planted_a_broker_that_refuses_every_send_is_noticed(broker: Broker, bystander: Bystander) -> None:
    """The bystander is no longer served."""
    broker.topics.put(TopicConfig("Own", 0, 0))
    with pytest.raises(AssertionError, match="illegal"):
        bystander.is_served()
