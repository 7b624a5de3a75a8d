"""The base class of consumers on an event loop. `pull` and `push` deliver the messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from longpoll_client.aio.member import AsyncMember
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_protocol.bodies import MessageQueue


class AsyncConsumer(ABC):
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

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of its topics that are this consumer's now."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """Counts of pulled and consumed messages, by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """As `PushConsumer.subscribe`; by anything but tags only before the start, for brokers are asked about it.

        Raises ConfigError or LifecycleError.
        """
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """As `PushConsumer.unsubscribe`."""
        self._member.unsubscribe(topic)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """As `PushConsumer.pause`."""
        self._member.pause(None if queues is None else tuple(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """As `PushConsumer.resume`."""
        self._member.resume(None if queues is None else tuple(queues))
        self._wake()

    async def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic; raises NoRouteError, another ClientError or LifecycleError."""
        return await self._member.run(self._member.topic_queues(topic))

    async def committed(self, queue: MessageQueue) -> int | None:
        """As `PushConsumer.committed`."""
        return await self._member.run(self._member.committed(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp: datetime) -> int:
        """As `PushConsumer.offset_for_timestamp`."""
        return await self._member.run(self._member.find(queue, timestamp))

    @abstractmethod
    def _wake(self) -> None:
        """Have who waits for messages look again."""

    @abstractmethod
    async def start(self) -> None:
        """Join the group."""

    @abstractmethod
    async def close(self) -> None:
        """Store the offsets and leave the group."""
