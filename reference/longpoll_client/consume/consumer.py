"""Consumers on threads: `PullConsumer` gives messages to the caller of `poll`, `PushConsumer` to a listener.

Delivery is at least once: an offset is stored after its message is consumed. Messages come again after a crash, after a
rebalance, and when the listener retries them.

Source: `DefaultLitePullConsumerImpl.java`, `DefaultMQPushConsumer.java`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Final, Self, Unpack

from attrs import frozen

from longpoll_client.checks import Addresses, check_plain
from longpoll_client.consume.group_member import GroupMember, Listening
from longpoll_client.consume.listener import (
    ConcurrentConsumeService,
    ConsumeService,
    Listener,
    OrderlyConsumeService,
    Retry,
)
from longpoll_client.consume.member import Member
from longpoll_client.consume.puller import Batch
from longpoll_client.consume.statistics import HookCalls, TopicStatistics
from longpoll_client.link.exchange import check_count, wait_ns
from longpoll_client.link.steps import Steps
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import DEAD_LEVEL, DELIVERY_CAPACITY, ConsumerOptions, MemberOptions, options_of
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime import Queue
from longpoll_runtime.services import Closeable
from longpoll_spec.errors import ConfigError

POLL_S: Final = 3600.0
"""The timeout of each poll while the caller iterates over the consumer, seconds."""


class ConsumerCore:
    """The methods that are the same on threads and on an event loop."""

    _member: GroupMember

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The consumer's current queues of its topics; other members of the group have the rest."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """Counts of pulled and consumed messages, by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Subscribe to a topic with tags ("a || b", "*" for all) or `Sql`, or change the topic's expression.

        A running consumer applies the subscription soon, but messages that were already pulled are still delivered.
        Every member of the group must have the same subscriptions. Brokers check `Sql`, so an event loop allows `Sql`
        only before the start. Raises ConfigError, LifecycleError, and a ClientError if a broker refuses an expression.
        """
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic: its queues are given up soon, and their offsets are stored.

        Raises ConfigError if the topic is not subscribed, and LifecycleError after the close.
        """
        self._member.unsubscribe(topic)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop pulling and delivering messages of these queues, or of all queues, until `resume`.

        None means all queues, including queues that are assigned later. A running listener call is not interrupted. If
        a rebalance moves a queue to another member, its pause ends. Raises NotOursError for another member's queue, and
        LifecycleError unless the consumer runs.
        """
        self._member.pause(None if queues is None else tuple(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Pull and deliver messages of these queues, or of all queues, again. Raises the errors of `pause`."""
        self._member.resume(None if queues is None else tuple(queues))
        self._wake()

    def _wake(self) -> None:
        """Wake a waiting poll. A consumer without polls does nothing."""


class Polled:
    """The messages of a pull consumer that wait for a poll, and the messages that the last poll returned.

    Invariant: `_given` has the messages that the last poll returned and that are not consumed. `_rest` has the messages
    of the same pull that no poll has returned yet. `waiting` has other batches, for example because their queues are
    paused.
    """

    def __init__(self, options: MemberOptions, member: GroupMember) -> None:
        self.waiting: list[Batch] = []
        self._now_ns = options.runtime.monotonic_ns
        self._member = member
        self._hook_calls = HookCalls(options.runtime, options.config)
        self._given: Batch | None = None
        self._rest: Batch | None = None

    def settle(self) -> None:
        """Mark every returned message as consumed; raises LifecycleError unless the consumer runs."""
        self._member.lifecycle.check_running("poll and commit")
        given, self._given = self._given, None
        if given is not None:
            given.puller.done(given.messages)
            self._member.statistics.add(given.puller.queue.topic, consumed_count=len(given.messages))

    def rest(self) -> Batch | None:
        """Take the rest of the last batch, unless its queue was given up or is paused."""
        batch, self._rest = self._rest, None
        if batch is None or batch.puller.is_dropped:
            return None
        if batch.puller.is_paused:
            self.waiting.insert(0, batch)
            return None
        return batch

    def first(self) -> Batch | None:
        """Take the first waiting batch of a current queue that is not paused."""
        self.waiting = [batch for batch in self.waiting if not batch.puller.is_dropped]
        for place, batch in enumerate(self.waiting):
            if not batch.puller.is_paused:
                return self.waiting.pop(place)
        return None

    def give(self, batch: Batch, count_max: int | None, begun_ns: int) -> list[ReceivedMessage]:
        """Return the first messages of a batch as the user gets them; `begun_ns` is the time when the poll began."""
        given, rest = batch.messages[:count_max], batch.messages[len(batch.messages[:count_max]) :]
        self._rest = Batch(batch.puller, rest) if rest else None
        self._given = Batch(batch.puller, given)
        shown = self._member.shown(given)
        self._hook_calls.received(shown, self._now_ns() - begun_ns)
        return shown

    def put_off(self, message: ReceivedMessage, delay_level: int) -> Steps[None]:
        """Send a returned message back to the broker.

        Raises ConfigError if the last poll did not return the message or the group is broadcasting, and a ClientError
        if the request to the broker fails.
        """
        group, given = self._member.config.group, self._given
        if self._member.config.is_broadcasting:
            raise ConfigError(f"group {group} is broadcasting, so messages are never redelivered")
        returned = [] if given is None else [(each.physical_offset, each.queue_offset) for each in given.messages]
        if given is None or (message.physical_offset, message.queue_offset) not in returned:
            text = f"message {message.msg_id[:64]} is not from the last poll; retry or reject it before the next"
            raise ConfigError(text)
        yield from self._member.send_back(message, given.puller.queue, delay_level)


