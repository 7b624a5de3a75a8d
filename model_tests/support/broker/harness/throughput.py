"""Measures messages per second: pipelined sends, and pulls with several requests in flight.

Each connection has its own process. All processes begin together, warm up, and count for the same time. Answers are
counted and not decoded; the queues' max offsets then show that all sends succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from attrs import frozen
from model_tests.support.broker.harness.frames import (
    OPAQUE_BASE,
    Line,
    PullTemplate,
    expect_success,
    framed,
    send_frame,
)
from model_tests.support.broker.harness.latency import BODY, send_first
from model_tests.support.broker.harness.topics import check_stored, make_topic
from model_tests.support.broker.harness.workers import together

from longpoll_runtime import Address

QUEUE_COUNT: Final = 8
SEND_DEPTH: Final = 64
KEYS: Final = (
    "UNIQ_KEY\x017F0000010001042F2B6A1B2C3D4E{0:04}\x02WAIT\x01true\x02TAGS\x01tag\x02"
    "KEYS\x01order{0:04} user{0:04}\x02"
)
"""The template of a message's properties with a tag and two keys; {0} is the message's number."""
PULL_COUNT: Final = 32
"""The number of messages that one pull requests."""


@frozen
class Rate:
    per_second: float
    count: int
    """The number of messages, including those sent or pulled before and after the measured time."""


@frozen
class _Sender:
    """Measures one connection that always has `SEND_DEPTH` sends in flight."""

    address: Address
    topic: str
    warm_s: float
    seconds: float
    has_keys: bool = False
    """Whether each message has the properties that a client sets for one tag and two keys."""

    def __call__(self, begin: Callable[[], None]) -> Rate:
        frames = [
            send_frame(self.topic, number % QUEUE_COUNT, BODY, number, KEYS.format(number) if self.has_keys else "")
            for number in range(SEND_DEPTH)
        ]
        size = len(frames[0])
        assert all(len(frame) == size for frame in frames)
        # The frames are joined twice, so that any burst of up to SEND_DEPTH frames is one slice.
        ring = memoryview(b"".join(frames) * 2)
        line = Line(self.address)
        expect_success(line.call(frames[0]), "a send")
        begin()
        count_from_ns = monotonic_ns() + int(self.warm_s * 1e9)
        stop_ns = count_from_ns + int(self.seconds * 1e9)
        line.write(ring[: SEND_DEPTH * size])
        at = answered = counted = 0
        now_ns = count_from_ns
        begun_ns = 0
        # On a busy machine the first answers may arrive after the measured time, so the loop then counts the next
        # answers.
        while now_ns < stop_ns or now_ns == begun_ns:
            count = line.read_count()[0]
            answered += count
            now_ns = monotonic_ns()
            if now_ns >= count_from_ns:
                if begun_ns:
                    counted += count
                else:
                    begun_ns = now_ns
            line.write(ring[at * size : (at + count) * size])
            at = (at + count) % SEND_DEPTH
        ended_ns = now_ns
        left = SEND_DEPTH
        while left:
            left -= line.read_count()[0]
        line.close()
        return Rate(counted / ((ended_ns - begun_ns) / 1e9), answered + SEND_DEPTH + 1)


def send_rate(
    address: Address,
    topic: str,
    connection_count: int,
    *,
    seconds: float,
    warm_s: float = 1.0,
    has_keys: bool = False,
) -> Rate:
    """Measure sends of 128 bytes over `QUEUE_COUNT` queues, 64 in flight per connection; raises ClientError."""
    rates = together([_Sender(address, topic, warm_s, seconds, has_keys)] * connection_count)
    return Rate(sum(rate.per_second for rate in rates), sum(rate.count for rate in rates))


def sends(
    address: Address,
    topic: str,
    connection_count: int,
    *,
    seconds: float,
    warm_s: float = 1.0,
    has_keys: bool = False,
) -> Rate:
    """Measure like `send_rate` on a new topic, and check that the broker has every message; raises ClientError."""
    make_topic(address, topic, QUEUE_COUNT)
    rate = send_rate(address, topic, connection_count, seconds=seconds, warm_s=warm_s, has_keys=has_keys)
    check_stored(address, topic, QUEUE_COUNT, rate.count)
    return rate


@frozen
class Stored:
    """The contents of a topic's queue 0: `count` messages with records of one size."""

    count: int
    record_size: int


@frozen
class _Puller:
    """Measures the messages of one connection that always has `depth` pulls of queue 0 in flight."""

    address: Address
    topic: str
    stored: Stored
    depth: int
    warm_s: float
    seconds: float

    def __call__(self, begin: Callable[[], None]) -> Rate:
        """Pull the queue from its start to its end, again and again."""
        before, between, after = PullTemplate(self.topic).patched()
        opaques = [b"%d" % (OPAQUE_BASE + number) for number in range(self.depth)]
        offset_first = between.find(b"opaque") >= 0
        line = Line(self.address)
        expect_success(line.call(PullTemplate(self.topic).frame(0, 0, OPAQUE_BASE)), "a pull")
        stop_offset = self.stored.count - self.stored.count % PULL_COUNT
        begin()
        count_from_ns = monotonic_ns() + int(self.warm_s * 1e9)
        stop_ns = count_from_ns + int(self.seconds * 1e9)
        offset = number = 0

        def requests(count: int) -> bytes:
            nonlocal offset, number
            made = []
            for _ in range(count):
                texts = (b"%d" % offset, opaques[number])
                one, two = texts if offset_first else texts[::-1]
                made.append(framed(b"".join((before, one, between, two, after))))
                offset = (offset + PULL_COUNT) % stop_offset
                number = (number + 1) % self.depth
            return b"".join(made)

        line.write(requests(self.depth))
        bytes_counted = bytes_all = 0
        now_ns = begun_ns = 0
        while now_ns < stop_ns or now_ns == begun_ns:
            count, size = line.read_count()
            now_ns = monotonic_ns()
            if count:
                line.write(requests(count))
            bytes_all += size
            if now_ns >= count_from_ns:
                if begun_ns:
                    bytes_counted += size
                else:
                    begun_ns = now_ns
        line.close()
        size = self.stored.record_size
        return Rate(bytes_counted / size / ((now_ns - begun_ns) / 1e9), bytes_all // size)


def fill(address: Address, topic: str, message_count: int) -> Stored:
    """Send `message_count` messages to queue 0 of a new topic, with 64 sends in flight; raises ClientError."""
    line = Line(address)
    frame = send_frame(topic, 0, BODY)
    record_size = send_first(line, topic)
    burst = frame * SEND_DEPTH
    left, under_way = message_count - 1, 0
    while left or under_way:
        if left >= SEND_DEPTH > under_way:
            line.write(burst)
            left -= SEND_DEPTH
            under_way += SEND_DEPTH
        elif 0 < left < SEND_DEPTH:
            line.write(frame * left)
            under_way += left
            left = 0
        else:
            under_way -= line.read_count()[0]
    while not line.call(PullTemplate(topic).frame(0, message_count - 1, 0)).body_size:
        # The last messages may not be visible yet.
        continue
    line.close()
    return Stored(message_count, record_size)


def pulls(address: Address, topic: str, stored: Stored, depth: int, *, seconds: float, warm_s: float = 1.0) -> Rate:
    """Measure the messages pulled on one connection, with 32 messages per pull and `depth` pulls in flight."""
    (rate,) = together([_Puller(address, topic, stored, depth, warm_s, seconds)])
    return rate
