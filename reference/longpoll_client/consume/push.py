"""A consumer whose messages come to a listener.

At-least-once: messages come again after a crash, when a queue changes hands, and when the listener puts them off.
Leaves out how a listener is given messages (`concurrent`, `orderly`).

Source: `DefaultMQPushConsumer.java`.
"""

from __future__ import annotations

import ssl

from longpoll_client.checks import Addresses, Topics, check_plain, runtime_of
from longpoll_client.consume.concurrent import ConcurrentListening
from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.listening import Listening
from longpoll_client.consume.member_consumer import MemberConsumer
from longpoll_client.consume.orderly import OrderlyListening
from longpoll_client.consume.own_queues import OnQueues, on_share
from longpoll_client.consume.workers import Listener
from longpoll_client.settings import ConsumerConfig, StartAt, member_config
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime


class PushConsumer(MemberConsumer):
    """Gives messages to a listener on threads of its own.

    When a listener returns, its messages are consumed. When it raises an exception or `Retry`, they come again, and
    after `max_attempts` they are in the dead letter topic `%DLQ%group`, as at once after `Reject`.
    With `orderly` a message that is put off holds its queue up.
    """

    def __init__(
        self,
        name_server: Addresses,
        *,
        group: str,
        topics: Topics,
        listener: Listener,
        start_at: StartAt = "first",
        orderly: bool = False,
        config: ConsumerConfig | None = None,
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Create a consumer; `with` starts it. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several as a list, or separated by semicolons.
            group: The consumer group.
            topics: A topic, several, or a mapping of topic to tags ("red || blue") or `Sql`.
            listener: Called with each message, as a sequence of `consume_count_max` at most.
            start_at: Where a new group starts: "first", "last", "stored" (the broker decides) or a datetime.
            orderly: Give each queue's messages to the listener in order, one call at a time.
            config: Everything else.
            on_assigned: Gets queues that this member was given, one or more at a time. It must not wait.
            on_revoked: Gets queues that this member gave up, likewise.
            tls: How to connect over TLS. Default: plain connections.
            credentials: The account, for a broker with access control.
            runtime: For tests.
        """
        runtime, settings = runtime_of(runtime, tls), member_config(group, start_at, config)
        check_plain("listener", listener)
        kind = OrderlyListening if orderly else ConcurrentListening
        self._listening: Listening = kind(runtime, settings, listener)
        self._member = GroupMember(
            runtime,
            name_server,
            settings,
            self._listening,
            topics=topics,
            direct=self._listening.direct,
            is_orderly=orderly,
            on_share=on_share(on_assigned, on_revoked),
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
