"""Outbox, channels and connections: answers of one I/O pass that are sent together, slow readers, and limits."""

from __future__ import annotations

import errno
import random
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest
from attrs import define
from model_tests.service.test_logs import values
from model_tests.support.broker.brokers import Brokers, wait_until
from model_tests.support.broker.raw_client import (
    RawClient,
    send_fields,
)

from longpoll.options.broker_conf import read_broker_conf
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io import channel as subject
from longpoll_broker.io import transport
from longpoll_broker.io.channel import (
    CHANNEL_COUNT,
    FLUSH_COUNT,
    FLUSH_COUNT_MAX,
    BytesByPeer,
    Channel,
    ConnectionLimit,
    Connections,
    Limits,
    Outbox,
    Parts,
    address_of,
)
from longpoll_broker.io.transport import IoLoop
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Buffer, Command, encode
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address, Socket
from longpoll_runtime.real import RealListener, RealRuntime
from longpoll_runtime.threads import RealQueue


class Sink:
    def __init__(self, name: str = "", order: list[str] | None = None) -> None:
        self.name = name
        self.order = order if order is not None else []
        self.waiting = 0
        self.flushed: list[int] = []

    def write(self, _parts: Parts) -> None:
        self.waiting += 1

    def flush(self) -> None:
        self.flushed.append(self.waiting)
        self.order.append(self.name)
        self.waiting = 0


def _herd(count: int, channel_count: int = 1) -> list[int]:
    """Answer `count` pulls on the channels in turn; returns the sizes of the parts that the first channel sends."""
    sinks: Any = [Sink() for _ in range(channel_count)]
    outbox = Outbox()
    for number in range(count):
        outbox.write_in_herd(cast("Channel", sinks[number % channel_count]), (b"",))
    outbox.flush()
    assert all(sink.waiting == 0 for sink in sinks)
    parts: list[int] = sinks[0].flushed
    return parts


