"""A consumer that gives messages to the task that awaits `poll`. Delivery is at least once, as in the threaded client.

Source: `DefaultLitePullConsumerImpl.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Unpack

from longpoll_client.aio.consumer import AsyncConsumer
from longpoll_client.aio.member import AsyncMember
from longpoll_client.checks import Addresses
from longpoll_client.consume.hook_calls import HookCalls
from longpoll_client.consume.listener.workers import Retry
from longpoll_client.consume.pull import POLL_S, check_returned
from longpoll_client.consume.puller import Batch
from longpoll_client.lifecycle import Closing
from longpoll_client.link.timeouts import check_count, wait_ns
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import DEAD_LEVEL, ConsumerOptions, options_of
from longpoll_protocol.bodies import MessageQueue


class AsyncPullConsumer(AsyncConsumer):
    """Gives messages to a task that awaits `poll`. `async with` starts and closes it.

    The next poll, or `commit`, marks the returned messages as consumed. A cancelled poll has taken nothing.

    Invariant: `_given` was returned and is not consumed; `_rest` came with it and is not yet returned.
    """

    def __init__(
        self,
        name_server: Addresses,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """As `PullConsumer`; raises ConfigError."""
        given = options_of(name_server, **options)
        self._member = AsyncMember(given, self._deliver)
        self._now_ns = given.runtime.monotonic_ns
        self._hook_calls = HookCalls(given.runtime, given.config)
        self._batches: list[Batch] = []
        self._came = asyncio.Event()
        self._closing = Closing()
        self._given: Batch | None = None
        self._rest: Batch | None = None

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Every message, one at a time, until the close. Asking for the next one marks it as consumed."""
        return self._messages()

    async def start(self) -> None:
        """Join the group and begin to pull; raises as `PullConsumer.start`."""
        await self._member.start()

    # ------------------------------------------------------------ which queues, and from where

    def assign(self, queues: Collection[MessageQueue], expression: str = "*") -> None:
        """As `PullConsumer.assign`."""
        self._member.assign(tuple(queues), expression)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """As `PullConsumer.seek`."""
        await self._member.run(self._member.seek(queue, offset))

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """As `PullConsumer.seek_to_beginning`."""
        await self._member.run(self._member.seek_to(queue, "first"))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """As `PullConsumer.seek_to_end`."""
        await self._member.run(self._member.seek_to(queue, "last"))

    # ------------------------------------------------------------ messages

    async def poll(self, timeout_s: float = 1.0, count_max: int | None = None) -> list[ReceivedMessage]:
        """The next messages of one queue, in order; empty after the time-out, or if the consumer is closed.

        Raises ConfigError for a `count_max` under 1, and LifecycleError before the start and after the close.
        """
        check_count(count_max)
        self._settle()
        begun_ns = self._now_ns()
        batch, self._rest = self._rest, None
        if batch is not None and batch.puller.is_paused:
            self._batches.insert(0, batch)
            batch = None
        if batch is None or batch.puller.is_dropped:
            batch = await self._next_batch(timeout_s)
        if batch is None:
            return []
        given, rest = batch.messages[:count_max], batch.messages[len(batch.messages[:count_max]) :]
        self._rest = Batch(batch.puller, rest) if rest else None
        self._given = Batch(batch.puller, given)
        shown = self._member.shown(given)
        self._hook_calls.received(shown, self._now_ns() - begun_ns)
        return shown

    async def retry(self, message: ReceivedMessage, delay_s: float | None = None) -> None:
        """As `PullConsumer.retry`."""
        await self._put_off(message, Retry(delay_s).level)

    async def reject(self, message: ReceivedMessage) -> None:
        """As `PullConsumer.reject`."""
        await self._put_off(message, DEAD_LEVEL)

    async def _put_off(self, message: ReceivedMessage, delay_level: int) -> None:
        check_returned(self._member.config, message, () if self._given is None else self._given.messages)
        assert self._given is not None
        await self._member.run(self._member.send_back(message, self._given.puller.queue, delay_level))

    async def commit(self) -> None:
        """Mark every returned message as consumed, and store the offsets; raises a LongpollError.

        Raises LifecycleError before the start and after the close.
        """
        self._settle()
        await self._member.store_now()

    def _settle(self) -> None:
        self._member.lifecycle.check_running("poll and commit")
        given, self._given = self._given, None
        if given is not None:
            given.puller.done(given.messages)
            self._member.statistics.add(given.puller.queue.topic, consumed_count=len(given.messages))

    async def close(self) -> None:
        """Leave the group, once. Messages that were returned and not committed come again. A poll ends.

        If the caller is cancelled, the close continues, and a second call waits for it.
        """
        self._member.lifecycle.end()
        self._came.set()
        await self._closing.wait(self._member.close)

    def _deliver(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._came.set()

    async def _next_batch(self, timeout_s: float) -> Batch | None:
        """The first batch of a current queue; None after the time-out."""
        try:
            async with asyncio.timeout(wait_ns(timeout_s) / 1e9):
                while not self._member.lifecycle.is_closed:
                    batch = self._first()
                    if batch is not None:
                        return batch
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return None
        return None

    def _first(self) -> Batch | None:
        """Take out the first batch whose queue is current and not paused."""
        self._batches = [batch for batch in self._batches if not batch.puller.is_dropped]
        for place, batch in enumerate(self._batches):
            if not batch.puller.is_paused:
                return self._batches.pop(place)
        return None

    def _wake(self) -> None:
        self._came.set()

    async def _messages(self) -> AsyncIterator[ReceivedMessage]:
        while not self._member.lifecycle.is_closed:
            for message in await self.poll(POLL_S, 1):
                yield message
