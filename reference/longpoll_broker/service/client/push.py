"""A consumer whose messages come to a listener.

At-least-once: messages come again after a crash, when a queue changes hands, and when the listener puts them off.
Leaves out how a listener is given messages (`concurrent`, `orderly`).

Source: `DefaultMQPushConsumer.java`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from longpoll_broker.runtime import Runtime
from longpoll_broker.service.client.concurrent import ConcurrentListening, Listening
from longpoll_broker.service.client.consumer import GroupMember, OnShare
from longpoll_broker.service.client.credentials import Credentials
from longpoll_broker.service.client.orderly import OrderlyListening
from longpoll_broker.service.client.settings import ConsumerConfig
from longpoll_broker.service.client.statistics import TopicStatistics
from longpoll_broker.service.client.workers import Listener
from longpoll_broker.wire.bodies import MessageQueue


class PushConsumer:
    """Gives messages to a listener on threads of its own.

    A listener answers SUCCESS, LATER or `Later(level)`; one that raises has put its messages off. They come again from
    the group's retry topic, until after `reconsume_count_max` times they are in its dead letter topic `%DLQ%group`.
    With `is_orderly` each queue's messages come one lot after the other, and one that is put off holds its queue up.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        config: ConsumerConfig,
        listener: Listener,
        *,
        is_orderly: bool = False,
        on_share: OnShare | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._listening: Listening
        if is_orderly:
            self._listening = OrderlyListening(runtime, config, listener)
        else:
            self._listening = ConcurrentListening(runtime, config, listener)
        self._member = GroupMember(
            runtime,
            name_server,
            config,
            self._listening,
            is_push=True,
            is_orderly=is_orderly,
            on_share=on_share,
            credentials=credentials,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now, of the retry topic too."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """What was pulled and consumed, topic by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic with these tags ("a || b", "*" for all); before `start`. Raises ConfigError."""
        self._member.subscribe(topic, expression, expression_type)

    def start(self) -> None:
        """Join the group and begin to listen; raises a ClientError when name server, route or broker are not there."""
        self._listening.start(self._member)
        self._member.start()

    def close(self) -> None:
        """Let running listeners end, store the offsets, and leave the group."""
        self._listening.stop()
        self._member.close()
