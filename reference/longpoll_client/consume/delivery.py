"""Hands messages to the thread that calls `poll`.

At-least-once: an offset is stored only after its message was consumed, so messages come again after a crash or when a
queue changes hands. Leaves out listeners (`push`).

Source: `DefaultLitePullConsumerImpl.poll`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from longpoll_client.consume.consumer import GroupMember, OnShare
from longpoll_client.consume.member_consumer import MemberConsumer
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.credentials import Credentials
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import ConsumerConfig
from longpoll_runtime import Queue, Runtime

DELIVERY_CAPACITY: Final = 2**20
"""Most batches that wait for the user. Flow control keeps it from ever being full: 1,000 messages a queue at most."""


class PullConsumer(MemberConsumer):
    """Gives messages to the caller of `poll`; for one thread.

    Messages that `poll` returned are consumed when it is called again, or with `commit`.

    Invariant: `_open` are the messages of `_batch` not yet returned, `_returned` of it are returned and not consumed.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        config: ConsumerConfig,
        *,
        on_share: OnShare | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._runtime = runtime
        self._queue: Queue[Batch] = runtime.queue(DELIVERY_CAPACITY)
        self._member = GroupMember(runtime, name_server, config, self, on_share=on_share, credentials=credentials)
        self._batch: Batch | None = None
        self._open: deque[ReceivedMessage] = deque()
        self._returned: list[ReceivedMessage] = []

    def start(self) -> None:
        """Join the group and begin to pull; raises as `GroupMember.start`."""
        self._member.start()

    def poll(self, timeout_s: float, count_max: int | None = None) -> list[ReceivedMessage]:
        """The next messages of one queue, in its order; empty when none came in time.

        Raises LifecycleError before the start and after the close.
        """
        self.commit()
        if not self._open:
            batch = self._queue.take(timeout_s)
            while batch is not None and batch.puller.is_dropped:
                batch = self._queue.take(timeout_s)
            if batch is None:
                return []
            self._batch = batch
            self._open.extend(batch.messages)
        count = len(self._open) if count_max is None else min(count_max, len(self._open))
        self._returned = [self._open.popleft() for _ in range(count)]
        return list(self._returned)

    def commit(self) -> None:
        """Count every message that `poll` returned as consumed; stored within seconds, or by `close`.

        Raises LifecycleError before the start and after the close.
        """
        self._member.lifecycle.check_running("poll and commit")
        if not self._returned:
            return
        assert self._batch is not None
        returned, self._returned = self._returned, []
        self._batch.puller.done(returned)
        self._member.statistics.add(self._batch.puller.queue.topic, consumed_count=len(returned))

    def close(self) -> None:
        """Leave the group, the first time; messages returned and not committed will come again."""
        if self._member.lifecycle.end():
            self._member.close()

    # ------------------------------------------------------------ for the member

    def deliver(self, batch: Batch) -> None:
        """Queue what a pull brought; on a reader thread."""
        is_taken = self._queue.offer(batch)
        assert is_taken, "flow control let more than the capacity through"

    def is_busy(self, _puller: Puller) -> bool:
        """Never: a polling consumer takes no locks."""
        return False
