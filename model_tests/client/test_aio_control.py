"""Consumers on an event loop go elsewhere, wait, choose their queues and want other topics, as those on threads do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from model_tests.client.test_aio_consumer import RUNTIME, config, fill, lags, name_server, run

from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import AsyncPullConsumer, AsyncPushConsumer, ConsumeStatus, MessageQueue, ReceivedMessage
from longpoll_client.errors import LifecycleError, NotOursError
from longpoll_spec.errors import ConfigError

__all__ = ["name_server"]


async def bodies(consumer: AsyncPullConsumer, count: int) -> list[bytes]:
    """As many messages as are polled until there are so many."""
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in await consumer.poll(5.0, count - len(found))]
    return found


def test_seek_drops_what_was_pulled_and_is_stored(name_server: str) -> None:
    """To an offset, the beginning, the end and a time; what is not there, or not ours, is refused."""

    async def story() -> None:
        await fill(name_server, topic, 10)
        consumer = AsyncPullConsumer(RUNTIME, name_server, config())
        consumer.subscribe(topic)
        with pytest.raises(LifecycleError, match="not started"):
            await consumer.seek(MessageQueue(topic=topic, broker_name="b", queue_id=0), 0)
        async with consumer:
            assert len(await bodies(consumer, 3)) == 3
            (queue,) = await consumer.topic_queues(topic)
            await consumer.seek(queue, 7)
            assert len(await bodies(consumer, 3)) == 3
            with pytest.raises(ConfigError, match="offset 11 is not in"):
                await consumer.seek(queue, 11)
            with pytest.raises(NotOursError):
                consumer.pause([MessageQueue(topic="other", broker_name="b", queue_id=0)])
            await consumer.seek_to_beginning(queue)
            first = await consumer.poll(5.0, 1)
            assert first[0].queue_offset == await consumer.offset_for_timestamp(queue, 0) == 0
            await consumer.seek_to_end(queue)
            assert await consumer.poll(0.05) == []
        assert lags(name_server, topic) == 0

    with new_topic(name_server, 1) as topic:
        run(story)


@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_paused_queue_gives_nothing(name_server: str, *, all_of_them: bool) -> None:
    """What was pulled waits, also the rest of a poll, and comes in order after `resume`."""

    async def story() -> None:
        await fill(name_server, topic, 6)
        consumer = AsyncPullConsumer(RUNTIME, name_server, config())
        consumer.subscribe(topic)
        async with consumer:
            first = await consumer.poll(5.0, 1)
            queues = None if all_of_them else list(consumer.queues)
            consumer.pause(queues)
            assert await consumer.poll(0.05) == []
            waiting = asyncio.create_task(consumer.poll(5.0, 5))
            await asyncio.sleep(0)
            consumer.resume(queues)
            rest = await waiting
            while len(rest) < 5:
                rest += await consumer.poll(5.0)
            assert [message.queue_offset for message in first + rest] == list(range(6))

    with new_topic(name_server, 1) as topic:
        run(story)


def test_assigned_queues_are_read_beside_the_group(name_server: str) -> None:
    """They are nobody else's business: the group does not know who reads them; others may be assigned while it runs."""

    async def story() -> None:
        await fill(name_server, topic, 8)
        consumer = AsyncPullConsumer(RUNTIME, name_server, config())
        one, other = await consumer.topic_queues(topic)
        consumer.assign([one])
        with pytest.raises(ConfigError, match="not both"):
            consumer.subscribe(topic)
        async with consumer:
            assert {message.queue_id for message in await consumer.poll(5.0)} == {one.queue_id}
            await consumer.commit()
            consumer.assign([other])
            await consumer.seek(other, 1)
            found = await consumer.poll(5.0)
            assert (found[0].queue_id, found[0].queue_offset) == (other.queue_id, 1)
            assert consumer.queues == (other,)
            await consumer.commit()
        again = AsyncPullConsumer(RUNTIME, name_server, config())
        assert await again.committed(one) == await again.committed(other) == 4
        again.assign([one])
        await again.start()
        await again.close()

    with new_topic(name_server, 2) as topic:
        run(story)


def test_a_listener_waits_and_wants_another_topic(name_server: str) -> None:
    """Paused it is given nothing; a topic that is left gives up its queues, and a new one is begun."""

    async def story() -> None:
        heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            heard.put_nowait((messages[0].topic, messages[0].body))
            return ConsumeStatus.SUCCESS

        left = asyncio.Event()

        def share(queue: MessageQueue, is_ours: bool) -> None:
            if queue.topic == one and not is_ours:
                left.set()

        consumer = AsyncPushConsumer(RUNTIME, name_server, config(), listen, on_share=share)
        consumer.subscribe(one)
        async with consumer:
            with pytest.raises(LifecycleError, match="by SQL92"):
                consumer.subscribe(other, "a > 1", "SQL92")
            consumer.pause()
            await fill(name_server, one, 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(heard.get(), 0.1)
            consumer.resume()
            assert await heard.get() == (one, b"0")
            consumer.subscribe(other)
            await fill(name_server, other, 1)
            assert await heard.get() == (other, b"0")
            consumer.unsubscribe(one)
            await left.wait()
            with pytest.raises(ConfigError, match="not subscribed"):
                consumer.unsubscribe(one)
        assert lags(name_server, one) == lags(name_server, other) == 0

    with new_topic(name_server, 1) as one, new_topic(name_server, 1) as other:
        run(story)
