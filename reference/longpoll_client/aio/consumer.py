"""A member of a consumer group on an event loop, and the consumer that gives messages to the task that awaits `poll`.

Delivery is at least once, as in the threaded client. `push` has the consumer with a listener.

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`, `DefaultLitePullConsumerImpl.java`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.checks import Addresses, Sql
from longpoll_client.consume.broker_requests import GiveDirectly
from longpoll_client.consume.consumer import POLL_S, ConsumerCore, Polled
from longpoll_client.consume.listener import Retry
from longpoll_client.consume.member import GroupMember
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.lifecycle import Closing
from longpoll_client.link.exchange import check_count, wait_ns
from longpoll_client.link.steps import Steps
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import DEAD_LEVEL, ConsumerOptions, MemberOptions, options_of
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime.recoverable import ANYTHING

T = TypeVar("T")


class AsyncMember(GroupMember):
    """Keeps this client in its group and its queues pulled; `deliver` gets the messages.

    Invariant: an exchange that begins or gives up queues holds `_rebalancing`.
    """

    def __init__(
        self,
        options: MemberOptions,
        deliver: Callable[[Batch], None],
        *,
        direct: GiveDirectly | None = None,
        is_orderly: bool = False,
        is_busy: Callable[[Puller], bool] = lambda _puller: False,
    ) -> None:
        """As `GroupMember`."""
        self._rebalancing = asyncio.Lock()
        self._instance = AsyncInstance(
            options.runtime,
            options.name_server,
            client_id=options.config.client_id,
            on_request=self._requested,
            credentials=options.credentials,
        )
        super().__init__(
            options,
            self._instance,
            self._instance,
            deliver,
            client_id=lambda: self._instance.client_id,
            direct=direct,
            is_orderly=is_orderly,
            is_busy=is_busy,
        )

    async def run(self, steps: Steps[T]) -> T:
        """Run an exchange, and await each answer; raises a LongpollError."""
        return await self._instance.run(steps)

    async def _run_exclusively(self, make: Callable[[], Steps[T]]) -> T:
        async with self._rebalancing:
            return await self.run(make())

    def soon(self, make: Callable[[], Steps[object]], delay_s: float = 0.0, *, rebalances: bool = False) -> None:
        """As `GroupMember.soon`, in a task."""

        def begin() -> None:
            self._instance.begin(self._run_exclusively(make) if rebalances else self.run(make()))

        if delay_s:
            self.after(delay_s, begin)
        else:
            begin()

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a task, unless the member is closed. Errors are logged."""
        self._instance.begin(work)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """As `GroupMember.after`, on the loop."""
        self._instance.after(delay_s, action)

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """As `GroupMember.every`, on the loop."""

        def act() -> None:
            action()
            self.after(period_s, act)

        self.after(period_s, act)

    def subscribe(self, topic: str, expression: str) -> None:
        """As `GroupMember.subscribe`."""
        subscription = self.membership.make(topic, expression)
        if isinstance(expression, Sql):
            self.lifecycle.check_created("a subscription by SQL92")
        else:
            self.lifecycle.check_open()
        self.membership.subscribe(subscription)
        self._subscription_changed()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Join the group and begin to pull; raises as `Member.start`. A cancelled start may be tried again."""
        self.lifecycle.begin()
        try:
            await self.run(self.join())
            await self._run_exclusively(self.rebalancer.rebalance)
            self._start_periods()
        except ANYTHING as error:
            await self._undo_start(is_cancelled=not isinstance(error, Exception))
            raise

    async def _undo_start(self, *, is_cancelled: bool) -> None:
        """Leave no task, connection or queue of a failed start.

        After a cancellation this waits for no broker: locks end by themselves after 60 s.
        """
        queues = sorted(self.assigned_queues.pullers())
        for queue in queues:
            self.assigned_queues.let_go(queue, is_for_good=True)
        try:
            if queues and not is_cancelled:
                await self.run(self.locks.unlock(queues))
        finally:
            self.assigned_queues.announce()
            # The brokers notice the lost connections.
            self._started_ms = 0
            self.lifecycle.begin_failed()
            ending = [*self._instance.cut_jobs(), *self._instance.disconnect()]
            await asyncio.gather(*ending, return_exceptions=True)

    async def close(self) -> None:
        """Stop pulling, store the offsets and leave the group, once; after `lifecycle.end`. Errors are logged."""
        await self._instance.end_jobs()
        await self.run(self.leave(self.assigned_queues.drop_all()))
        await self._instance.written()
        await self._instance.close()

    async def store_now(self) -> None:
        """Store every changed offset; raises a LongpollError."""
        errors = await self._run_exclusively(self.rebalancer.persist)
        if errors:
            raise errors[0]


class AsyncConsumer(ConsumerCore, ABC):
    """A consumer as a member of its group: `async with` starts and closes it."""

    _member: AsyncMember

    async def __aenter__(self) -> Self:
        """Join the group; raises as `start`."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """As `PushConsumer.topic_queues`."""
        return await self._member.run(self._member.topic_queues(topic))

    async def committed(self, queue: MessageQueue) -> int | None:
        """As `PushConsumer.committed`."""
        return await self._member.run(self._member.committed(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp: datetime) -> int:
        """As `PushConsumer.offset_for_timestamp`."""
        return await self._member.run(self._member.find(queue, timestamp))

    @abstractmethod
    async def start(self) -> None:
        """Join the group."""

    @abstractmethod
    async def close(self) -> None:
        """Store the offsets and leave the group."""


class AsyncPullConsumer(AsyncConsumer):
    """Gives messages to a task that awaits `poll`. `async with` starts and closes it.

    The next poll, or `commit`, marks the returned messages as consumed. A cancelled poll has taken nothing.
    """

    def __init__(self, name_server: Addresses, **options: Unpack[ConsumerOptions]) -> None:
        """As `PullConsumer`; raises ConfigError."""
        given = options_of(name_server, **options)
        self._member = AsyncMember(given, self._deliver)
        self._polled = Polled(given, self._member)
        self._now_ns = given.runtime.monotonic_ns
        self._came = asyncio.Event()
        self._closing = Closing()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Every message, one at a time, until the close. Asking for the next one marks it as consumed."""
        while not self._member.lifecycle.is_closed:
            for message in await self.poll(POLL_S, 1):
                yield message

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
        self._polled.settle()
        begun_ns = self._now_ns()
        batch = self._polled.rest() or await self._next_batch(timeout_s)
        return [] if batch is None else self._polled.give(batch, count_max, begun_ns)

    async def retry(self, message: ReceivedMessage, delay_s: float | None = None) -> None:
        """As `PullConsumer.retry`."""
        await self._member.run(self._polled.put_off(message, Retry(delay_s).level))

    async def reject(self, message: ReceivedMessage) -> None:
        """As `PullConsumer.reject`."""
        await self._member.run(self._polled.put_off(message, DEAD_LEVEL))

    async def commit(self) -> None:
        """Mark every returned message as consumed, and store the offsets; raises a LongpollError.

        Raises LifecycleError before the start and after the close.
        """
        self._polled.settle()
        await self._member.store_now()

    async def close(self) -> None:
        """Leave the group, once. Messages that were returned and not committed come again. A poll ends.

        If the caller is cancelled, the close continues, and a second call waits for it.
        """
        self._member.lifecycle.end()
        self._came.set()
        await self._closing.wait(self._member.close)

    def _deliver(self, batch: Batch) -> None:
        self._polled.waiting.append(batch)
        self._came.set()

    async def _next_batch(self, timeout_s: float) -> Batch | None:
        """The first batch of a current queue; None after the time-out."""
        try:
            async with asyncio.timeout(wait_ns(timeout_s) / 1e9):
                while not self._member.lifecycle.is_closed:
                    batch = self._polled.first()
                    if batch is not None:
                        return batch
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return None
        return None

    def _wake(self) -> None:
        self._came.set()
