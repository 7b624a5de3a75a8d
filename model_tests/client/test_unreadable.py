"""Unreadable data for a consumer: bad messages, topics without permission, offsets beyond the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.broker.raw_client import RawClient
from model_tests.support.client import BAD, PATIENCE_S, bodies_of, polling, send

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    MessageModel,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    Unreadable,
    UnreadableMessage,
)
from longpoll_client.consume import member, puller
from longpoll_client.messages import decode_readable
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import Permission, RequestCode


def failed_pulls(consumer: PullConsumer) -> int:
    """How many, of all topics."""
    return sum(each.failed_pull_count for each in consumer.statistics.values())


@pytest.mark.parametrize("bodies", [(BAD,), (b"1", BAD, BAD, b"2"), (BAD, b"1"), (b"1", b"2", BAD)])
@pytest.mark.parametrize("what", [Unreadable.SKIP, Unreadable.DEAD_LETTER])
def test_the_others_come_and_each_bad_one_is_told_of(
    name_server: str, topic: str, bodies: Sequence[bytes], what: Unreadable
) -> None:
    """Wherever it stands; the group's offset is behind it, and it is a dead letter if so configured."""
    told: list[UnreadableMessage] = []
    send(name_server, topic, *bodies, b"last")
    with polling(name_server, topic, f"G-{topic}", unreadable=what, on_unreadable=told.append) as consumer:
        assert bodies_of(consumer, sum(body != BAD for body in bodies) + 1) == [
            *(body for body in bodies if body != BAD),
            b"last",
        ]
        consumer.commit()
        count = bodies.count(BAD)
        assert [each.queue_offset for each in told] == [n for n, body in enumerate(bodies) if body == BAD]
        assert {each.topic for each in told} == {topic}
        assert all("not zlib" in each.why and BAD in each.record for each in told)
        assert consumer.statistics[topic].unreadable_count == count
        assert consumer._member.assigned_queues.pullers()[consumer.queues[0]].offset_done == len(bodies) + 1
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
    """Earlier messages come; the queue retries without counting a skipped message."""
    monkeypatch.setattr(puller, "RETRY_S", 0.01)
    send(name_server, topic, b"1", BAD, b"2")
    with (
        caplog.at_level(logging.WARNING),
        polling(name_server, topic, f"G-{topic}", unreadable=Unreadable.STOP) as consumer,
    ):
        assert bodies_of(consumer, 1) == [b"1"]
        wait_until(lambda: failed_pulls(consumer) > 2)
        consumer.commit()
        assert consumer._member.assigned_queues.pullers()[consumer.queues[0]].offset_done == 1
        assert consumer.statistics[topic].unreadable_count == 0
    assert f"{topic} queue 0 offset 1 is unreadable and blocks its queue" in caplog.text


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
        assert bodies_of(consumer, 2) == [b"1", b"2"]
    assert (told, spoiled) == ([], [0])


def test_a_listener_s_queue_goes_on_and_a_broadcast_one_too(name_server: str, topic: str) -> None:
    """Nothing is sent back where every member gets every message; a callback that raises costs nothing."""
    send(name_server, topic, BAD, b"good")
    for model in MessageModel:
        got, told = threading.Event(), threading.Event()

        def listen(messages: Sequence[ReceivedMessage], got: threading.Event = got) -> Retry | None:
            if messages[0].body == b"good":
                got.set()
            return None

        def raises(_message: UnreadableMessage, told: threading.Event = told) -> None:
            told.set()
            raise ZeroDivisionError("the callback's own fault")

        config = MemberConfig(
            group=f"{model.name}-{topic}", start_at="first", message_model=model, on_unreadable=raises
        )
        with PushConsumer(name_server, topics=topic, listener=listen, **member_options(config)) as consumer:
            assert got.wait(PATIENCE_S)
            assert told.is_set()
            is_shared = model is MessageModel.CLUSTERING
            assert consumer.statistics[topic].sent_back_count == int(is_shared)


@contextmanager
def ten_sent(broker: Broker) -> Iterator[tuple[str, str]]:
    """A topic of one queue with ten messages, and the name server."""
    name_server = "{}:{}".format(*broker.name_server_address)
    with new_topic(name_server, 1) as topic:
        with Producer(name_server) as producer:
            producer.send_batch(topic, [OutgoingMessage(b"%d" % number) for number in range(10)])
        yield name_server, topic


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """The log lines that contain these words."""
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def test_a_topic_that_may_not_be_read_is_told_of_and_read_when_it_may(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log line for each look, no error for a poll, and no message is lost."""
    monkeypatch.setattr(member, "RETRY_S", 0.2)
    with ten_sent(broker) as (name_server, topic), Admin(name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with closing(PullConsumer(name_server, group="G", topics=topic)) as consumer:
            with caplog.at_level(logging.WARNING):
                consumer.start()
            (line,) = set(lines(caplog, topic))
            assert line.endswith(f"topic {topic!r} is not readable: its permission lacks R")
            assert consumer.poll(0.0) == []
            admin.create_topic(topic, 1)
            consumer._member._instance.forget_route(topic)
            assert bodies_of(consumer, 10) == [b"%d" % number for number in range(10)]


def test_a_stored_offset_beyond_the_log_is_moved_to_its_end(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """As 4.9.7 does: one log line, later messages come, and the right offset is stored."""
    with ten_sent(broker) as (name_server, topic):
        fields = {"consumerGroup": "G", "topic": topic, "queueId": "0", "commitOffset": "1000"}
        with RawClient(broker.address) as client:
            assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0
        with caplog.at_level(logging.WARNING):
            with PullConsumer(name_server, group="G", topics=topic, start_at="stored") as consumer:
                wait_until(lambda: bool(lines(caplog, topic)))
                with Producer(name_server) as producer:
                    producer.send(topic, b"10")
                assert bodies_of(consumer, 1) == [b"10"]
                consumer.commit()
            assert lines(caplog, topic) == [f"{topic} queue 0: the offset is moved to 10"]
        wait_until(lambda: broker.offsets.by_pair[f"{topic}@G"] == {0: 11})


def test_what_fails_for_long_is_not_tried_ever_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often queues are shared meanwhile, one further try is due."""
    due: list[Callable[[], object]] = []
    with ten_sent(broker) as (name_server, topic), Admin(name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with closing(PullConsumer(name_server, group="G", topics=topic, start_at="stored")) as consumer:
            member = consumer._member
            monkeypatch.setattr(member, "soon", lambda make, *_delay, **_options: due.append(make))
            for _time in range(5):
                member.run(member.rebalancer.rebalance())
            assert due.count(member._try_again) == 1
            member.run(member._try_again())
            member.run(member.rebalancer.rebalance())
            assert due.count(member._try_again) == 2
