"""Messages that cannot be read: those before them and behind them come, and each is told of, once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from longpoll_broker.testing.brokers import wait_until
from longpoll_client import (
    ConsumerConfig,
    ConsumeStatus,
    MessageModel,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
    Unreadable,
    UnreadableMessage,
)
from longpoll_client.consume import puller
from longpoll_client.messages import decode_readable
from longpoll_client.produce.outgoing import single_parcel
from longpoll_protocol.codes import MessageSysFlag
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
PATIENCE_S: Final = 10.0
BAD: Final = b"bad"
"""A body that is sent as one that was packed, and is none: every client fails to unpack it."""


def send(name_server: str, topic: str, *bodies: bytes) -> None:
    """In order; `BAD` as what it is not."""
    with Producer(RUNTIME, name_server) as producer:
        for number, body in enumerate(bodies):
            parcel = single_parcel("P", topic, OutgoingMessage(body), f"{number:032X}", RUNTIME.unix_ms())
            sys_flag = MessageSysFlag.COMPRESSED if body == BAD else 0
            producer._send(replace(parcel, sys_flag=int(sys_flag)), None, PATIENCE_S)


def polling(name_server: str, topic: str, group: str, **options: Any) -> PullConsumer:
    """A started consumer of the first message on."""
    consumer = PullConsumer(RUNTIME, name_server, ConsumerConfig(group, start_at=StartAt.FIRST, **options))
    consumer.subscribe(topic)
    consumer.start()
    return consumer


def failed_pulls(consumer: PullConsumer) -> int:
    """How many, of all topics."""
    return sum(each.failed_pull_count for each in consumer.statistics.values())


def polled(consumer: PullConsumer, count: int) -> list[bytes]:
    """The bodies of the next messages."""
    found: list[bytes] = []
    while len(found) < count:
        got = consumer.poll(PATIENCE_S)
        assert got, found
        found += [message.body for message in got]
    return found


@pytest.mark.parametrize("bodies", [(BAD,), (b"1", BAD, BAD, b"2"), (BAD, b"1"), (b"1", b"2", BAD)])
@pytest.mark.parametrize("what", [Unreadable.SKIP, Unreadable.DEAD_LETTER])
def test_the_others_come_and_each_bad_one_is_told_of(
    name_server: str, topic: str, bodies: Sequence[bytes], what: Unreadable
) -> None:
    """Wherever it stands; the group's offset is behind it, and it is a dead letter if so configured."""
    told: list[UnreadableMessage] = []
    send(name_server, topic, *bodies, b"last")
    with polling(name_server, topic, f"G-{topic}", unreadable=what, on_unreadable=told.append) as consumer:
        assert polled(consumer, sum(body != BAD for body in bodies) + 1) == [
            *(body for body in bodies if body != BAD),
            b"last",
        ]
        consumer.commit()
        count = bodies.count(BAD)
        assert [each.queue_offset for each in told] == [n for n, body in enumerate(bodies) if body == BAD]
        assert {each.topic for each in told} == {topic}
        assert all("not zlib" in each.why and BAD in each.record for each in told)
        assert consumer.statistics[topic].unreadable_count == count
        assert consumer._member._queues.pullers()[consumer.queues[0]].offset_done == len(bodies) + 1
        dead = f"%DLQ%G-{topic}"
        sent_back = consumer.statistics[topic].sent_back_count
        assert sent_back == (count if what is Unreadable.DEAD_LETTER else 0)
        if sent_back:
            told.clear()
            with polling(name_server, dead, f"D-{topic}", unreadable=Unreadable.SKIP, on_unreadable=told.append):
                wait_until(lambda: len(told) == count)
                assert all(BAD in each.record for each in told)


def test_a_queue_stops_if_so_configured(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is before it comes; it is asked for again and again, and not counted as passed over."""
    monkeypatch.setattr(puller, "RETRY_S", 0.01)
    send(name_server, topic, b"1", BAD, b"2")
    with (
        caplog.at_level(logging.WARNING),
        polling(name_server, topic, f"G-{topic}", unreadable=Unreadable.STOP) as consumer,
    ):
        assert polled(consumer, 1) == [b"1"]
        wait_until(lambda: failed_pulls(consumer) > 2)
        consumer.commit()
        assert consumer._member._queues.pullers()[consumer.queues[0]].offset_done == 1
        assert consumer.statistics[topic].unreadable_count == 0
    assert f"{topic} queue 0 offset 1 cannot be read, and its queue waits" in caplog.text


def test_what_is_readable_the_second_time_is_no_bad_message(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were spoiled on their way are asked for again, and everything comes once."""
    honest, spoiled = decode_readable, [2]

    def spoils(body: Any) -> Any:
        if spoiled[0] and len(body):
            spoiled[0] -= 1
            return honest(bytes(body[:-1]))
        return honest(body)

    monkeypatch.setattr(puller, "decode_readable", spoils)
    send(name_server, topic, b"1", b"2")
    told: list[UnreadableMessage] = []
    with polling(name_server, topic, f"G-{topic}", on_unreadable=told.append) as consumer:
        assert polled(consumer, 2) == [b"1", b"2"]
    assert (told, spoiled) == ([], [0])


def test_a_listener_s_queue_goes_on_and_a_broadcast_one_too(name_server: str, topic: str) -> None:
    """Nothing is sent back where every member gets every message; a callback that raises costs nothing."""
    send(name_server, topic, BAD, b"good")
    for model in MessageModel:
        got, told = threading.Event(), threading.Event()

        def listen(messages: Sequence[ReceivedMessage], got: threading.Event = got) -> ConsumeStatus:
            if messages[0].body == b"good":
                got.set()
            return ConsumeStatus.SUCCESS

        def raises(_message: UnreadableMessage, told: threading.Event = told) -> None:
            told.set()
            raise ZeroDivisionError("the callback's own fault")

        config = ConsumerConfig(
            f"{model.name}-{topic}", start_at=StartAt.FIRST, message_model=model, on_unreadable=raises
        )
        with PushConsumer(RUNTIME, name_server, config, listen) as consumer:
            consumer.subscribe(topic)
            consumer.start()
            assert got.wait(PATIENCE_S)
            assert told.is_set()
            is_shared = model is MessageModel.CLUSTERING
            assert consumer.statistics[topic].sent_back_count == int(is_shared)


def test_planted_a_client_that_decodes_all_or_nothing_stops(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this one did: a bad message kept the ones before it back, for good."""

    def all_or_nothing(body: Any) -> Any:
        found, error = decode_readable(body)
        if error is not None:
            raise error
        return found, None

    monkeypatch.setattr(puller, "decode_readable", all_or_nothing)
    monkeypatch.setattr(puller, "RETRY_S", 0.01)
    send(name_server, topic, b"1", BAD)
    with polling(name_server, topic, f"G-{topic}") as consumer:
        wait_until(lambda: failed_pulls(consumer) > 2)
        assert consumer.poll(0.05) == []
