"""What every consumer is, wherever its messages go: a member of a group, which can be asked for its state and left.

Leaves out how messages reach the user: `push` and `delivery` do that, and say what closing ends besides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime.closeable import Closeable


class MemberConsumer(Closeable):
    """A consumer as a member of its group; leaving a `with` closes it."""

    _member: GroupMember

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now; of the retry topic too, where it has one."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """What was pulled, and consumed by a listener, topic by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic with these tags ("a || b", "*" for all), before `start`.

        Raises ConfigError, or LifecycleError once it is started or closed.
        """
        self._member.subscribe(topic, expression, expression_type)

    @abstractmethod
    def close(self) -> None:
        """Store the offsets and leave the group."""
