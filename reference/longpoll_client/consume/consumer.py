"""The base class of consumers on threads. `pull` and `push` deliver the messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Self

from longpoll_client.consume.member import Member
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime.closeable import Closeable


class Consumer(Closeable):
    """A consumer as a member of its group; `with` starts and closes it."""

    _member: Member

    def __enter__(self) -> Self:
        """Start; raises as `start`."""
        self.start()
        return self

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of its topics that are this consumer's now."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """What was pulled, and consumed by a listener, topic by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Want messages of a topic with these tags ("a || b", "*" for all) or by `Sql`, or others than before.

        While it runs this takes effect within moments; what was pulled by then comes as it is. Every member of the
        group must want the same. Raises ConfigError, LifecycleError once it is closed, and a ClientError when brokers
        are asked about an expression that is not one of tags.
        """
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Want nothing of a topic any more: its queues are given up within moments, and where they stand is stored.

        Raises ConfigError when it is not subscribed, or LifecycleError once it is closed.
        """
        self._member.unsubscribe(topic)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Have no message of these queues, or of any, given to the user until `resume`; pulling stops, too.

        With None of any queue, also of those that come later. What a listener has already it may end.
        A queue that is given up is paused no more. Raises NotOursError, or LifecycleError unless it runs.
        """
        self._member.pause(None if queues is None else tuple(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Go on with these queues, or with all, where they stood. Raises as `pause`."""
        self._member.resume(None if queues is None else tuple(queues))
        self._wake()

    def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic; raises NoRouteError, another ClientError or LifecycleError."""
        return self._member.run(self._member.topic_queues(topic))

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that is stored of the group, or by itself when broadcasting; None where there is none.

        A broker of 4.x says 0 instead while the queue still has its first message. Raises a ClientError.
        """
        return self._member.run(self._member.committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp: datetime) -> int:
        """The offset of a message that was stored at a time, or else of the first after it, as its broker says (29).

        Of several messages of that millisecond a broker of 4.x names any. Raises a ClientError.
        """
        return self._member.run(self._member.find(queue, timestamp))

    def _wake(self) -> None:
        """Have who waits for messages look again; nobody does."""

    @abstractmethod
    def start(self) -> None:
        """Join the group."""

    @abstractmethod
    def close(self) -> None:
        """Store the offsets and leave the group."""
