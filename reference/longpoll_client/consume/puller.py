"""Pulls one queue while this client has it: send a pull, wait for the answer, deliver its messages, and pull again.

The connection's reader thread calls back with the answer, and the timer retries. `rebalance` chooses the queues.

Source: `DefaultMQPushConsumerImpl.pullMessage`, `PullAPIWrapper.processPullResult`, `ProcessQueue.java`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import lt
from typing import Final, Protocol

from attrs import Factory, define, field, frozen

from longpoll_client.consume.statistics import Statistics, Stop
from longpoll_client.errors import RefusedError
from longpoll_client.instance import InstanceCore
from longpoll_client.link.exchange import Answer
from longpoll_client.link.routes import MASTER_ID, PullSource
from longpoll_client.messages import ReceivedMessage, UnreadableMessage, decode_readable, wanted_tags
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from longpoll_runtime import Lock
from longpoll_spec.errors import LongpollError


@define(slots=True, eq=False)
class ProcessQueue:
    """The messages of one queue that were pulled and are not consumed.

    Invariant: `_open` is sorted by offset, and all offsets are below `offset_next`; `size` is the bytes of all bodies.
    """

    offset_next: int
    """The offset of the next pull."""
    size: int = field(default=0, init=False)
    _open: dict[int, ReceivedMessage] = field(factory=dict, init=False)

    @property
    def count(self) -> int:
        """The number of waiting messages."""
        return len(self._open)

    @property
    def span(self) -> int:
        """The number of offsets from the first waiting message to the next pull, which a crash may repeat.

        Java counts only up to the last waiting message, so in Java a single message that hangs does not stop pulling.
        """
        return self.offset_next - next(iter(self._open), self.offset_next)

    @property
    def offset_done(self) -> int:
        """The offset to store: every message before it is consumed.

        If no message waits, messages with other tags before the next pull count as consumed too (`correctTagsOffset`).
        """
        return next(iter(self._open), self.offset_next)

    def put(self, messages: Sequence[ReceivedMessage], offset_next: int) -> None:
        """Add the messages of a pull, and move to the next offset."""
        offsets = [message.queue_offset for message in messages]
        assert all(map(lt, [next(reversed(self._open), -1), *offsets], offsets)), offsets
        self._open.update(zip(offsets, messages, strict=True))
        self.size += sum([len(message.body) for message in messages])
        self.offset_next = offset_next

    def move(self, offset_next: int) -> None:
        """Move to another offset and drop the waiting messages. `done` ignores dropped messages."""
        self._open.clear()
        self.size = 0
        self.offset_next = offset_next

    def first(self, count: int) -> list[ReceivedMessage]:
        """Returns the first waiting messages without removing them."""
        return list(islice(self._open.values(), count))

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """Remove consumed messages; unknown messages are ignored."""
        waiting = self._open
        for message in messages:
            offset = message.queue_offset
            if waiting.get(offset) is message:
                del waiting[offset]
                self.size -= len(message.body)

    def stop(self, config: MemberConfig, *, is_orderly: bool) -> Stop | None:
        """Return the reached flow-control limit, or None. Orderly consumers have no limit on the offset span."""
        if self.count >= config.cached_count_max:
            return "count"
        if self.size >= config.cached_size_max:
            return "size"
        if not is_orderly and self.span >= config.cached_span_max:
            return "span"
        return None


log: logging.Logger = logging.getLogger(__name__)

RETRY_S: Final = 3.0
"""Seconds until the next pull after an error (`pullTimeDelayMillsWhenException`)."""
FLOW_CONTROL_RETRY_S: Final = 0.02
"""Seconds until the next pull after FLOW_CONTROL (`PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL`)."""
BEHIND_RETRY_S: Final = 0.2
"""Seconds until the next pull if a broker asks for an immediate pull at the offset of the last pull."""
# Computed once, because `|` on an IntFlag costs more than the rest of a header.
_PULLS: Final = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
_RESULTS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@frozen
class Batch:
    """The messages of one pull, and their puller."""

    puller: Puller
    messages: tuple[ReceivedMessage, ...]
    """At least one message."""


class Scheduler(Protocol):
    """Runs actions later: a `Timer` on a thread, or an event loop. Once the client is closed, no action runs."""

    def after(self, delay_s: float, action: Callable[[], None], /) -> None:
        """Call `action` after the delay."""
        ...

    def every(self, period_s: float, action: Callable[[], None], /) -> None:
        """Call `action` after each period."""
        ...


@define(slots=True, eq=False, kw_only=True)
class Puller:
    """The loop that pulls one queue, the same on threads and on an event loop.

    Invariant, under `_lock`: while `_is_pulling`, exactly one pull is in progress that began in the current `_turn`;
    answers to all other pulls are ignored. After `_is_dropped` nothing is pulled or delivered. `_deferred` has entries
    only while `_is_paused`.
    """

    _instance: InstanceCore
    _timer: Scheduler
    _statistics: Statistics
    _config: MemberConfig
    _is_orderly: bool
    queue: MessageQueue
    _subscription: SubscriptionData
    _waiting: ProcessQueue = field(converter=ProcessQueue, alias="offset")
    _deliver: Callable[[Batch], None]
    _handle_unreadable: Callable[[UnreadableMessage, Callable[[LongpollError | None], None]], None]
    """Handles an unreadable message without blocking, and then calls the callback: with None to move past the message,
    or with an error to pull it again."""
    _begin_again: Callable[[], None] = lambda: None
    """Called for a queue that was deleted and created again, and that this puller no longer pulls."""
    _is_paused: bool = False
    locked_until_ns: int | None = None
    """The time until which the broker keeps the queue for this client, by the monotonic clock; None for an unlocked
    queue."""
    _consumed: deque[Sequence[ReceivedMessage]] = field(factory=deque, init=False)
    _is_pulling: bool = field(default=False, init=False)
    _is_alone: bool = field(default=False, init=False)
    """Whether to pull a single message, because the first message of the last answer was unreadable."""
    _is_deleted: bool = field(default=False, init=False)
    """Whether the broker's last answer was that the topic does not exist."""
    _is_dropped: bool = field(default=False, init=False)
    _deferred: list[Callable[[], None]] = field(factory=list, init=False)
    _turn: int = field(default=0, init=False)
    """Incremented when the expression or the offset changes, so that the answer to an earlier pull is ignored."""
    _stopped_by: Stop | None = field(default=None, init=False)
    _asked_ns: int = field(default=0, init=False)
    _lock: Lock = field(default=Factory(lambda self: self._instance.runtime.lock(), takes_self=True), init=False)
    _tags: frozenset[str] | None = field(
        default=Factory(lambda self: _tags_of(self._subscription), takes_self=True), init=False
    )
    _source: PullSource = field(
        default=Factory(lambda self: PullSource(self._instance, self.queue.broker_name), takes_self=True), init=False
    )

    @property
    def offset_done(self) -> int:
        """The offset to store: every message before it is consumed."""
        with self._lock:
            return self._cached.offset_done

    @property
    def is_locked(self) -> bool:
        """Whether this client still has the lock of the queue, or needs no lock.

        Without the lock, another member may have the queue and may have stored a later offset.
        """
        until_ns = self.locked_until_ns
        return until_ns is None or self._instance.runtime.monotonic_ns() < until_ns

    @property
    def cached_count(self) -> int:
        """The number of messages that wait to be consumed."""
        with self._lock:
            return self._cached.count

    @property
    def cached_size(self) -> int:
        """The bytes of the bodies of the waiting messages."""
        with self._lock:
            return self._cached.size

    @property
    def stopped_by(self) -> Stop | None:
        """The flow-control limit that stops pulling now, or None."""
        with self._lock:
            return self._stopped_by

    @property
    def is_dropped(self) -> bool:
        """Whether the queue was given up."""
        with self._lock:
            return self._is_dropped

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        with self._lock:
            return self._is_paused

    @property
    def is_open(self) -> bool:
        """Whether messages of this queue may be consumed, because the queue is neither given up nor paused.

        The state is read without the lock for each message, because even with the lock it could be outdated when the
        caller uses it.
        """
        return not (self._is_dropped or self._is_paused)

    @property
    def subscription(self) -> SubscriptionData:
        """Returns the subscription to the queue's topic."""
        with self._lock:
            return self._subscription

    def drop(self) -> None:
        """Stop pulling and delivering. The answer of a pull in progress is ignored."""
        with self._lock:
            self._settle()
            self._is_dropped = True
        self._go_on()

    def pause(self) -> None:
        """Stop pulling until `resume`. Messages of a pull in progress wait with the other messages."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Continue after `pause`, first with the deferred actions."""
        with self._lock:
            self._is_paused = False
        self._go_on()
        self.pull()

    def defer(self, action: Callable[[], None]) -> bool:
        """If the queue is paused, keep `action` until `resume` or `drop`. Returns whether the action was kept.

        `resume` or `drop` calls the action, which must return quickly.
        """
        with self._lock:
            is_deferred = self._is_paused and not self._is_dropped
            if is_deferred:
                self._deferred.append(action)
        return is_deferred

    def _go_on(self) -> None:
        with self._lock:
            deferred, self._deferred = self._deferred, []
        for action in deferred:
            action()

    def resubscribe(self, subscription: SubscriptionData) -> None:
        """Use another subscription from the next pull on.

        Messages that were pulled before are delivered unchanged.
        """
        with self._lock:
            self._subscription, self._tags = subscription, _tags_of(subscription)
            self._turn += 1
            self._is_pulling = self._is_alone = False
        self.pull()

    def first(self, count: int) -> list[ReceivedMessage]:
        """Return the first waiting messages, or none after the queue is given up."""
        with self._lock:
            return [] if self._is_dropped else self._cached.first(count)

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """Mark delivered messages as consumed.

        This method takes no lock, because several threads call it for every message. Usually a pull is in progress, and
        the handling of its answer removes the marked messages and pulls again.
        """
        self._consumed.append(messages)
        if not self._is_pulling:
            self.pull()

    @property
    def _cached(self) -> ProcessQueue:
        """Returns the messages that are not marked as consumed; the caller holds the lock."""
        if self._consumed:
            self._settle()
        return self._waiting

    def _settle(self) -> None:
        """Remove the messages that are marked as consumed; the caller holds the lock."""
        # The marks are removed last, so that an interruption by Ctrl-C loses none of them: removing the same messages
        # again later changes nothing. Dropped queues are handled too, because their last offset is stored when an
        # orderly listener returns.
        noted = list(self._consumed)
        self._waiting.done(chain.from_iterable(noted))
        for _messages in noted:
            self._consumed.popleft()

    def pull(self) -> None:
        """Send a pull for the next messages, unless a pull is in progress or enough messages wait."""
        with self._lock:
            if self._is_pulling or self._is_dropped or self._is_paused or self._is_stopped():
                return
            self._is_pulling = True
            turn = self._turn
            self._asked_ns = self._instance.runtime.monotonic_ns()
            header = self._header()
        try:
            self._instance.call_async(
                self._source.address(self._asked_ns),
                RequestCode.PULL_MESSAGE,
                header,
                callback=lambda answer: self._answered(answer, turn),
                timeout_s=self._config.pull_timeout_s,
            )
        except LongpollError as error:
            self._failed(error, self._retry_s(), turn)

    def _retry_s(self) -> float:
        """Return how many seconds to wait after the broker was unreachable; 0 if another broker can be asked."""
        return 0.0 if self._source.fell_back(self._instance.runtime.monotonic_ns()) else RETRY_S

    def _is_stopped(self) -> bool:
        """Whether flow control stops pulling until the next `done`. Each stop is counted once."""
        stop = self._cached.stop(self._config, is_orderly=self._is_orderly)
        if stop is not None and stop != self._stopped_by:
            self._statistics.add(self.queue.topic, **{f"stopped_by_{stop}": 1})
        self._stopped_by = stop
        return stop is not None

    def _header(self) -> PullMessageRequestHeader:
        # Unlike Java's client, the pull commits no offset, because a broker may apply the commit after a later store of
        # the offset.
        return PullMessageRequestHeader(
            consumer_group=self._config.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self._cached.offset_next,
            max_msg_nums=1 if self._is_alone else self._config.batch_count_max,
            sys_flag=_PULLS,
            commit_offset=0,
            suspend_timeout_millis=int(self._config.hold_s * 1000),
            sub_version=self._subscription.sub_version,
            subscription=self._subscription.sub_string,
            expression_type=self._subscription.expression_type,
        )

    def _answered(self, answer: Answer, turn: int) -> None:
        with self._lock:
            if turn != self._turn:
                return
            tags = self._tags
        try:
            if not isinstance(answer, Command):
                raise answer
            if answer.code not in _RESULTS:
                raise RefusedError(
                    f"pull of {self.queue.topic} queue {self.queue.queue_id}", answer.code, answer.remark
                )
            header = PullMessageResponseHeader.decode(answer.ext_fields)
            found, broken = decode_readable(answer.body) if answer.code == ResponseCode.SUCCESS else ([], None)
            self._check_order(found)
        except LongpollError as error:
            is_busy = isinstance(error, RefusedError) and error.code == ResponseCode.FLOW_CONTROL
            is_gone = not isinstance(answer, Command)
            if isinstance(error, RefusedError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._is_deleted = self._source.is_master_asked
            if not is_gone:
                # The answer may come from a slave that does not know the new state yet, so ask the master next.
                self._source.suggested(MASTER_ID)
            self._failed(error, FLOW_CONTROL_RETRY_S if is_busy else self._retry_s() if is_gone else RETRY_S, turn)
            return
        self._source.suggested(header.suggest_which_broker_id)
        if self._is_deleted:
            # The queue was created again, and its earlier offsets belong to other messages.
            self._is_deleted = False
            self._begin_again()
            return
        wanted = tuple(found if tags is None else [message for message in found if message.tag in tags])
        if broken is not None and not found:
            self._unreadable(str(broken), answer, header.next_begin_offset, turn)
            return
        offset_next = header.next_begin_offset if broken is None else found[-1].queue_offset + 1
        is_no_further = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and not self._goes_on(offset_next)
        self._take(wanted, offset_next, turn, is_moved=answer.code == ResponseCode.PULL_OFFSET_MOVED)
        if is_no_further:
            # The slave is behind its master, so an immediate pull would get the same answer again.
            self._timer.after(BEHIND_RETRY_S, self.pull)
        else:
            self.pull()

    def _goes_on(self, offset_next: int) -> bool:
        with self._lock:
            return offset_next != self._cached.offset_next

    def _unreadable(self, why: str, answer: Command, offset_next: int, turn: int) -> None:
        """Handle an answer whose first message is unreadable: pull that message alone, and handle a second failure.

        The offset of a message is certain only if the message came alone, because it is then the next offset minus one.
        """
        with self._lock:
            if turn != self._turn:
                return
            was_alone, self._is_alone = self._is_alone, True
            if not was_alone:
                self._is_pulling = False
        if not was_alone:
            log.warning("%s queue %d: %s; asking for it alone", self.queue.topic, self.queue.queue_id, why)
            self.pull()
            return
        message = UnreadableMessage(self.queue.topic, self.queue.queue_id, offset_next - 1, why, bytes(answer.body))
        self._handle_unreadable(message, lambda error: self._move_past(message, turn, error))

    def _move_past(self, message: UnreadableMessage, turn: int, error: LongpollError | None) -> None:
        if error is not None:
            self._failed(error, RETRY_S, turn)
            return
        self._take((), message.queue_offset + 1, turn, is_moved=False)
        self.pull()

    def _check_order(self, messages: list[ReceivedMessage]) -> None:
        """Raise RemoteProtocolError for messages before the requested offset, or out of order."""
        offset_next = self._waiting.offset_next
        offsets = [message.queue_offset for message in messages]
        before = [offset_next - 1, *offsets]
        if not all(map(lt, before, offsets)):
            late, offset = next((late, offset) for late, offset in zip(before, offsets, strict=False) if late >= offset)
            raise RemoteProtocolError(
                f"a pull of {self.queue.topic} queue {self.queue.queue_id} returned offset {offset}, "
                f"but {late + 1} or a later one was expected"
            )

    def _take(self, messages: tuple[ReceivedMessage, ...], offset_next: int, turn: int, *, is_moved: bool) -> None:
        with self._lock:
            if self._is_dropped or turn != self._turn:
                return
            self._is_pulling = self._is_alone = False
            if is_moved:
                self._cached.move(offset_next)
            else:
                self._cached.put(messages, offset_next)
            waited_ms = (self._instance.runtime.monotonic_ns() - self._asked_ns) / 1e6
        topic = self.queue.topic
        found = {"found_count": 1, "message_count": len(messages), "pull_ms": waited_ms} if messages else {}
        self._statistics.add(topic, pull_count=1, moved_count=int(is_moved), **found)
        if is_moved:
            log.warning("%s queue %d: the offset is moved to %d", topic, self.queue.queue_id, offset_next)
        if messages:
            self._deliver(Batch(self, messages))

    def _failed(self, error: LongpollError, retry_s: float, turn: int) -> None:
        with self._lock:
            if self._is_dropped or turn != self._turn:
                return
            self._is_pulling = False
        self._statistics.add(self.queue.topic, failed_pull_count=1)
        log.warning("%s queue %d: %s; asking again in %g s", self.queue.topic, self.queue.queue_id, error, retry_s)
        self._timer.after(retry_s, self.pull)


def _tags_of(subscription: SubscriptionData) -> frozenset[str] | None:
    """Returns the subscribed tags; None for all tags or a filter that only the broker evaluates."""
    return wanted_tags(subscription.sub_string) if subscription.expression_type == "TAG" else None
