"""Consumers on an event loop: at least once, whoever leaves, is cancelled, closed or asked by an administrator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from model_tests.client.test_hooks import Told

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumerConfig,
    ConsumeStatus,
    Later,
    LifecycleError,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.consume import puller
from longpoll_client.consume.workers import Answer
from longpoll_client.errors import NoRouteError
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 20.0


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of an embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Tell a story, of which no task is left."""

    async def told() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(told())


def config(**options: object) -> ConsumerConfig:
    """Of group G, from the first message, quick to share."""
    return ConsumerConfig("G", start_at=StartAt.FIRST, rebalance_s=0.2, **options)  # type: ignore[arg-type] # a test's


async def fill(name_server: str, topic: str, count: int) -> None:
    """Send the numbers from 0."""
    async with AsyncProducer(RUNTIME, name_server) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(count)))


def lags(name_server: str, topic: str) -> int:
    """How many messages the group has not consumed, by its broker."""
    with Admin(RUNTIME, name_server) as admin:
        return sum(row.lag for row in admin.offsets("G", [topic]))


def test_members_share_and_take_over_and_nothing_is_lost(name_server: str) -> None:
    """Two polling members have disjoint queues; what one leaves behind the other gets, and offsets are stored."""

    async def story() -> None:
        shared = asyncio.Event()

        def look(_queue: MessageQueue, _is_ours: bool) -> None:
            if [len(consumer.queues) for consumer in (first, second)] == [2, 2]:
                shared.set()

        first, second = (AsyncPullConsumer(RUNTIME, name_server, config(), on_share=look) for _number in range(2))
        seen: list[int] = []
        for consumer in (first, second):
            consumer.subscribe(topic)
        async with first:
            async with second:
                await shared.wait()
                assert not set(first.queues) & set(second.queues)
                await fill(name_server, topic, 100)
                for _number in range(2):
                    seen += [int(message.body) for message in await second.poll(PATIENCE_S)]
                await second.commit()
            while len(set(seen)) < 100:
                seen += [int(message.body) for message in await first.poll(PATIENCE_S)]
            await first.commit()
            assert first.statistics[topic].consumed_count > 0
        assert sorted(set(seen)) == list(range(100))
        with pytest.raises(LifecycleError, match="closed"):
            await first.poll(0.0)

    with new_topic(name_server, 4) as topic:
        run(story)
        assert lags(name_server, topic) == 0


def test_a_poll_may_be_cancelled_at_any_time_and_a_close_ends_it(name_server: str) -> None:
    """What it would have returned the next one does; an iteration ends with its consumer."""

    async def story() -> None:
        consumer = AsyncPullConsumer(RUNTIME, name_server, config())
        consumer.subscribe(topic)
        async with consumer:
            sending = asyncio.create_task(fill(name_server, topic, 30))
            seen: list[int] = []
            while len(seen) < 30:
                polling = asyncio.create_task(consumer.poll(PATIENCE_S, 1))
                await asyncio.wait([polling], timeout=0.001)
                if not polling.done():
                    polling.cancel()
                with suppress(asyncio.CancelledError):
                    seen += [int(message.body) for message in await polling]
            await sending
            assert sorted(seen) == list(range(30))
            assert await consumer.poll(0.0) == []

            async def iterate() -> None:
                async for _message in consumer:
                    raise AssertionError("nothing more was sent")

            iterating = asyncio.create_task(iterate())
            await asyncio.sleep(0)
            await consumer.close()
            await iterating

    with new_topic(name_server, 2) as topic:
        run(story)


def test_a_start_may_be_cancelled_at_every_await_and_tried_again(name_server: str) -> None:
    """Nothing goes on behind its back."""

    async def story() -> None:
        consumer = AsyncPullConsumer(RUNTIME, name_server, config())
        consumer.subscribe(topic)
        turns = 0
        starting = asyncio.create_task(consumer.start())
        while not starting.done():
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            assert consumer.queues == ()
            turns += 1
            starting = asyncio.create_task(consumer.start())
            for _turn in range(turns):
                await asyncio.sleep(0.0005)
        assert turns > 2
        await starting
        assert len(consumer.queues) == 2
        await consumer.close()

    with new_topic(name_server, 2) as topic:
        run(story)


def test_what_a_coroutine_puts_off_comes_again(name_server: str) -> None:
    """What it takes is consumed, what it puts off or raises at is sent back, and it runs several times at once."""
    seen: list[tuple[bytes, int]] = []
    running = most = 0

    async def story() -> None:
        done = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            (message,) = messages
            assert message.topic == topic
            seen.append((message.body, message.reconsume_times))
            if {body for body, _times in seen} >= {b"%d" % number for number in range(20)} and (b"3", 1) in seen:
                done.set()
            return Later(1) if (message.body, message.reconsume_times) == (b"3", 0) else ConsumeStatus.SUCCESS

        consumer = AsyncPushConsumer(RUNTIME, name_server, config(), listen)
        consumer.subscribe(topic)
        async with consumer:
            await fill(name_server, topic, 20)
            await done.wait()
            assert consumer.statistics[topic].sent_back_count == 1
            assert consumer.statistics[topic].later_count == 1

    with new_topic(name_server, 2) as topic:
        run(story)
        assert lags(name_server, topic) == 0
    assert most > 1


