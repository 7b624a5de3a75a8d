"""Order on an event loop: one queue's messages one lot after the other, whoever joins, leaves, puts off or resets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from model_tests.client.test_aio_consumer import RUNTIME, config, fill, lags, name_server, run

from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumerConfig,
    ConsumeStatus,
    OnShare,
    PushConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.aio import orderly
from longpoll_client.aio.orderly import InOrder
from longpoll_client.consume.puller import Batch
from longpoll_client.consume.workers import Answer

__all__ = ["name_server"]


class Watched:
    """A listener of several members, and whether it was ever given two lots of one queue at once or out of order."""

    def __init__(self, count: int) -> None:
        self.seen: dict[int, list[int]] = {}
        self.overlaps = 0
        self.all_came = asyncio.Event()
        self._running: set[int] = set()
        self._count = count

    async def listen(self, messages: Sequence[ReceivedMessage]) -> Answer:
        """Note them; every seventh is put off once."""
        message = messages[0]
        self.overlaps += message.queue_id in self._running
        self._running.add(message.queue_id)
        await asyncio.sleep(0.001)
        self._running.discard(message.queue_id)
        if message.queue_offset % 7 == 3 and not message.reconsume_times:
            return ConsumeStatus.LATER
        self.seen.setdefault(message.queue_id, []).append(message.queue_offset)
        if sum(len(set(offsets)) for offsets in self.seen.values()) >= self._count:
            self.all_came.set()
        return ConsumeStatus.SUCCESS

    def is_in_order(self) -> bool:
        """Whether every message came, and none before one of a lower offset had."""
        firsts = {queue: list(dict.fromkeys(offsets)) for queue, offsets in self.seen.items()}
        return all(offsets == list(range(len(offsets))) for offsets in firsts.values())


def consumer_of(
    name_server: str, topic: str, watched: Watched, on_share: OnShare | None = None, **options: object
) -> AsyncPushConsumer:
    """One member."""
    settings = config(suspend_s=0.01, **options)
    made = AsyncPushConsumer(RUNTIME, name_server, settings, watched.listen, is_orderly=True, on_share=on_share)
    made.subscribe(topic)
    return made


async def come_and_go(name_server: str, topic: str) -> Watched:
    """One member has 200 messages; another one joins and leaves while they come."""
    watched, joined = Watched(200), asyncio.Event()
    async with consumer_of(name_server, topic, watched) as first:
        await fill(name_server, topic, 100)
        async with consumer_of(name_server, topic, watched, lambda _queue, _is_ours: joined.set()):
            await fill(name_server, topic, 100)
            await joined.wait()
        await watched.all_came.wait()
        assert first.statistics[topic].later_count > 0
        assert first.statistics[topic].sent_back_count == 0
    return watched


def test_messages_come_in_order_while_members_come_and_go(name_server: str) -> None:
    """What is put off comes again in its place, before all that is behind it; nothing is given twice at once."""

    async def story() -> None:
        watched = await come_and_go(name_server, topic)
        assert watched.overlaps == 0
        assert watched.is_in_order()

    with new_topic(name_server, 4) as topic:
        run(story)
        assert lags(name_server, topic) == 0


def test_planted_a_queue_that_two_tasks_look_at_is_noticed(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each pull's messages looked at by a task of its own, two of them have one queue."""

    def careless(in_order: InOrder, batch: Batch) -> None:
        in_order._active.setdefault(batch.puller, orderly._Active())
        in_order._look(batch.puller)
        in_order._look(batch.puller)

    async def story() -> None:
        watched = Watched(20)
        async with consumer_of(name_server, topic, watched):
            await fill(name_server, topic, 20)
            await watched.all_came.wait()
        assert watched.overlaps > 0

    monkeypatch.setattr(InOrder, "deliver", careless)
    with new_topic(name_server, 1) as topic:
        run(story)


