"""A consumer whose messages come to a listener.

At-least-once: messages come again after a crash, when a queue changes hands, and when the listener puts them off.
Leaves out how a listener is given messages (`concurrent`, `orderly`).

Source: `DefaultMQPushConsumer.java`.
"""

from __future__ import annotations

from longpoll_client.checks import check_plain
from longpoll_client.consume.concurrent import ConcurrentListening
from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.listening import Listening
from longpoll_client.consume.member_consumer import MemberConsumer
from longpoll_client.consume.orderly import OrderlyListening
from longpoll_client.consume.own_queues import OnShare
from longpoll_client.consume.workers import Listener
from longpoll_client.settings import ConsumerConfig, check_member
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime


class PushConsumer(MemberConsumer):
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
        check_member("PushConsumer", runtime, config)
        check_plain("listener", listener)
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
            direct=self._listening.direct,
            is_orderly=is_orderly,
            on_share=on_share,
            credentials=credentials,
        )
        self._listening.belong_to(self._member)

    def start(self) -> None:
        """Join the group and begin to listen; raises as `GroupMember.start`."""
        self._member.start(self._listening.start)

    def close(self) -> None:
        """Let running listeners end, store the offsets, and leave the group; a second time nothing is done.

        One that is interrupted (Ctrl-C) is gone on with by the next. In a listener this returns at once, and the
        consumer is closed as soon as the listener has answered.
        """
        if self._member.lifecycle.end():
            with self._member.lifecycle.ending():
                self._listening.stop(self._member.close)
