"""Hands messages to the thread that calls `poll`, of queues that are shared, or were chosen by hand.

At-least-once: an offset is stored only after its message was consumed, so messages come again after a crash or when a
queue changes hands. Leaves out listeners (`push`).

Source: `DefaultLitePullConsumerImpl.java`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from attrs import frozen

from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.member_consumer import MemberConsumer
from longpoll_client.consume.own_queues import OnShare
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.link.waits import check_count, wait_ns
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import ConsumerConfig, StartAt, check_member
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Queue, Runtime

DELIVERY_CAPACITY: Final = 2**20
"""Most batches that wait for the user. Flow control keeps it from ever being full: 1,000 messages a queue at most."""


@frozen
class _Woken:
    """Nothing came, but something else has changed."""


class PullConsumer(MemberConsumer):
    """Gives messages to the caller of `poll`; for one thread.

    Messages that `poll` returned are consumed when it is called again, or with `commit`.

    Invariant: `_open` are the messages of `_batch` not yet returned, `_returned` of it are returned and not consumed.
    `_waiting` are the batches behind it, as they came: those of paused queues, and for a moment the others.
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
        check_member("PullConsumer", runtime, config)
        self._runtime = runtime
        self._queue: Queue[Batch | _Woken] = runtime.queue(DELIVERY_CAPACITY)
        self._member = GroupMember(runtime, name_server, config, self, on_share=on_share, credentials=credentials)
        self._waiting: list[Batch] = []
        self._batch: Batch | None = None
        self._open: deque[ReceivedMessage] = deque()
        self._returned: list[ReceivedMessage] = []

    def start(self) -> None:
        """Join the group and begin to pull; raises as `GroupMember.start`."""
        self._member.start()

    # ------------------------------------------------------------ which queues, and from where

    def assign(self, queues: Collection[MessageQueue], expression: str = "*", expression_type: str = "TAG") -> None:
        """Have these queues and no others, instead of a share of what is subscribed, before the start or later.

        The consumer is then no member of its group, which goes on to share all queues; offsets are the group's still.
        Raises ConfigError when topics are subscribed, or LifecycleError once it is closed.
        """
        self._member.assign(tuple(queues), expression, expression_type)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset: no message that was pulled before comes after this, and the offset is stored as usual.

        Raises ConfigError for an offset that the queue does not have (its end will do), NotOursError for a queue that
        is another member's now, another ClientError when the broker does not answer, or LifecycleError.
        """
        self._member.seek(queue, offset)

    def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Go on at the queue's first message; raises as `seek`."""
        self._member.seek_to(queue, StartAt.FIRST)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the message that comes next; raises as `seek`."""
        self._member.seek_to(queue, StartAt.LAST)

    # ------------------------------------------------------------ messages

    def poll(self, timeout_s: float, count_max: int | None = None) -> list[ReceivedMessage]:
        """The next messages of one queue, in its order; empty when none came in time, or it is closed meanwhile.

        Raises ConfigError for a `count_max` under 1, and LifecycleError before the start and after the close.
        """
        check_count(count_max)
        self.commit()
        self._look_at_rest()
        if not self._open:
            batch = self._next_batch(timeout_s)
            if batch is None:
                return []
            self._batch = batch
            self._open.extend(batch.messages)
        count = len(self._open) if count_max is None else min(count_max, len(self._open))
        self._returned = [self._open.popleft() for _ in range(count)]
        return list(self._returned)

    def _look_at_rest(self) -> None:
        """Leave what is left of the last batch, if its queue was given up or paused meanwhile."""
        batch = self._batch
        if batch is None or not self._open:
            return
        if batch.puller.is_paused:
            self._waiting.insert(0, Batch(batch.puller, tuple(self._open)))
        if batch.puller.is_paused or batch.puller.is_dropped:
            self._open.clear()

    def _next_batch(self, timeout_s: float) -> Batch | None:
        """The first batch whose queue is ours and not paused; None when none comes in time."""
        end_ns = self._runtime.monotonic_ns() + wait_ns(timeout_s)
        while not self._member.lifecycle.is_closed:
            self._waiting = [batch for batch in self._waiting if not batch.puller.is_dropped]
            for place, batch in enumerate(self._waiting):
                if not batch.puller.is_paused:
                    return self._waiting.pop(place)
            came = self._queue.take(max(0.0, (end_ns - self._runtime.monotonic_ns()) / 1e9))
            if came is None:
                return None
            if isinstance(came, Batch):
                self._waiting.append(came)
        return None

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
        """Leave the group, the first time; messages returned and not committed will come again. A poll ends."""
        if self._member.lifecycle.end():
            with self._member.lifecycle.ending():
                self._wake()
                self._member.close()

    def _wake(self) -> None:
        """Have a poll on another thread look again."""
        self._queue.offer(_Woken())

    # ------------------------------------------------------------ for the member

    def deliver(self, batch: Batch) -> None:
        """Queue what a pull brought; on a reader thread."""
        is_taken = self._queue.offer(batch)
        assert is_taken, "flow control let more than the capacity through"

    def is_busy(self, _puller: Puller) -> bool:
        """Never: a polling consumer takes no locks."""
        return False
