"""The base class of consumers on threads. `pull` and `push` deliver the messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Self

from longpoll_client.consume.member import Member
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime.services import Closeable


class Consumer(Closeable):
    """A consumer as a member of its group. `with` starts and closes it."""

    _member: Member

    def __enter__(self) -> Self:
        """Start; raises as `start`."""
        self.start()
        return self

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The current queues of the consumer's topics."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """Counts of pulled and consumed messages, by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Subscribe to a topic with tags ("a || b", "*" for all) or `Sql`, or change its expression.

        A running consumer applies this within moments; messages that were already pulled still come. Every member of
        the group must have the same subscriptions. Raises ConfigError, LifecycleError after the close, and a
        ClientError if a broker refuses an expression.
        """
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic: its queues are given up within moments, and their offsets are stored.

        Raises ConfigError if it is not subscribed, and LifecycleError after the close.
        """
        self._member.unsubscribe(topic)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Deliver no message of these queues, or of any, until `resume`. Pulling stops, too.

        None means all queues, also later ones. A running listener call is not interrupted. A rebalance ends the pause
        of a queue that changes hands. Raises NotOursError, and LifecycleError unless the consumer runs.
        """
        self._member.pause(None if queues is None else tuple(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Continue with these queues, or with all. Raises as `pause`."""
        self._member.resume(None if queues is None else tuple(queues))
        self._wake()

    def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic; raises NoRouteError, another ClientError or LifecycleError."""
        return self._member.run(self._member.topic_queues(topic))

    def committed(self, queue: MessageQueue) -> int | None:
        """The stored offset of the group, or of this member when broadcasting; None without one.

        A broker of 4.x reports 0 while the queue still has its first message. Raises a ClientError.
        """
        return self._member.run(self._member.committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp: datetime) -> int:
        """The offset of the first message stored at or after a time, from its broker (29).

        Of several messages of one millisecond, a broker of 4.x returns any. Raises a ClientError.
        """
        return self._member.run(self._member.find(queue, timestamp))

    def _wake(self) -> None:
        """Wake a poll; there is none here."""

    @abstractmethod
    def start(self) -> None:
        """Join the group."""

    @abstractmethod
    def close(self) -> None:
        """Store the offsets and leave the group."""
