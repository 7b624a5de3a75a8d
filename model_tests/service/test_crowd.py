"""Crowds of bad neighbours: a port scan, a thousand slow connections, and everything oversized, all at once."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from attrs import define, field

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.io.channel import Channel, Parts
from longpoll_broker.service.io.processors import answer
from longpoll_broker.service.io.transport import IoLoop
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields
from longpoll_client import ConsumerConfig, Producer, PullConsumer, StartAt
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import LongpollError

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
SCAN_COUNT, SLOW_COUNT = 300, 1_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """An embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as started:
        yield started


@define
class Bystander:
    """A producer and a group of its own, whose messages go round and round on a thread."""

    round_trips_ms: list[float] = field(factory=list)
    """From each message's sending to its being consumed."""
    stopped: threading.Event = field(factory=threading.Event)
    failure: BaseException | None = None

    def run(self, producer: Producer, consumer: PullConsumer, topic: str) -> None:
        """Send a message and consume it, until stopped or not served."""
        try:
            while not self.stopped.is_set():
                body = b"%d" % len(self.round_trips_ms)
                begun_s = time.monotonic()
                producer.send(topic, body, timeout_s=PATIENCE_S)
                (message,) = consumer.poll(PATIENCE_S)
                assert message.body == body
                self.round_trips_ms.append((time.monotonic() - begun_s) * 1e3)
        except (AssertionError, ValueError, LongpollError) as error:
            self.failure = error

    def is_served(self, count: int) -> None:
        """Wait for so many more messages to go round; fails when they do not."""
        wanted = len(self.round_trips_ms) + count
        wait_until(lambda: len(self.round_trips_ms) >= wanted or self.failure is not None)
        assert self.failure is None, self.failure


@contextmanager
def being_served(broker: Broker) -> Iterator[Bystander]:
    """A bystander, whose messages go round before, during and after the block."""
    name_server = "{}:{}".format(*broker.name_server_address)
    bystander = Bystander()
    with ExitStack() as stack:
        topic = stack.enter_context(new_topic(name_server, 1))
        producer = stack.enter_context(Producer(RUNTIME, name_server))
        consumer = stack.enter_context(PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.FIRST)))
        consumer.subscribe(topic)
        consumer.start()
        thread = threading.Thread(target=bystander.run, args=(producer, consumer, topic), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(bystander.stopped.set)
        bystander.is_served(5)
        yield bystander
        bystander.is_served(5)
    times_ms = sorted(bystander.round_trips_ms)
    print(f"{len(times_ms)} messages went round, median {times_ms[len(times_ms) // 2]:.1f} ms, longest {times_ms[-1]:.0f}")  # noqa: E501, T201 - the figure  # fmt: skip


def scan(address: tuple[str, int]) -> None:
    """Connect and go, some with a word in another language."""
    for number in range(SCAN_COUNT):
        with socket.create_connection(address, PATIENCE_S) as sock:
            if number % 3 == 0:
                sock.sendall((b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", b"SSH-2.0-x\r\n")[number % 9 // 3])


def test_a_port_scan_leaves_others_served(broker: Broker) -> None:
    """Of both ports, for as long as twenty messages take, and 600 connections at least."""
    with being_served(broker) as bystander:
        wanted = len(bystander.round_trips_ms) + 20
        while len(bystander.round_trips_ms) < wanted and bystander.failure is None:
            scan(broker.address)
            scan(broker.name_server_address)
        assert bystander.failure is None


def test_a_thousand_slow_connections_leave_others_served(broker: Broker) -> None:
    """Each of them is in the middle of a frame that it never ends, while a hundred messages go round."""
    whole = b"".join(encode(Command(RequestCode.GET_MAX_OFFSET, 1, ext_fields={"topic": "T", "queueId": "0"})))
    with being_served(broker) as bystander, ExitStack() as stack:
        for number in range(SLOW_COUNT):
            slow = stack.enter_context(socket.create_connection(broker.address, PATIENCE_S))
            slow.sendall(whole[: 1 + number % (len(whole) - 1)])
        wait_until(lambda: broker.connection_count >= SLOW_COUNT)
        bystander.is_served(100)


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
    with being_served(broker) as bystander:
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
            bystander.is_served(5)


def test_a_connection_that_says_nothing_is_closed_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its idle time; one that speaks stays."""
    monkeypatch.setattr("longpoll_broker.service.io.transport.IDLE_CHECK_S", 0.02)
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


def test_planted_a_broker_that_refuses_every_send_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bystander says that it is not served any more."""

    def refuse_sends() -> None:
        with being_served(broker) as bystander:
            monkeypatch.setattr(broker.handler, "access", Refusing())
            bystander.is_served(2)

    with pytest.raises(AssertionError, match="the broker says 2"):
        refuse_sends()


class Refusing:
    """Accounts that let nobody send."""

    def refusal(self, _channel: Channel, command: Command) -> Parts | None:
        """The answer to every send."""
        if command.code != RequestCode.SEND_MESSAGE_V2:
            return None
        return answer(command, ResponseCode.SYSTEM_BUSY, "nobody is served")
