"""How an event loop's tasks share out what a pull brought, without a broker: a batch is put in, a listener gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from model_tests.client.test_aio_consumer import run

from longpoll_client import AsyncPushConsumer, ConsumerConfig, ConsumeStatus, MessageQueue, ReceivedMessage
from longpoll_client.aio.push import AsyncListener
from longpoll_client.consume.puller import Puller
from longpoll_protocol.bodies import SubscriptionData
from longpoll_runtime.real import RealRuntime

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)
COUNT = 10


def message(offset: int) -> ReceivedMessage:
    """With its offset as its body."""
    return ReceivedMessage("T", 0, offset, b"%d" % offset, {}, "", 0, "", 0, "", 0, 0, 0, 0)


class Given:
    """A consumer whose tasks run, and a queue of it with ten messages that were pulled."""

    def __init__(self, listener: AsyncListener, task_count: int = 4, lot_size: int = 1) -> None:
        config = ConsumerConfig("G", consume_count_max=lot_size)
        self.consumer = AsyncPushConsumer(RealRuntime(), "127.0.0.1:1", config, listener)
        self.tasks = [asyncio.create_task(self.consumer._work()) for _number in range(task_count)]
        self.puller = self.queue(QUEUE)

    def queue(self, queue: MessageQueue) -> Puller:
        """The puller of a queue."""
        subscription = SubscriptionData(topic="T", sub_string="*")
        puller: Puller = self.consumer._member._make_puller(queue, subscription, 0, False)
        puller._is_pulling = True  # a pull is on its way, so none is asked for
        return puller

    def deliver(self, puller: Puller | None = None) -> None:
        """As a pull does."""
        puller = puller or self.puller
        puller._is_pulling = True
        puller._take(tuple(message(offset) for offset in range(COUNT)), COUNT, 0, is_moved=False)
        puller._is_pulling = True

    async def end(self) -> None:
        """End the tasks."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def offsets(messages: Sequence[ReceivedMessage]) -> list[int]:
    """Of messages."""
    return [each.queue_offset for each in messages]


async def turned(is_so: Callable[[], bool]) -> None:
    """Have the loop turn until it is so."""
    for _turn in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it is not so after a thousand turns")


def test_who_is_woken_by_the_listener_sees_what_it_has_consumed() -> None:
    """Also when it has woken somebody in the same turn of the loop, with its first message or its last."""

    async def story() -> None:
        for last in (0, COUNT - 1):
            came = asyncio.Event()

            async def listen(
                messages: Sequence[ReceivedMessage], last: int = last, came: asyncio.Event = came
            ) -> ConsumeStatus:
                if offsets(messages) == [last]:
                    came.set()
                return ConsumeStatus.SUCCESS

            given = Given(listen)
            given.deliver()
            await came.wait()
            assert given.consumer.statistics["T"].consumed_count == COUNT
            assert given.puller.offset_done == COUNT
            await given.end()

    run(story)


def test_each_queue_is_told_of_its_own_where_one_task_has_both_in_a_turn() -> None:
    """What was consumed of the first is not taken for the second's, nor forgotten."""

    async def story() -> None:
        given = Given(consumed, task_count=1)
        pullers = [given.puller, given.queue(MessageQueue(topic="T", broker_name="b", queue_id=1))]
        for puller in pullers:
            given.deliver(puller)
        await turned(lambda: [puller.offset_done for puller in pullers] == [COUNT, COUNT])
        assert given.consumer.statistics["T"].consumed_count == 2 * COUNT
        await given.end()

    run(story)


async def consumed(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
    """At once."""
    return ConsumeStatus.SUCCESS


def test_what_a_slow_listener_has_consumed_is_told_at_once() -> None:
    """And not when the whole batch is done: a crash would bring all of it again."""

    async def story() -> None:
        seen: list[int] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            seen.append(given.puller.offset_done)
            await asyncio.sleep(0)
            return ConsumeStatus.SUCCESS

        given = Given(listen, task_count=1)
        given.deliver()
        await turned(lambda: given.puller.offset_done == COUNT)
        assert seen == list(range(COUNT))
        await given.end()

    run(story)


def test_a_batch_is_shared_among_tasks_whose_listener_waits() -> None:
    """Each message once, as many at a time as there are tasks, in lots of the size that was asked for."""

    async def story() -> None:
        got: list[list[int]] = []
        at_once, go_on = 0, asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            nonlocal at_once
            at_once += 1
            got.append(offsets(messages))
            await go_on.wait()
            return ConsumeStatus.SUCCESS

        given = Given(listen, task_count=4, lot_size=3)
        await asyncio.sleep(0)
        given.deliver()
        await turned(lambda: at_once == 4)
        go_on.set()
        await turned(lambda: given.puller.offset_done == COUNT)
        assert sorted(got) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        await given.end()

    run(story)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_queue_that_is_paused_or_given_up_keeps_the_rest_of_its_batch(is_dropped: bool) -> None:
    """What the listener has had stays consumed; paused, the rest comes once it is resumed, and then once."""

    async def story() -> None:
        got: list[int] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            got.extend(offsets(messages))
            if got == [0, 1, 2]:
                (given.puller.drop if is_dropped else given.puller.pause)()
            return ConsumeStatus.SUCCESS

        given = Given(listen)
        given.deliver()
        for _turn in range(10):
            await asyncio.sleep(0)
        assert got == [0, 1, 2]
        if not is_dropped:
            assert given.puller.offset_done == 3
            given.puller.resume()
            await turned(lambda: given.puller.offset_done == COUNT)
            assert got == list(range(COUNT))
        await given.end()

    run(story)
