"""Transactions: delivered once the work has succeeded, or once the sender answers a check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from model_tests.support.client import PATIENCE_S, RUNTIME, Told, run

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.send.append import HALF_TOPIC
from longpoll_broker.service.send.transaction_check import GROUP
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_client import (
    AsyncTransactionProducer,
    ConsumerConfig,
    LifecycleError,
    Producer,
    PullConsumer,
    ReceivedMessage,
    StartAt,
    TransactionProducer,
    TransactionState,
)
from longpoll_spec.errors import ConfigError

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
        pytest.raises(ConfigError, match="TRAN_MSG is set by the client itself"),
    ):
        producer.send("T", b"x", properties={"TRAN_MSG": "true"})


def ends(state: TransactionState) -> Callable[..., Awaitable[TransactionState]]:
    """Work, or a check, that ends so."""

    async def done(*_message: ReceivedMessage) -> TransactionState:
        await asyncio.sleep(0)
        return state

    return done


def async_producer_at(
    broker: Broker, check: Callable[[ReceivedMessage], Awaitable[TransactionState]], **options: object
) -> AsyncTransactionProducer:
    """A producer of the group PG."""
    name_server = "{}:{}".format(*broker.name_server_address)
    return AsyncTransactionProducer(RUNTIME, name_server, "PG", check, **options)  # type: ignore[arg-type] # a test's


def test_what_is_committed_on_a_loop_is_delivered(broker: Broker) -> None:
    """Many at once; hooks are told of each, and a producer that is closed sends no more."""
    told = Told()

    async def story() -> None:
        async with async_producer_at(broker, ends(UNKNOWN), hooks=[told]) as producer:
            results = await asyncio.gather(
                *(
                    producer.send("T", b"%d" % number, ends(ROLLBACK if number % 2 else COMMIT), keys="k")
                    for number in range(10)
                )
            )
            assert [result.state for result in results] == [COMMIT, ROLLBACK] * 5
            assert producer.metrics().sends == 10
        with pytest.raises(LifecycleError, match="closed"):
            await producer.send("T", b"late", ends(COMMIT))
        await producer.close()

    run(story)
    assert sorted(message.body for message in delivered(broker, 5)) == [b"0", b"2", b"4", b"6", b"8"]
    assert len(told.events) == 20


def test_the_broker_asks_and_the_check_is_awaited(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Also after work that raised, was cancelled, or did not know; a check that raises is asked again."""
    asked: list[bytes] = []
    all_asked = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        if len(asked) == 3:
            all_asked.set()
        await asyncio.sleep(0)
        if asked.count(message.body) == 1:
            raise ZeroDivisionError("the check's own fault")
        return ROLLBACK if message.body == b"dropped" else COMMIT

    async def fails() -> TransactionState:
        raise LookupError("the work's own fault")

    async def story() -> None:
        async with async_producer_at(broker, check) as producer:
            with pytest.raises(LookupError, match="the work's own fault"):
                await producer.send("T", b"raised", fails)
            working = asyncio.Event()

            async def hangs() -> TransactionState:
                working.set()
                await asyncio.sleep(3600)
                return ROLLBACK

            sending = asyncio.create_task(producer.send("T", b"cancelled", hangs))
            await working.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await producer.send("T", b"dropped", ends(UNKNOWN))
            await asyncio.to_thread(check_now, broker)
            await all_asked.wait()
            await asyncio.to_thread(check_now, broker)
            assert {message.body for message in await asyncio.to_thread(delivered, broker, 2)} == {
                b"raised", b"cancelled"
            }  # fmt: skip
            assert await asyncio.to_thread(all_ended, broker)

    with caplog.at_level(logging.WARNING):
        run(story)
    assert "the check's own fault" in caplog.text
    assert sorted(asked) == sorted([b"raised", b"cancelled", b"dropped"] * 2)


@pytest.mark.parametrize("by_itself", [True, False], ids=["in the check", "beside it"])
def test_a_producer_may_be_closed_while_a_check_runs(broker: Broker, by_itself: bool) -> None:
    """In the check it does not wait for that; closed by somebody else it does, and the answer counts."""
    checking = asyncio.Event()

    async def story() -> None:
        async def check(_message: ReceivedMessage) -> TransactionState:
            checking.set()
            if by_itself:
                await producer.close()
            await asyncio.sleep(0.01)
            return COMMIT

        producer = async_producer_at(broker, check)
        await producer.send("T", b"x", ends(UNKNOWN))
        await asyncio.to_thread(check_now, broker)
        await checking.wait()
        await producer.close()
        if by_itself:
            me = asyncio.current_task()
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not me))

    run(story)
    if not by_itself:
        assert [message.body for message in delivered(broker, 1)] == [b"x"]