def test_parts_of_a_large_herd() -> None:
    """The first answers are sent at once, and later parts are larger, which saves system calls."""
    parts = _herd(20_000, 64)
    assert [64 * part for part in parts[-4:-1]] == [FLUSH_COUNT_MAX] * 3
    assert sum(parts) == -(-20_000 // 64)
    assert _herd(20_000)[:3] == [FLUSH_COUNT, 2 * FLUSH_COUNT, 4 * FLUSH_COUNT]
    sink: Any = Sink()
    outbox = Outbox()
    for _ in range(2):
        for _ in range(3 * FLUSH_COUNT):
            outbox.write_in_herd(cast("Channel", sink), (b"",))
        outbox.flush()
    assert sink.flushed == [FLUSH_COUNT, 2 * FLUSH_COUNT] * 2
    order: list[str] = []
    sinks: Any = [Sink(name, order) for name in ("sender", "first", "second")]
    outbox = Outbox()
    for sink in sinks:
        outbox.write(sink, (b"",))
    outbox.flush()
    assert order == ["second", "first", "sender"]


def _waits_for_others() -> bool:
    """Whether a connection with many answers sends them only at the end of the pass, after other connections."""
    order: list[str] = []
    sinks: Any = [Sink(name, order) for name in ("early", "busy", "other")]
    outbox = Outbox()
    for sink, count in zip(sinks, (3 * FLUSH_COUNT, CHANNEL_COUNT - 1, FLUSH_COUNT), strict=True):
        outbox.write_in_herd(sink, (b"",), count)
    outbox.write_in_herd(sinks[1], (b"",))
    outbox.flush_busy()
    order.append("all is written")
    outbox.flush()
    assert not any(sink.waiting for sink in sinks)
    assert order.index("early") > order.index("all is written") < order.index("other")
    return order.index("busy") > order.index("all is written")


def test_answers_of_a_busy_connection_are_sent_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of a busy connection are sent as soon as there are enough of them for one system call."""
    monkeypatch.setattr(subject, "FLUSH_COUNT_MAX", 1000)
    monkeypatch.setattr(subject, "FLUSH_COUNT", 300)
    assert not _waits_for_others()
    monkeypatch.setattr(subject, "CHANNEL_COUNT", 10_000)
    assert _waits_for_others()


class DeafSocket:
    def __init__(self, room: int) -> None:
        self.room = room
        self.sent = bytearray()
        self.calls: list[str] = []
        self.fails: Exception | None = None
        self.closed = 0

    def send(self, content: Buffer, /) -> int:
        self.calls.append("send 1")
        return self._take(content)

    def _take(self, content: Buffer) -> int:
        if self.fails is not None:
            raise self.fails
        if not self.room:
            raise BlockingIOError
        taken = bytes(content)[: self.room]
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        self.calls.append(f"send_parts {len(parts)}")
        return self._take(b"".join(parts))

    def close(self) -> None:
        self.closed += 1


class Loop:
    def __init__(self) -> None:
        self.poller: Any = self
        self.watches: list[bool] = []
        self.reads: list[bool] = []
        self.unregistered = 0
        self.given_up: list[Channel] = []

    def modify(self, _key: object, *, read: bool, write: bool, data: object) -> None:
        assert data is not None
        self.reads.append(read)
        self.watches.append(write)

    def unregister(self, _key: object) -> None:
        self.unregistered += 1

    def close_soon(self, channel: Channel) -> None:
        self.given_up.append(channel)


def deaf_channel(
    room: int, output_bytes_max: int, unsent: BytesByPeer[Channel] | None = None
) -> tuple[Channel, DeafSocket, Loop]:
    """A channel whose peer reads only `room` bytes; `unsent` counts the unsent bytes, which are limited."""
    sock, loop = DeafSocket(room), Loop()
    limits = Limits(1024, output_bytes_max, 10, 1000)
    made = Channel(loop, cast("Any", sock), ("127.0.0.1", 1), 1, cast("Any", None), limits, threading.Lock(), unsent)
    return made, sock, loop


def tell(channel: Channel, parts: Parts) -> None:
    channel.write(parts)
    channel.flush()


def test_a_stopping_broker_waits_for_unsent_answers() -> None:
    """A stopping broker waits for unsent answers, unless the peer does not read."""
    channel, sock, loop = deaf_channel(room=3, output_bytes_max=100)
    assert not channel.unsent()
    channel.write((b"answer",))
    assert channel.unsent()
    channel.flush()
    assert (channel.unsent(), bytes(sock.sent), loop.watches) == (True, b"ans", [True])
    sock.room = 100
    channel.flush()
    assert (channel.unsent(), bytes(sock.sent), loop.watches) == (False, b"answer", [True, False])
    assert loop.reads == [True, True]
    channel.write((b"late",))
    channel.close()
    assert not channel.unsent()


def test_a_broken_channel_keeps_nothing() -> None:
    """The broker disconnects a peer that does not read at a limit, and commands for this peer then use no memory."""
    channel, sock, loop = deaf_channel(room=0, output_bytes_max=10)
    tell(channel, (b"0123456789",))
    assert (channel.broken, channel.unsent(), loop.given_up) == (False, True, [])
    tell(channel, (b"x",))
    assert (channel.broken, channel.unsent(), loop.given_up) == (True, False, [channel])
    # The peer would read the rest of a truncated frame as the beginning of another frame.
    sock.room = 1000
    tell(channel, (b"more",))
    assert (bytes(sock.sent), len(channel._out), len(channel._pending)) == (b"", 0, 0)
    assert loop.given_up == [channel]
    broken, sock, _ = deaf_channel(room=2, output_bytes_max=3)
    tell(broken, (b"answer",))
    assert (broken.broken, len(broken._out), len(broken._pending)) == (True, 0, 0)
    closed, sock, loop = deaf_channel(room=2, output_bytes_max=100)
    tell(closed, (b"answer",))
    closed.write((b"late",))
    closed.close()
    closed.close()
    assert (sock.closed, loop.unregistered) == (1, 1)
    assert (len(closed._out), len(closed._pending), closed.unsent()) == (0, 0, False)


@pytest.mark.parametrize(
    "fault", [ConnectionResetError(), ValueError("a fault of ours")], ids=["connection reset", "other exception"]
)
def test_an_unwritable_connection_is_closed_once(fault: Exception) -> None:
    channel, sock, loop = deaf_channel(room=5, output_bytes_max=1)
    channel.write((b"answer",))
    sock.fails = fault
    channel.flush()
    assert (channel.broken, channel.unsent(), loop.given_up) == (True, False, [channel])
    assert (len(channel._out), len(channel._pending)) == (0, 0)


def test_calls_to_the_socket_and_the_poller() -> None:
    """A single buffer is sent without a copy, and a stopping I/O loop sends but does not read."""
    channel, _, loop = deaf_channel(room=0, output_bytes_max=100)
    channel.stop_reading()
    assert (loop.reads, loop.watches) == ([False], [True])
    channel, sock, loop = deaf_channel(room=1000, output_bytes_max=100)
    tell(channel, (b"one",))
    for answer in (b"two", b"three", b"four"):
        channel.write((answer,))
    channel.flush()
    assert (sock.calls, bytes(sock.sent)) == (["send 1", "send_parts 3"], b"onetwothreefour")
    assert loop.watches == []
    channel, _, _ = deaf_channel(100, 1000)
    channel.write((b"head",))
    assert channel.queued_size == 0
    channel.write((b"head", b"and a body"))
    channel.write((b"head", b"one"))
    assert channel.queued_size == 13
    channel.flush()
    assert channel.queued_size == 0


def test_unsent_bytes_are_counted() -> None:
    unsent: BytesByPeer[Channel] = BytesByPeer(1000, threading.Lock())
    channel, sock, _ = deaf_channel(5, 1000, unsent)
    other, _, _ = deaf_channel(0, 1000, unsent)
    tell(channel, (b"head", b"and a body"))
    assert unsent.by_peer == {channel: 9}
    channel.write((b"more", b"!"))
    sock.room = 3
    channel.flush()
    assert unsent.by_peer == {channel: 11}
    tell(other, (b"also",))
    assert (unsent.by_peer, unsent.total) == ({channel: 11, other: 4}, 15)
    sock.room = 100
    channel.flush()
    assert (unsent.by_peer, bytes(sock.sent)) == ({other: 4}, b"headand a bodymore!")
    other.close()
    assert (unsent.by_peer, unsent.total) == ({}, 0)
    unsent = BytesByPeer(1000, threading.Lock())
    channel, _, loop = deaf_channel(0, 10, unsent)
    tell(channel, (b"0123456789",))
    assert unsent.total == 10
    tell(channel, (b"x",))
    assert (unsent.by_peer, unsent.total, loop.given_up) == ({}, 0, [channel])
    assert channel.reached is ConnectionLimit.OUTPUT_BYTES
    assert channel.close_reason == "it left over 10 bytes unread"


def test_only_the_channel_with_most_unsent_bytes_is_closed() -> None:
    """If all channels together exceed the total limit, the next flush closes the channel with the most unsent bytes."""
    unsent: BytesByPeer[Channel] = BytesByPeer(10, threading.Lock())
    greedy, _, loop = deaf_channel(0, 1000, unsent)
    modest, _, quiet = deaf_channel(0, 1000, unsent)
    tell(greedy, (b"12345678",))
    tell(modest, (b"abc",))
    assert (greedy.broken, loop.given_up, greedy.reached) == (True, [greedy], ConnectionLimit.UNSENT_BYTES)
    assert greedy.close_reason == "it had most of the bytes over unsentBytesMax"
    assert (modest.broken, quiet.given_up, unsent.by_peer) == (False, [], {modest: 3})
    greedy.flush()
    assert (len(greedy._out), len(greedy._pending), unsent.total) == (0, 0, 3)


@pytest.mark.parametrize("state", ["broken", "closed"])
def test_a_closed_channel_is_not_closed_again(state: str) -> None:
    channel, _, loop = deaf_channel(0, 1000)
    if state == "broken":
        channel.give_up(ConnectionLimit.FRAME_TIME, 1, 2)
    else:
        channel.close()
    told = list(loop.given_up)
    channel.give_up(ConnectionLimit.UNSENT_BYTES, 1, 2)
    assert loop.given_up == told
    assert channel.reached is (ConnectionLimit.FRAME_TIME if state == "broken" else None)


def test_short_answers_wait_for_the_end_of_the_pass() -> None:
    sink: Any = Sink()
    outbox = Outbox()
    outbox.write(sink, (b"",), CHANNEL_COUNT - 1)
    outbox.flush_busy()
    assert sink.flushed == []
    outbox.write(sink, (b"",))
    outbox.after_flush(lambda: None)
    outbox.flush_busy()
    assert sink.flushed == []
    outbox.flush()
    outbox.flush()
    assert sink.flushed == [2]
    busy, other, outbox = cast("Any", Sink()), cast("Any", Sink()), Outbox()
    outbox.write(busy, (b"",), CHANNEL_COUNT)
    outbox.flush_busy()
    outbox.write_in_herd(other, (b"",))
    assert (busy.flushed, other.flushed) == ([1], [])


def test_a_failed_record_of_an_answer_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """If recording an answer fails, the failure is logged, and later answers are still recorded."""
    order: list[str] = []
    channel, _, _ = deaf_channel(room=10, output_bytes_max=100)
    gone, _, _ = deaf_channel(room=10, output_bytes_max=100)
    gone.close()

    def fail() -> None:
        raise OSError("no room for the record")

    outbox = Outbox()
    outbox.after_flush(fail)
    outbox.after_answer(gone, lambda: order.append("to nobody"))
    outbox.after_answer(channel, lambda: order.append("noted"))
    outbox.flush()
    assert order == ["noted"]
    assert "could not be noted" in caplog.text


def test_an_answer_is_recorded_after_it_was_sent() -> None:
    order: list[str] = []
    sink: Any = Sink("sent", order)
    outbox = Outbox()
    outbox.write(sink, (b"",))
    outbox.after_flush(lambda: order.append("noted"))
    outbox.flush()
    assert order == ["sent", "noted"]


LIMITS: Final = Limits(1 << 20, 1 << 20, 10, 1000)
ASKED: Final[dict[str, Callable[[IoLoop], None]]] = {
    "close": lambda loop: loop.close_soon(cast("Any", object())),
    "adopt": lambda loop: loop.adopt_soon(cast("Any", object())),
}


@define
class Bell:
    rung: int = 0

    def wake(self) -> None:
        self.rung += 1


@pytest.mark.parametrize("asked", ASKED)
def test_a_request_of_another_thread_wakes_the_loop(asked: str) -> None:
    """Without the wake-up, the loop would read the other thread's request ten seconds later."""
    loop = IoLoop(RealRuntime(), "loop", LIMITS)
    loop.poller.close()
    bell = Bell()
    loop.poller = cast("Any", bell)
    ASKED[asked](loop)
    assert bell.rung == 1


class LateBell:
    """A bell that rings once without a reason, and records the length of each wait."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def acquire(self, *, timeout: float) -> bool:
        self.timeouts.append(timeout)
        return len(self.timeouts) == 1


def test_a_wait_past_its_timeout_ends_after_a_false_wakeup() -> None:
    """A lock treats a negative timeout as no timeout, so the queue must not pass a negative timeout to its lock."""
    queue, bell = RealQueue[int](1), LateBell()
    queue._bell = cast("Any", bell)
    assert queue.take(0.0) is None
    assert bell.timeouts == [0.0, 0.0]


NEW_QUEUES = 64


def sends(body: bytes) -> bytes:
    """One send to each queue, all in one write."""
    commands = [
        Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=send_fields("T", number), body=body)
        for number in range(NEW_QUEUES)
    ]
    return b"".join(b"".join(encode(each)) for each in commands)


def test_a_refused_connection_is_accepted_when_there_is_room_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ACCEPT_PAUSE_S", 0.01)
    refusals = [OSError(errno.EMFILE, "Too many open files")]
    accept = RealListener.accept

    def refused_once(listener: RealListener) -> tuple[Socket, Address]:
        if refusals:
            raise refusals.pop()
        return accept(listener)

    broker = brokers.start()
    monkeypatch.setattr(RealListener, "accept", refused_once)
    assert brokers.connect(broker).is_served()
    assert not refusals


BYTES_MAX = 4 * MIB
QUEUE = {"topic": "TBW102", "queueId": "0"}


def unfinished(size: int) -> bytes:
    return struct.pack(">iI", 16 * MIB, 100) + bytes(size - 8)


def is_served(client: RawClient) -> bool:
    return client.call(RequestCode.GET_MAX_OFFSET, QUEUE).code == 0


def reached(broker: Broker, limit: ConnectionLimit) -> float:
    return values(broker)["longpoll_limits_reached_total", limit.value]


def test_a_connection_with_a_slow_frame_is_closed(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_CHECK_S", 0.02)
    broker, slow, busy = brokers.served_two(config=BrokerConfig(frame_ms_max=200, channel_idle_ms_max=60_000))
    close, counted = Channel.close, []

    def noted(channel: Channel) -> None:
        counted.append(reached(broker, ConnectionLimit.FRAME_TIME))
        close(channel)

    monkeypatch.setattr(Channel, "close", noted)
    slow.send_bytes(unfinished(100))
    while not slow.closed:
        try:
            slow.send_bytes(b"\0")
        except ConnectionError:
            break
        assert is_served(busy)
        slow.reply(1, 0.01)
    assert counted == [1]
    # The second frame of `busy` begins long after its first one.
    busy.send_bytes(b"\0")
    wait_until(lambda: values(broker)["longpoll_unfinished_bytes",] == 1)
    assert broker.connection_count == 1


def test_unsent_answers_limit(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker, bystander = brokers.served(config=BrokerConfig(unsent_bytes_max=BYTES_MAX))
    asking = [brokers.connect(broker) for _ in range(4)]
    for client in asking:
        client.send_bytes(client._request(RequestCode.GET_ALL_TOPIC_CONFIG)[1] * 6_000)
    wait_until(lambda: reached(broker, ConnectionLimit.UNSENT_BYTES) >= len(asking) - 2)
    assert is_served(bystander)
    assert values(broker)["longpoll_unsent_bytes",] <= BYTES_MAX
    assert "unsentBytesMax" in caplog.text
    for client in asking:
        client.close()
    wait_until(lambda: broker.connection_count == 1)
    assert values(broker)["longpoll_unsent_bytes",] == 0


def test_connections_per_address(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = brokers.start(config=BrokerConfig(address_connection_count_max=3))
    clients = [brokers.connect(broker) for _ in range(3)]
    assert all(map(is_served, clients))
    assert brokers.connect(broker).wait_closed()
    assert reached(broker, ConnectionLimit.ADDRESS_CONNECTIONS) == 1
    assert "over 3 connections of one address (addressConnectionCountMax)" in caplog.text
    clients[0].close()
    wait_until(lambda: broker.connection_count == 2)
    assert is_served(brokers.connect(broker))


def test_several_loops_share_one_limit(brokers: Brokers) -> None:
    broker = brokers.start(config=BrokerConfig(connection_count_max=3, io_thread_count=2))
    clients = [brokers.connect(broker) for _ in range(3)]
    assert all(map(is_served, clients))
    assert brokers.connect(broker).wait_closed()
    assert reached(broker, ConnectionLimit.CONNECTIONS) == 1


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_ipv6_addresses_are_counted_by_network(host: str, address: str) -> None:
    assert address_of(host) == address


def test_addresses_without_connections_are_forgotten() -> None:
    """The table of addresses must not keep an entry for every client that was ever connected."""
    connections = Connections(10, 2, threading.Lock())
    assert [connections.add("h") for _ in range(3)] == [None, None, ConnectionLimit.ADDRESS_CONNECTIONS]
    connections.remove("h")
    connections.remove("h")
    assert (connections.count, dict(connections.by_address)) == (0, {})


@pytest.mark.parametrize("seed", range(10))
def test_a_peer_with_the_most_bytes_is_removed_above_the_total_limit(seed: int) -> None:
    draw, amount, expected = random.Random(seed), BytesByPeer[int](100, threading.Lock()), dict[int, int]()
    for _ in range(300):
        peer, size = draw.randrange(6), draw.choice((0, 1, 30, 99, 150))
        expected[peer] = size
        for gone, had in amount.note(peer, size):
            assert had == expected[gone] == max(expected.values())
            expected[gone] = 0
        assert amount.total == sum(expected.values()) <= 100
        assert amount.by_peer == {each: size for each, size in expected.items() if size}


def test_each_limit_is_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("".join(f"{limit.value} = 7\n" for limit in ConnectionLimit))
    config, _store, _place, unknown = read_broker_conf(file)
    assert unknown == []
    assert config == BrokerConfig(
        connection_count_max=7,
        address_connection_count_max=7,
        output_bytes_max=7,
        unsent_bytes_max=7,
        unfinished_bytes_max=7,
        frame_ms_max=7,
        channel_idle_ms_max=7_000,
    )
