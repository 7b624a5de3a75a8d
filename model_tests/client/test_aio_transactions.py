"""Transactions on an event loop: as on threads, with work and checks that are awaited, cancelled and closed under."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from model_tests.client.test_aio_consumer import run
from model_tests.client.test_hooks import Told
from model_tests.client.test_transactions import CONFIG, STORE, all_ended, check_now, delivered

from longpoll_broker.broker import Broker
from longpoll_client import AsyncTransactionProducer, LifecycleError, ReceivedMessage, TransactionState
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that asks about a transaction whatever its age."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=CONFIG, store_config=STORE) as started:
        yield started


def ends(state: TransactionState) -> Callable[..., Awaitable[TransactionState]]:
    """Work, or a check, that ends so."""

    async def done(*_message: ReceivedMessage) -> TransactionState:
        await asyncio.sleep(0)
        return state

    return done


def producer_at(
    broker: Broker, check: Callable[[ReceivedMessage], Awaitable[TransactionState]], **options: object
) -> AsyncTransactionProducer:
    """A producer of the group PG."""
    name_server = "{}:{}".format(*broker.name_server_address)
    return AsyncTransactionProducer(RUNTIME, name_server, "PG", check, **options)  # type: ignore[arg-type] # a test's


def test_what_is_committed_is_delivered_and_what_is_rolled_back_is_not(broker: Broker) -> None:
    """Many at once; hooks are told of each, and a producer that is closed sends no more."""
    told = Told()

    async def story() -> None:
        async with producer_at(broker, ends(UNKNOWN), hooks=[told]) as producer:
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
        async with producer_at(broker, check) as producer:
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

        producer = producer_at(broker, check)
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


def test_planted_a_producer_that_ends_nothing_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without 37 nothing is delivered although the work was done, and the broker asks."""
    asked = asyncio.Event()

    async def check(_message: ReceivedMessage) -> TransactionState:
        asked.set()
        return ROLLBACK

    async def nothing(*_ended: object) -> None:
        """No end is told."""

    async def story() -> None:
        async with producer_at(broker, check) as producer:
            await producer.send("T", b"x", ends(COMMIT))
            await asyncio.to_thread(check_now, broker)
            await asked.wait()

    monkeypatch.setattr(AsyncTransactionProducer, "_end", nothing)
    run(story)
    assert not broker.store.visible_end("T", 0)
