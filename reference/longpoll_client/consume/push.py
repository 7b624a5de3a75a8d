"""A consumer that gives messages to a listener.

Delivery is at least once: messages come again after a crash, after a rebalance, and when the listener retries them.
`concurrent` and `orderly` call the listener.

Source: `DefaultMQPushConsumer.java`.
"""

from __future__ import annotations

from typing import Unpack

from longpoll_client.checks import Addresses, check_plain
from longpoll_client.consume.consumer import Consumer
from longpoll_client.consume.listener.concurrent import ConcurrentConsumeService
from longpoll_client.consume.listener.orderly import OrderlyConsumeService
from longpoll_client.consume.listener.service import ConsumeService
from longpoll_client.consume.listener.workers import Listener
from longpoll_client.consume.member import Member
from longpoll_client.settings import ConsumerOptions, options_of


class PushConsumer(Consumer):
    """Gives messages to a listener, on its own threads. `with` starts and closes it.

    When the listener returns, its messages are consumed. After an exception or `Retry` they come again. After
    `max_attempts`, or at once after `Reject`, they are in the dead letter topic `%DLQ%group`. With `orderly`, a retried
    message blocks its queue.
    """

    def __init__(
        self,
        name_server: Addresses,
        *,
        listener: Listener,
        orderly: bool = False,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Create a consumer; `with` starts it. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several as a list, or separated by semicolons.
            listener: Called with each message, as a sequence of `consume_count_max` at most.
            orderly: Give each queue's messages to the listener in order, one call at a time.
            options: Those of `ConsumerOptions`; `group` is required.
        """
        given = options_of(name_server, **options)
        check_plain("listener", listener)
        kind = OrderlyConsumeService if orderly else ConcurrentConsumeService
        self._service: ConsumeService = kind(given.runtime, given.config, listener)
        self._member = Member(given, self._service, direct=self._service.direct, is_orderly=orderly)
        self._service.belong_to(self._member)

    def start(self) -> None:
        """Join the group and begin to listen; raises as `Member.start`."""
        self._member.start(self._service.start)

    def close(self) -> None:
        """Wait for running listeners, store the offsets, and leave the group. A second call does nothing.

        After an interruption (Ctrl-C) the next call continues. In a listener this returns at once, and the consumer
        closes when the listener returns.
        """
        if self._member.lifecycle.end():
            with self._member.lifecycle.ending():
                self._service.stop(self._member.close)
