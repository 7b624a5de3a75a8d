"""What a group's members say and do about a topic that may not be read, and a stored offset beyond the log.

The other bad inputs have their tests where their code has: a dead broker's route and a name server that is down in
`test_producer` and `service/test_registration`, listeners that raise or hang in `test_push`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_broker.testing.raw_client import RawClient
from longpoll_client import Admin, ConsumerConfig, OutgoingMessage, Producer, PullConsumer, StartAt
from longpoll_client.consume import sharing
from longpoll_client.consume.sharing import Sharing
from longpoll_protocol.codes import Permission, RequestCode
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
PATIENCE_S = 10.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """An embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as started:
        yield started


@contextmanager
def ten_sent(broker: Broker) -> Iterator[tuple[str, str]]:
    """A topic of one queue with ten messages, and the name server."""
    name_server = "{}:{}".format(*broker.name_server_address)
    with new_topic(name_server, 1) as topic:
        with Producer(RUNTIME, name_server) as producer:
            producer.send_batch(topic, [OutgoingMessage(b"%d" % number) for number in range(10)])
        yield name_server, topic


def poll(consumer: PullConsumer, count: int) -> list[bytes]:
    """The bodies of so many messages."""
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.poll(PATIENCE_S)
        assert messages, found
        found += [message.body for message in messages]
    return found


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """What the log says with these words."""
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def test_a_topic_that_may_not_be_read_is_told_of_and_read_when_it_may(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line a look, no error for whoever polls, and nothing is lost meanwhile."""
    monkeypatch.setattr(sharing, "RETRY_S", 0.2)
    with ten_sent(broker) as (name_server, topic), Admin(RUNTIME, name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.FIRST)) as consumer:
            consumer.subscribe(topic)
            with caplog.at_level(logging.WARNING):
                consumer.start()
            (line,) = set(lines(caplog, topic))
            assert line.endswith(f"topic {topic!r} is not readable: its permission lacks R")
            assert consumer.poll(0.0) == []
            admin.create_topic(topic, 1)
            consumer._member._instance.forget_route(topic)
            assert poll(consumer, 10) == [b"%d" % number for number in range(10)]


def test_a_stored_offset_beyond_the_log_is_moved_to_its_end(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """As 4.9.7's broker says; one line tells of it, what is sent from then on comes, and the right offset is stored."""
    with ten_sent(broker) as (name_server, topic):
        fields = {"consumerGroup": "G", "topic": topic, "queueId": "0", "commitOffset": "1000"}
        with RawClient(broker.address) as client:
            assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0
        with caplog.at_level(logging.WARNING):
            with PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.STORED)) as consumer:
                consumer.subscribe(topic)
                consumer.start()
                wait_until(lambda: bool(lines(caplog, topic)))
                with Producer(RUNTIME, name_server) as producer:
                    producer.send(topic, b"10")
                assert poll(consumer, 1) == [b"10"]
                consumer.commit()
            assert lines(caplog, topic) == [f"{topic} queue 0: the offset is moved to 10"]
        wait_until(lambda: broker.offsets.by_pair[f"{topic}@G"] == {0: 11})


def test_what_fails_for_long_is_not_tried_ever_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often queues are shared meanwhile, one further try is due."""
    due: list[Callable[[], None]] = []
    with ten_sent(broker) as (name_server, topic), Admin(RUNTIME, name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with PullConsumer(RUNTIME, name_server, ConsumerConfig("G")) as consumer:
            consumer.subscribe(topic)
            member = consumer._member
            monkeypatch.setattr(member._timer, "after", lambda _delay_s, action: due.append(action))
            for _time in range(5):
                member._sharing.rebalance()
            assert due.count(member._sharing._try_again) == 1
            member._sharing._try_again()
            assert due.count(member._sharing._try_again) == 2


def test_planted_a_member_that_says_nothing_is_noticed(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its line nobody would know why nothing comes."""
    monkeypatch.setattr(Sharing, "_rebalance_failed", lambda _self, _topic, _error: None)
    with ten_sent(broker) as (name_server, topic), Admin(RUNTIME, name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with PullConsumer(RUNTIME, name_server, ConsumerConfig("G")) as consumer, caplog.at_level(logging.WARNING):
            consumer.subscribe(topic)
            consumer.start()
    assert lines(caplog, "permission") == []
