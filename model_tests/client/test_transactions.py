"""Transactions, on threads and on a loop: delivered once the work has succeeded, or once the sender answers a check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.client import RUNTIME, Clients, Told, name_server_of, polled, polling, run

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.rocketmq.transactions import GROUP
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_client import (
    AsyncTransactionProducer,
    LifecycleError,
    Producer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from longpoll_spec.errors import ConfigError

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
CONFIG: Final = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=3_600_000)
"""Rounds of checks are made when a test says so: one on its way before an answer came would count twice."""
STORE: Final = evolve(SMALL_STORE, flush_interval_ms=20)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that checks a transaction whatever its age."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=CONFIG, store_config=STORE) as started:
        yield started


@pytest.fixture
def name_server(broker: Broker) -> str:
    """Its own."""
    return name_server_of(broker)


def unknown(_message: ReceivedMessage) -> TransactionState:
    """A check that does not know."""
    return UNKNOWN


def delivered(broker: Broker, count: int) -> list[ReceivedMessage]:
    """The first so many messages that a group gets, and none after them."""
    with polling(name_server_of(broker), "T") as consumer:
        found = polled(consumer, count)
        assert consumer.poll(0.1) == []
    return found


def check_now(broker: Broker) -> None:
    """Have the broker make one round of checks with its next flush."""
    checks = broker.sending.checks
    checks._due_ns = 0
    wait_until(lambda: checks._due_ns != 0)


def all_ended(broker: Broker) -> bool:
    """Whether nothing is left that the broker could check, by one more round."""
    end = broker.store.visible_end(HALF_TOPIC, 0)
    check_now(broker)
    wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == end)
    return broker.store.visible_end(HALF_TOPIC, 0) == end


def test_what_is_committed_is_delivered_and_what_is_rolled_back_is_not(clients: Clients, broker: Broker) -> None:
    """With its tags, keys and properties, in the order of the commits; not before its work is done."""
    told = Told()
    producer = clients.transactions(unknown, hooks=[told])
    for number, state in enumerate((COMMIT, ROLLBACK, COMMIT)):

        def work(number: int = number, state: TransactionState = state) -> TransactionState:
            wait_until(lambda: broker.store.visible_end(HALF_TOPIC, 0) == number + 1)
            return state

        result = producer.send("T", b"%d" % number, clients.plain(work), tag="t", keys="k", properties={"a": "b"})
        assert result.state is state
    assert (producer.metrics().sends, len(told.events)) == (3, 6)
    producer.close()
    with pytest.raises(LifecycleError, match="closed"):
        producer.send("T", b"late", clients.plain(lambda: COMMIT))
    first, second = delivered(broker, 2)
    assert (first.body, second.body) == (b"0", b"2")
    assert (first.tag, first.keys, first.properties["a"]) == ("t", ("k",), "b")


def test_the_broker_checks_when_the_end_is_not_known_and_takes_the_answer(clients: Clients, broker: Broker) -> None:
    """The check sees the message in its own topic; its answers are as good as the work's."""
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return COMMIT if message.body == b"kept" else ROLLBACK

    producer = clients.transactions(check)
    producer.send("T", b"dropped", clients.plain(lambda: UNKNOWN))
    producer.send("T", b"kept", clients.plain(lambda: UNKNOWN), tag="t")
    check_now(broker)
    (message,) = delivered(broker, 1)
    assert all_ended(broker)
    assert (message.body, message.tag) == (b"kept", "t")
    assert {(one.topic, one.body) for one in asked} == {("T", b"dropped"), ("T", b"kept")}


def test_work_and_checks_that_raise_leave_the_end_open(
    clients: Clients, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets what the work raises; the broker checks again after a check that raises."""
    tries: list[int] = []

    def check(_message: ReceivedMessage) -> TransactionState:
        tries.append(1)
        if len(tries) == 1:
            raise ZeroDivisionError("the check's own fault")
        return COMMIT

    def work() -> TransactionState:
        raise LookupError("the work's own fault")

    with caplog.at_level(logging.WARNING):
        with pytest.raises(LookupError, match="the work's own fault"):
            clients.transactions(check).send("T", b"x", clients.plain(work))
        check_now(broker)
        wait_until(lambda: len(tries) == 1)
        check_now(broker)
        assert [message.body for message in delivered(broker, 1)] == [b"x"]
    assert "the check's own fault" in caplog.text
    assert len(tries) == 2


def test_another_member_answers_for_one_that_has_gone(name_server: str, broker: Broker) -> None:
    """Once it has sent something itself, it is asked what the other one left open."""
    with TransactionProducer(name_server, group="PG", check_transaction=lambda _message: COMMIT) as second:
        second.send("T", b"hello", lambda: ROLLBACK)
        with TransactionProducer(name_server, group="PG", check_transaction=unknown) as first:
            first._timer.close()
            first.send("T", b"left open", lambda: UNKNOWN)
        check_now(broker)
        assert [message.body for message in delivered(broker, 1)] == [b"left open"]


def test_a_user_cannot_prepare_a_message_by_a_property(name_server: str) -> None:
    """It would never be delivered."""
    with (
        Producer(name_server) as producer,
        pytest.raises(ConfigError, match="TRAN_MSG is reserved for the client"),
    ):
        producer.send("T", b"x", properties={"TRAN_MSG": "true"})


def test_work_that_is_cancelled_leaves_the_end_open(name_server: str, broker: Broker) -> None:
    """The broker checks."""

    async def check(_message: ReceivedMessage) -> TransactionState:
        await asyncio.sleep(0)
        return COMMIT

    async def story() -> None:
        working = asyncio.Event()

        async def hangs() -> TransactionState:
            working.set()
            await asyncio.sleep(3600)
            return ROLLBACK

        async with AsyncTransactionProducer(name_server, group="PG", check_transaction=check) as producer:
            sending = asyncio.create_task(producer.send("T", b"cancelled", hangs))
            await working.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await asyncio.to_thread(check_now, broker)
            (message,) = await asyncio.to_thread(delivered, broker, 1)
            assert message.body == b"cancelled"

    run(story)


@pytest.mark.parametrize("by_itself", [True, False], ids=["in the check", "beside it"])
def test_a_producer_may_be_closed_while_a_check_runs(name_server: str, broker: Broker, by_itself: bool) -> None:
    """A close in the check does not wait for the check; any other close does, and the answer counts."""

    async def story() -> None:
        checking = asyncio.Event()

        async def check(_message: ReceivedMessage) -> TransactionState:
            checking.set()
            if by_itself:
                await producer.close()
            await asyncio.sleep(0.01)
            return COMMIT

        async def work() -> TransactionState:
            return UNKNOWN

        producer = AsyncTransactionProducer(name_server, group="PG", check_transaction=check)
        await producer.send("T", b"x", work)
        await asyncio.to_thread(check_now, broker)
        await checking.wait()
        await producer.close()
        if by_itself:
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    run(story)
    if not by_itself:
        assert [message.body for message in delivered(broker, 1)] == [b"x"]