class Consumer(ConsumerCore, Closeable):
    """A consumer that is a member of its group. `with` starts and closes the consumer."""

    _member: Member

    def __enter__(self) -> Self:
        """Start the consumer; raises the errors of `start`."""
        self.start()
        return self

    def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns all queues of a topic; raises NoRouteError, another ClientError or LifecycleError."""
        return self._member.run(self._member.topic_queues(topic))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset, or this member's offset if broadcasting; None if no offset is stored.

        While the queue still has its first message, a broker of 4.x reports 0 instead of no offset. Raises a
        ClientError.
        """
        return self._member.run(self._member.committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp: datetime) -> int:
        """Ask the queue's broker for the offset of the first message stored at or after a time, and return this offset.

        If several messages were stored in one millisecond, a broker of 4.x returns any of them. Raises a ClientError.
        """
        return self._member.run(self._member.find(queue, timestamp))

    @abstractmethod
    def start(self) -> None:
        """Join the group."""


@frozen
class _Woken:
    """An item without messages that makes a waiting poll check its state again."""


class PullConsumer(Consumer):
    """Gives messages to the thread that calls `poll`. `with` starts and closes the consumer.

    The next call of `poll` or `commit` marks the returned messages as consumed.
    """

    def __init__(self, name_server: Addresses, **options: Unpack[ConsumerOptions]) -> None:
        """Create a consumer; `with` starts it. The options are those of `PushConsumer`. Raises ConfigError."""
        given = options_of(name_server, **options)
        self._now_ns = given.runtime.monotonic_ns
        self._queue: Queue[Batch | _Woken] = given.runtime.queue(DELIVERY_CAPACITY)
        self._member = Member(given, self._deliver)
        self._polled = Polled(given, self._member)

    def start(self) -> None:
        """Join the group and begin to pull; raises the errors of `Member.start`."""
        self._member.start()

    # ------------------------------------------------------------ which queues, and from where

    def assign(self, queues: Collection[MessageQueue], expression: str = "*") -> None:
        """Take exactly these queues, instead of a share of the subscribed topics, before or after the start.

        The consumer is then not a member of its group, but stores offsets for the group. Raises ConfigError if topics
        are subscribed, and LifecycleError after the close.
        """
        self._member.assign(tuple(queues), expression)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset: `poll` returns no message that was pulled before this call.

        The new offset is stored like every other offset. Raises ConfigError for an offset outside of the queue (the
        queue's end is valid), NotOursError for another member's queue, another ClientError if the broker does not
        answer, or LifecycleError.
        """
        self._member.run(self._member.seek(queue, offset))

    def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Continue at the queue's first message; raises the errors of `seek`."""
        self._member.run(self._member.seek_to(queue, "first"))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with the next message that is sent; raises the errors of `seek`."""
        self._member.run(self._member.seek_to(queue, "last"))

    # ------------------------------------------------------------ messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield every message, one at a time, until the close.

        Requesting the next message marks the previous message as consumed.
        """
        while not self._member.lifecycle.is_closed:
            yield from self.poll(POLL_S, 1)

    def poll(self, timeout_s: float = 1.0, count_max: int | None = None) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order, or [] after the time-out or if the consumer is closed.

        Raises ConfigError for a `count_max` under 1, and LifecycleError before the start and after the close.
        """
        check_count(count_max)
        self._polled.settle()
        begun_ns = self._now_ns()
        batch = self._polled.rest() or self._next_batch(begun_ns + wait_ns(timeout_s))
        return [] if batch is None else self._polled.give(batch, count_max, begun_ns)

    def _next_batch(self, end_ns: int) -> Batch | None:
        while not self._member.lifecycle.is_closed:
            batch = self._polled.first()
            if batch is not None:
                return batch
            came = self._queue.take(max(0.0, (end_ns - self._now_ns()) / 1e9))
            if came is None:
                return None
            if isinstance(came, Batch):
                self._polled.waiting.append(came)
        return None

    def retry(self, message: ReceivedMessage, delay_s: float | None = None) -> None:
        """Ask the broker to deliver a message of the last poll again later; until then the message counts as consumed.

        Raises ConfigError if the last poll did not return the message or the group is broadcasting, and a ClientError
        if the request to the broker fails.
        """
        self._member.run(self._polled.put_off(message, Retry(delay_s).level))

    def reject(self, message: ReceivedMessage) -> None:
        """Send a message of the last poll to the dead letter topic now. Raises the errors of `retry`."""
        self._member.run(self._polled.put_off(message, DEAD_LEVEL))

    def commit(self, *, sync: bool = False) -> None:
        """Mark every returned message as consumed. The offsets are stored within `persist_s`, or by `close`.

        With `sync`, this method returns when the offsets are stored, and raises a ClientError if that fails. Raises
        LifecycleError before the start and after the close.
        """
        self._polled.settle()
        if sync:
            self._member.store_now()

    def close(self) -> None:
        """Leave the group and end a waiting poll; a second call does nothing.

        Returned messages that were not committed are delivered again.
        """
        if self._member.lifecycle.end():
            with self._member.lifecycle.ending():
                self._wake()
                self._member.close()

    def _wake(self) -> None:
        self._queue.offer(_Woken())

    # ------------------------------------------------------------ for the member

    def _deliver(self, batch: Batch) -> None:
        """Queue the messages of a pull. Reader threads call this method."""
        is_taken = self._queue.offer(batch)
        assert is_taken, "flow control let more than the capacity through"


class PushConsumer(Consumer):
    """Gives messages to a listener, on its own threads. `with` starts and closes the consumer.

    When the listener returns, its messages are consumed. After an exception or `Retry`, the messages are delivered
    again. After `max_attempts` deliveries, or at once after `Reject`, messages go to the dead letter topic
    `%DLQ%group`. In an `orderly` consumer, a retried message blocks its queue.
    """

    def __init__(
        self, name_server: Addresses, *, listener: Listener, orderly: bool = False, **options: Unpack[ConsumerOptions]
    ) -> None:
        """Create a consumer; `with` starts it. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several addresses as a list, or separated by semicolons.
            listener: A function that is called with a sequence of at most `consume_count_max` messages.
            orderly: Give each queue's messages to the listener in order, one call at a time.
            options: The options of `ConsumerOptions`; `group` is required.
        """
        given = options_of(name_server, **options)
        check_plain("listener", listener)
        kind = OrderlyConsumeService if orderly else ConcurrentConsumeService
        self._service: ConsumeService = kind(given.runtime, given.config, listener)
        listening = Listening(self._service.give_directly, is_orderly=orderly, is_busy=self._service.is_busy)
        self._member = Member(given, self._service.deliver, listening)
        self._service.belong_to(self._member)

    def start(self) -> None:
        """Join the group and begin to listen; raises the errors of `Member.start`."""
        self._member.start(self._service.start)

    def close(self) -> None:
        """Wait for running listeners, store the offsets, and leave the group. A second call does nothing.

        If Ctrl-C interrupts the close, the next call continues it. If a listener calls this method, the method returns
        at once, and the consumer closes when the listener returns.
        """
        if self._member.lifecycle.end():
            with self._member.lifecycle.ending():
                self._service.stop(self._member.close)