def test_a_listener_may_raise_hang_answer_nothing_and_close(name_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each costs a line in the log; the close waits for the answer of the one that asked for it."""

    async def story() -> None:
        closed = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            body = messages[0].body
            if body == b"0":
                assert isinstance(messages, list)
                messages.clear()  # It may.
                raise ValueError("mistake")
            if body == b"1":
                await asyncio.sleep(PATIENCE_S)
            if body == b"2":
                return None  # type: ignore[return-value] # a mistake
            await consumer.close()
            closed.set()
            return ConsumeStatus.SUCCESS

        options = config(consume_timeout_s=0.1, thread_count=1, persist_s=0.05)
        consumer = AsyncPushConsumer(RUNTIME, name_server, options, listen)
        consumer.subscribe(topic)
        async with AsyncProducer(RUNTIME, name_server) as producer:
            for number in range(4):
                await producer.send(topic, b"%d" % number)
        await consumer.start()
        await closed.wait()
        await consumer.close()
        with pytest.raises(LifecycleError):
            await consumer.start()

    with new_topic(name_server, 1) as topic:
        run(story)
        assert lags(name_server, topic) == 0
    assert [words in caplog.text for words in ("ValueError('mistake')", "is cancelled", "said None")] == [True] * 3


def test_a_start_that_cannot_be_is_told(name_server: str) -> None:
    """No topic, one that is not there, the consumer of threads in the place of a runtime."""

    async def story() -> None:
        consumer = AsyncPullConsumer(RUNTIME, name_server, config(waits_for_topics=False))
        with pytest.raises(ConfigError, match="has no topic"):
            await consumer.start()
        consumer.subscribe("not-there")
        with pytest.raises(NoRouteError, match="not-there"):
            await consumer.start()
        await consumer.close()
        plain = PullConsumer(RUNTIME, name_server, config())
        with pytest.raises(ConfigError, match="own connections"):
            AsyncPullConsumer(plain)  # type: ignore[arg-type] # as it was once
        plain.close()

    run(story)


def test_administrators_are_answered(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does (307), one message (309), and going on elsewhere (220), as on threads."""
    monkeypatch.setattr(puller, "RETRY_S", 0.05)

    async def story() -> None:
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            await got.put(messages[0].body)
            return ConsumeStatus.SUCCESS

        consumer = AsyncPushConsumer(RUNTIME, name_server, config(), listen)
        consumer.subscribe(topic)
        await fill(name_server, topic, 3)
        async with consumer:
            assert sorted([await got.get() for _number in range(3)]) == [b"0", b"1", b"2"]
            member = consumer._member
            route = await member._instance.route(topic)
            address = next(iter(route.addresses.values()))
            client_id = member._instance.client_id
            peer = await member._instance.connection(address)
            running = GetConsumerRunningInfoRequestHeader(consumer_group="G", client_id=client_id)
            answer = await peer.call(RequestCode.GET_CONSUMER_RUNNING_INFO, running)
            assert answer.code == 0
            assert b'"consumeOKTPS"' in bytes(answer.body)
            queue = MessageQueue(topic=topic, broker_name=next(iter(route.addresses)), queue_id=0)
            member._move_soon({queue: 1})
            assert [await got.get() for _number in range(2)] == [b"1", b"2"]
            async with AsyncProducer(RUNTIME, name_server) as producer:
                sent = await producer.send(topic, b"3")
            assert await got.get() == b"3"
            directly = ConsumeMessageDirectlyResultRequestHeader(
                consumer_group="G", client_id=client_id, msg_id=sent.broker_msg_id, broker_name=queue.broker_name
            )
            answer = await peer.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly)
            assert b"CR_SUCCESS" in bytes(answer.body)
            assert await got.get() == b"3"

    with new_topic(name_server, 1) as topic:
        run(story)


def test_hooks_are_told_of_what_a_listener_is_given(name_server: str) -> None:
    """Before and after each call, with what it raised, also of one cancelled; a hook that raises harms nobody."""
    bad, good = Told(is_bad=True), Told()

    async def story() -> None:
        await fill(name_server, topic, 3)
        done = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            if messages[0].body == b"0":
                raise ValueError("mistake")
            if messages[0].body == b"1":
                await asyncio.sleep(PATIENCE_S)
            done.set()
            return ConsumeStatus.SUCCESS

        options = config(consume_timeout_s=0.1, thread_count=1, hooks=[bad, good])
        consumer = AsyncPushConsumer(RUNTIME, name_server, options, listen)
        consumer.subscribe(topic)
        async with consumer:
            await done.wait()

    with new_topic(name_server, 1) as topic:
        run(story)
    assert bad.events == good.events
    begun, ended = good.events[::2], good.events[1::2]
    assert [event[:4] for event in begun] == [("before", *event[1:4]) for event in ended]
    assert len({event[2] for event in begun}) == 3
    assert [type(event[4]) for event in ended] == [ValueError, TimeoutError, type(None)]
    assert [event[5] for event in ended] == [False, False, True]
