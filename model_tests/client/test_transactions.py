"""Messages that are delivered only once their sender's work has succeeded, and who says so when the sender cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.send.append import HALF_TOPIC
from longpoll_broker.service.send.transaction_check import GROUP
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_client import (
    ConsumerConfig,
    Producer,
    PullConsumer,
    ReceivedMessage,
    StartAt,
    TransactionProducer,
    TransactionState,
)
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
CONFIG = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=3_600_000)
"""Rounds of questions are made when a test says so: one on its way before an answer came would count twice."""
STORE = evolve(SMALL_STORE, flush_interval_ms=20)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that asks about a transaction whatever its age."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=CONFIG, store_config=STORE) as started:
        yield started


def producer_at(
    broker: Broker, check: Callable[[ReceivedMessage], TransactionState] = lambda _message: UNKNOWN
) -> TransactionProducer:
    """A producer of the group PG."""
    return TransactionProducer(RUNTIME, "{}:{}".format(*broker.name_server_address), "PG", check)


def delivered(broker: Broker, count: int) -> list[ReceivedMessage]:
    """The first so many messages that a group gets, and none after them."""
    config = ConsumerConfig("G", start_at=StartAt.FIRST)
    found: list[ReceivedMessage] = []
    with PullConsumer(RUNTIME, "{}:{}".format(*broker.name_server_address), config) as consumer:
        consumer.subscribe("T")
        consumer.start()
        while len(found) < count:
            messages = consumer.poll(PATIENCE_S)
            assert messages, found
            found += messages
        assert consumer.poll(0.1) == []
    return found


def check_now(broker: Broker) -> None:
    """Have the broker do a round of questions with its next flush, and no other before this is called again."""
    checks = broker.sending.checks
    checks._due_ns = 0
    wait_until(lambda: checks._due_ns != 0)


def all_ended(broker: Broker) -> bool:
    """Whether nothing is left that the broker could ask about, by one more round."""
    end = broker.store.visible_end(HALF_TOPIC, 0)
    check_now(broker)
    wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == end)
    return broker.store.visible_end(HALF_TOPIC, 0) == end


def test_what_is_committed_is_delivered_and_what_is_rolled_back_is_not(tmp_path: Path) -> None:
    """With its tags, keys and properties, in the order of the commits; not before its work is done."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        with producer_at(broker) as producer:
            for number, state in enumerate((COMMIT, ROLLBACK, COMMIT)):

                def work(number: int = number, state: TransactionState = state) -> TransactionState:
                    assert broker.store.visible_end(HALF_TOPIC, 0) == number + 1
                    return state

                result = producer.send("T", b"%d" % number, work, tags="t", keys="k", properties={"a": "b"})
                assert result.state is state
        first, second = delivered(broker, 2)
    assert (first.body, second.body) == (b"0", b"2")
    assert (first.tags, first.keys, first.properties["a"]) == ("t", "k", "b")


def test_the_broker_asks_when_the_end_is_not_known_and_takes_the_answer(broker: Broker) -> None:
    """The check sees the message in its own topic; its answers are as good as the work's."""
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return COMMIT if message.body == b"kept" else ROLLBACK

    with producer_at(broker, check) as producer:
        producer.send("T", b"dropped", lambda: UNKNOWN)
        producer.send("T", b"kept", lambda: UNKNOWN, tags="t")
        check_now(broker)
        (message,) = delivered(broker, 1)
        assert all_ended(broker)
    assert (message.body, message.tags) == (b"kept", "t")
    assert {(one.topic, one.body) for one in asked} == {("T", b"dropped"), ("T", b"kept")}


def test_work_and_checks_that_raise_leave_the_end_open(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """What the work raises is the caller's; the broker asks, again after a check that raises, until it is told."""
    tries: list[int] = []

    def check(_message: ReceivedMessage) -> TransactionState:
        tries.append(1)
        if len(tries) == 1:
            raise ZeroDivisionError("the check's own fault")
        return COMMIT

    def work() -> TransactionState:
        raise LookupError("the work's own fault")

    with caplog.at_level(logging.WARNING), producer_at(broker, check) as producer:
        with pytest.raises(LookupError, match="the work's own fault"):
            producer.send("T", b"x", work)
        check_now(broker)
        wait_until(lambda: len(tries) == 1)
        check_now(broker)
        assert [message.body for message in delivered(broker, 1)] == [b"x"]
    assert "the check's own fault" in caplog.text
    assert len(tries) == 2


def test_another_member_answers_for_one_that_has_gone(broker: Broker) -> None:
    """What the one left open, without ever answering, the other is asked about, once it has sent something itself."""
    with producer_at(broker, lambda _message: COMMIT) as second:
        second.send("T", b"hello", lambda: ROLLBACK)
        with producer_at(broker) as first:
            first._timer.close()
            first.send("T", b"left open", lambda: UNKNOWN)
        check_now(broker)
        assert [message.body for message in delivered(broker, 1)] == [b"left open"]


def test_a_user_cannot_prepare_a_message_by_a_property(broker: Broker) -> None:
    """It would never be delivered."""
    with (
        Producer(RUNTIME, "{}:{}".format(*broker.name_server_address)) as producer,
        pytest.raises(ConfigError, match="TRAN_MSG is reserved for the client"),
    ):
        producer.send("T", b"x", properties={"TRAN_MSG": "true"})


def test_planted_a_producer_that_ends_nothing_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without 37 the broker asks although the work was done."""
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return ROLLBACK

    monkeypatch.setattr(TransactionProducer, "_end", lambda _self, _sent, _state: None)
    with producer_at(broker, check) as producer:
        producer.send("T", b"x", lambda: COMMIT)
        check_now(broker)
        wait_until(lambda: asked == [b"x"])
        assert not broker.store.visible_end("T", 0)