def test_what_nobody_can_use_becomes_a_dead_letter_and_its_queue_goes_on(name_server: str) -> None:
    """After as many tries as the config says, in place; one that hangs is put off in its place too."""
    tries: list[tuple[bytes, int]] = []

    async def story() -> None:
        done = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            (message,) = messages
            tries.append((message.body, message.reconsume_times))
            if message.body == b"0":
                return ConsumeStatus.LATER
            if message.body == b"1" and not message.reconsume_times:
                await asyncio.sleep(3600)
            if message.body == b"2":
                done.set()
            return ConsumeStatus.SUCCESS

        settings = config(suspend_s=0.01, reconsume_count_max=2, consume_timeout_s=0.2)
        consumer = AsyncPushConsumer(RUNTIME, name_server, settings, listen, is_orderly=True)
        consumer.subscribe(topic)
        async with consumer:
            await fill(name_server, topic, 3)
            await done.wait()
        dead = AsyncPullConsumer(RUNTIME, name_server, ConsumerConfig("gravediggers", start_at=StartAt.FIRST))
        dead.subscribe("%DLQ%G")
        async with dead:
            (message,) = await dead.poll(20.0)
            assert message.body == b"0"

    with new_topic(name_server, 1) as topic:
        run(story)
    assert tries == [(b"0", 0), (b"0", 1), (b"0", 2), (b"1", 0), (b"1", 1), (b"2", 0)]


def test_a_queue_that_another_member_has_is_not_consumed(name_server: str) -> None:
    """Until it is given back; the brokers keep each queue for one member."""

    async def story() -> None:
        watched, listening = Watched(10), asyncio.Event()
        loop = asyncio.get_running_loop()

        def listen(_messages: Sequence[ReceivedMessage]) -> Answer:
            loop.call_soon_threadsafe(listening.set)
            return ConsumeStatus.LATER

        holder = PushConsumer(
            RUNTIME,
            name_server,
            config(suspend_s=0.01, allocate=lambda _me, _all, queues: queues),
            listen,
            is_orderly=True,
        )
        holder.subscribe(topic)
        await asyncio.to_thread(holder.start)
        try:
            await fill(name_server, topic, 10)
            await listening.wait()
            everything = consumer_of(name_server, topic, watched, allocate=lambda _me, _all, queues: queues)
            async with everything:
                assert [queue for queue in everything.queues if queue.topic == topic] == []
                assert watched.seen == {}
                await asyncio.to_thread(holder.close)
                await watched.all_came.wait()
        finally:
            await asyncio.to_thread(holder.close)
        assert watched.is_in_order()

    with new_topic(name_server, 2) as topic:
        run(story)


def test_a_reset_waits_for_the_listener_that_has_the_queue(name_server: str) -> None:
    """What it was given is ended first, then the queue goes on where an administrator sent it."""

    async def story() -> None:
        got: asyncio.Queue[bytes] = asyncio.Queue()
        going_on = asyncio.Event()
        running = most = 0

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await got.put(messages[0].body)
            await going_on.wait()
            running -= 1
            return ConsumeStatus.SUCCESS

        consumer = AsyncPushConsumer(RUNTIME, name_server, config(), listen, is_orderly=True)
        consumer.subscribe(topic)
        await fill(name_server, topic, 5)
        async with consumer:
            assert await got.get() == b"0"
            (queue,) = [queue for queue in consumer.queues if queue.topic == topic]
            given_up = consumer._member.own.pullers()[queue]
            moving = asyncio.create_task(consumer._member._move({queue: 3}))
            await moving
            assert given_up.is_dropped
            going_on.set()
            assert [await got.get() for _number in range(2)] == [b"3", b"4"]
        assert most == 1

    with new_topic(name_server, 1) as topic:
        run(story)


@pytest.mark.parametrize(("is_orderly", "has_run_out", "lag"), [(False, False, 0), (True, False, 0), (True, True, 3)])
def test_a_member_whose_lock_has_run_out_stores_nothing(
    name_server: str, is_orderly: bool, has_run_out: bool, lag: int
) -> None:
    """As on threads."""

    async def story() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def listen(_messages: Sequence[ReceivedMessage]) -> Answer:
            begun.set()
            await goes_on.wait()
            return ConsumeStatus.SUCCESS

        settings = config(consume_count_max=3)
        await fill(name_server, topic, 3)
        consumer = AsyncPushConsumer(RUNTIME, name_server, settings, listen, is_orderly=is_orderly)
        consumer.subscribe(topic)
        async with consumer:
            await begun.wait()
            (puller,) = (each for queue, each in consumer._member.own.pullers().items() if queue.topic == topic)
            # From now on its pulls have nothing to commit: the next one is on its way while the listener waits.
            assert puller._is_pulling
            assert (puller.locked_until_ns is None) is not is_orderly
            if has_run_out:
                puller.locked_until_ns = 1
            goes_on.set()

    with new_topic(name_server, 1) as topic:
        run(story)
        assert lags(name_server, topic) == lag
