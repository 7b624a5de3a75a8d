"""Hands messages to the user: `PullConsumer` when asked, `PushConsumer` to a listener on its own thread.

Both are at-least-once: an offset is stored only after its message was consumed, so messages come again after a crash or
when a queue changes hands.
Leaves out orderly consumption and sending back to the retry topic (36).

Source: `DefaultLitePullConsumerImpl.poll`, `ConsumeMessageConcurrentlyService.java`.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from longpoll_broker.errors import ClientError
from longpoll_broker.runtime import Queue, Runtime, Thread
from longpoll_broker.service.client.consumer import ConsumerConfig, GroupMember
from longpoll_broker.service.client.messages import ReceivedMessage
from longpoll_broker.service.client.puller import Batch
from longpoll_broker.wire.bodies import MessageQueue

DELIVERY_CAPACITY: Final = 2**20
"""Most batches that wait for the user. Flow control keeps it from ever being full: 1,000 messages a queue at most."""
LISTENER_RETRY_S: Final = 1.0
"""How long after LATER the listener gets the same messages again (`suspendCurrentQueueTimeMillis`)."""
POLL_STEP_S: Final = 0.25
"""How long a push consumer's thread waits before it looks whether it is to end."""


class PullConsumer:
    """Gives messages to whoever polls; for one thread.

    Messages that `poll` returned are consumed when it is called again, or with `commit`.

    Invariant: `_open` are the messages of `_batch` not yet returned, `_returned` of it are returned and not consumed.
    """

    def __init__(self, runtime: Runtime, name_server: str, config: ConsumerConfig) -> None:
        self._runtime = runtime
        self._queue: Queue[Batch] = runtime.queue(DELIVERY_CAPACITY)
        self._member = GroupMember(runtime, name_server, config, self._deliver)
        self._batch: Batch | None = None
        self._open: deque[ReceivedMessage] = deque()
        self._returned: list[ReceivedMessage] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now."""
        return self._member.queues

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic with these tags ("a || b", "*" for all); before `start`. Raises ConfigError."""
        self._member.subscribe(topic, expression, expression_type)

    def start(self) -> None:
        """Join the group and begin to pull; raises a ClientError when name server, route or broker are not there."""
        self._member.start()

    def poll(self, timeout_s: float, count_max: int | None = None) -> list[ReceivedMessage]:
        """The next messages of one queue, in its order; empty when none came in time."""
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
        """Count every message that `poll` returned as consumed; stored within seconds, or by `close`."""
        if not self._returned:
            return
        assert self._batch is not None
        offset = self._returned[-1].queue_offset + 1 if self._open else self._batch.offset_next
        self._batch.puller.done(offset, len(self._returned))
        self._returned = []

    def close(self) -> None:
        """Leave the group; messages returned and not committed will come again."""
        self._member.close()

    def _deliver(self, batch: Batch) -> None:
        is_taken = self._queue.offer(batch)
        assert is_taken, "flow control let more than the capacity through"


class ConsumeStatus(enum.Enum):
    """What a listener says of the messages it was given."""

    SUCCESS = "consumed"
    LATER = "give them to me again later"


Listener = Callable[[Sequence[ReceivedMessage]], ConsumeStatus]


class _Keeping:
    """Keeps whatever the user's listener raises, so that it is told by `close` and not lost with a thread."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
            return True
        return False


class PushConsumer:
    """Gives messages to a listener, batch by batch, on one thread of its own.

    A listener that raises stops the consumer: nothing of its batch is consumed, and `close` raises a ClientError.
    """

    def __init__(self, runtime: Runtime, name_server: str, config: ConsumerConfig, listener: Listener) -> None:
        self._runtime = runtime
        self._listener = listener
        self._consumer = PullConsumer(runtime, name_server, config)
        self._stopping = runtime.event()
        self._failure: Exception | None = None
        self._thread: Thread | None = None
        self._group = config.group

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic with these tags ("a || b", "*" for all); before `start`. Raises ConfigError."""
        self._consumer.subscribe(topic, expression, expression_type)

    def start(self) -> None:
        """Join the group and begin to listen; raises a ClientError when name server, route or broker are not there."""
        self._consumer.start()
        self._thread = self._runtime.spawn(f"listener-{self._group}", self._run)

    def close(self) -> None:
        """Let the listener finish its batch, then leave the group. Raises ClientError if the listener had raised."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._consumer.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise ClientError(f"the listener of group {self._group} raised: {failure!r}") from failure

    def _run(self) -> None:
        while not self._stopping.is_set():
            messages = self._consumer.poll(POLL_STEP_S)
            while messages and self._consume(messages) is ConsumeStatus.LATER:
                if self._stopping.wait(LISTENER_RETRY_S):
                    return

    def _consume(self, messages: list[ReceivedMessage]) -> ConsumeStatus:
        status = ConsumeStatus.LATER
        with _Keeping() as kept:
            status = self._listener(messages)
        if kept.error is not None:
            self._failure = kept.error
            self._stopping.set()
        elif status is ConsumeStatus.SUCCESS:
            self._consumer.commit()
        return status
