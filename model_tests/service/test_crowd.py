"""Crowds of bad neighbours: a port scan, a thousand slow connections, and everything oversized, all at once."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from longpoll_broker.config import BrokerConfig
from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.service.broker import Broker
from longpoll_broker.service.client import ConsumerConfig, Producer, PullConsumer, StartAt
from longpoll_broker.service.transport import IoLoop
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_broker.testing.raw_client import RawClient, send_fields
from longpoll_broker.wire.codes import RequestCode
from longpoll_broker.wire.command import Command, encode

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
SCAN_COUNT, SLOW_COUNT = 300, 1_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """An embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as started:
        yield started


@contextmanager
def being_served(broker: Broker) -> Iterator[None]:
    """Before, during and after the block a client sends a message and a group receives it."""
    name_server = "{}:{}".format(*broker.name_server_address)
    with ExitStack() as stack:
        topic = stack.enter_context(new_topic(name_server, 1))
        producer = stack.enter_context(Producer(RUNTIME, name_server))
        consumer = stack.enter_context(PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.FIRST)))
        consumer.subscribe(topic)
        consumer.start()
        for text in (b"before", b"during", b"after"):
            producer.send(topic, text)
            (message,) = consumer.poll(PATIENCE_S)
            assert message.body == text
            if text == b"before":
                yield


def scan(address: tuple[str, int]) -> None:
    """Connect and go, some with a word in another language."""
    for number in range(SCAN_COUNT):
        with socket.create_connection(address, PATIENCE_S) as sock:
            if number % 3 == 0:
                sock.sendall((b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", b"SSH-2.0-x\r\n")[number % 9 // 3])


def test_a_port_scan_leaves_others_served(broker: Broker) -> None:
    """Of both ports, while a group consumes."""
    with being_served(broker):
        scan(broker.address)
        scan(broker.name_server_address)


def test_a_thousand_slow_connections_leave_others_served(broker: Broker) -> None:
    """Each of them is in the middle of a frame that it never ends."""
    whole = b"".join(encode(Command(RequestCode.GET_MAX_OFFSET, 1, ext_fields={"topic": "T", "queueId": "0"})))
    with being_served(broker), ExitStack() as stack:
        for number in range(SLOW_COUNT):
            slow = stack.enter_context(socket.create_connection(broker.address, PATIENCE_S))
            slow.sendall(whole[: 1 + number % (len(whole) - 1)])
        with RawClient(broker.address) as client:
            assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0


def is_closed_after(client: RawClient, content: bytes) -> bool:
    """Whether the broker closes the connection, even before all of the content is sent."""
    try:
        client.send_bytes(content)
        return client.wait_closed()
    except ConnectionError:
        return True


def test_everything_oversized_leaves_others_served(broker: Broker) -> None:
    """Frame, header, body, properties, topic, group and subscription, each answered or its connection closed."""
    huge = "x" * 1_000_000
    with being_served(broker):
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
            heartbeat = b'{"clientID":"%b","consumerDataSet":[{"groupName":"%b","subscriptionDataSet":[]}]}'
            assert client.call(RequestCode.HEART_BEAT, None, heartbeat % (b"x", b"g" * 5_000_000)).code == 1
            assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0


def test_a_connection_that_says_nothing_is_closed_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its idle time; one that speaks stays."""
    monkeypatch.setattr("longpoll_broker.service.transport.IDLE_CHECK_S", 0.02)
    config = BrokerConfig(channel_idle_ms_max=200)
    with (
        Broker.start(RUNTIME, str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as broker,
        RawClient(broker.address) as silent,
        RawClient(broker.address) as speaking,
    ):
        while not silent.closed:
            assert speaking.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
            silent.reply(1, 0.01)
        assert not speaking.closed


def test_planted_a_loop_that_waits_for_whole_frames_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one unfinished frame kept the loop, nobody else would be served."""
    original = IoLoop._receive

    def wait_for_the_rest(self: IoLoop, channel: object) -> None:
        original(self, channel)  # type: ignore[arg-type] # as it is called
        self._runtime.sleep(0.005)

    monkeypatch.setattr(IoLoop, "_receive", wait_for_the_rest)
    monkeypatch.setattr("longpoll_broker.testing.raw_client.PATIENCE_S", 0.5)
    with ExitStack() as stack:
        for _number in range(400):
            slow = stack.enter_context(socket.create_connection(broker.address, PATIENCE_S))
            slow.sendall(b"\x00")
        with RawClient(broker.address) as client:
            opaque = client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            assert client.reply(opaque, 0.5) is None
