"""The decisions of one send: which queue it goes to, whether and how long it is tried again, and how it ended.

This module has no lock, clock or connection: its owner asks for routes, sends, and passes in the time and the outcome.
Therefore threads, callbacks and asyncio tasks make the same decisions.

    tries = SendAttempts(parcel, queue_selector, deadline_ns)
    while True:
        attempt = tries.begin(route, turn, now_ns)
        outcome = ...  # the answer to the request, or the ClientError that came instead
        if (results := tries.ended(outcome, now_ns)) is not None:
            return results

`SlowBrokers` chooses the brokers that sends avoid for a while; `outgoing` has the bytes of requests.

Source: `DefaultMQProducerImpl.sendDefaultImpl`, `TopicPublishInfo.selectOneMessageQueue`; `MQFaultStrategy.java` and
`LatencyFaultToleranceImpl.java` of 5.x (4.9.7 avoids a broker up to ten minutes, and ignores which broker the last try
went to).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
from attrs import define, field

from longpoll_client.checks import check_plain, check_whole
from longpoll_client.errors import (
    RETRIED_CODES,
    AnswerTimeoutError,
    ClientError,
    ConnectionLostError,
    NoRouteError,
    RefusedError,
    UnreachableError,
)
from longpoll_client.link.routes import Route
from longpoll_client.produce.outgoing import Parcel
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.codes import SEND_SUCCESS_CODES
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_spec.errors import ConfigError
from longpoll_spec.tables import with_table

MS: Final = 1_000_000
AWAY_MS: Final = ((15_000, 30_000), (5000, 10_000), (3000, 6000), (1800, 5000), (550, 2000))
"""If a send took at least the first number of a pair, its broker is avoided for the second number, both in milliseconds
(`latencyMax`)."""
LOST_LATENCY_MS: Final = 10_000
"""The latency in milliseconds that a failed send counts as."""


def away_ms(latency_ms: float) -> int:
    """Return how long to avoid a broker whose send took this long, milliseconds."""
    return next((away for least, away in AWAY_MS if latency_ms >= least), 0)


@define(slots=True, eq=False)
class SlowBrokers:
    """The brokers that sends avoid.

    Invariant: `_until_ns` never goes back for a broker. Each change is atomic, so threads need no lock: if two reports
    about one broker come at the same time, the later report may be lost until the broker's next send.
    """

    _until_ns: dict[str, int] = field(factory=dict)
    _refusing: set[str] = field(factory=set)
    """Brokers that refused their last send. Sends prefer slow brokers to refusing ones."""

    def served(self, broker_name: str, latency_ns: int, now_ns: int) -> None:
        """Record that the broker accepted a message, or refused a message that every broker refuses."""
        self._refusing.discard(broker_name)
        self._stay_away(broker_name, away_ms(latency_ns / MS), now_ns)

    def failed(self, broker_name: str, now_ns: int, *, is_refusal: bool) -> None:
        """Record that the broker did not answer, or refused a message that another broker might accept."""
        if is_refusal:
            self._refusing.add(broker_name)
        else:
            self._refusing.discard(broker_name)
        self._stay_away(broker_name, away_ms(LOST_LATENCY_MS), now_ns)

    def is_available(self, broker_name: str, now_ns: int) -> bool:
        """Whether sends may use the broker now."""
        return now_ns >= self._until_ns.get(broker_name, now_ns)

    def preferred(self, queues: Sequence[MessageQueue], avoided: str | None, now_ns: int) -> Sequence[MessageQueue]:
        """Return the queues of the best brokers; at least one if any queue is given.

        The queues of available brokers are best, then those of brokers that did not refuse their last send, in both
        cases without the avoided broker. If no broker qualifies, all queues are returned.
        """
        others = [queue for queue in queues if queue.broker_name != avoided]
        available = [queue for queue in others if self.is_available(queue.broker_name, now_ns)]
        return available or [queue for queue in others if queue.broker_name not in self._refusing] or queues

    def _stay_away(self, broker_name: str, duration_ms: int, now_ns: int) -> None:
        if duration_ms:
            self._until_ns[broker_name] = max(self._until_ns.get(broker_name, 0), now_ns + duration_ms * MS)


ATTEMPT_COUNT: Final = 3
"""The first attempt and two more (`retryTimesWhenSendFailed` is 2)."""
QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Picks a queue from a topic's writable queues, which are sorted and at least one (`MessageQueueSelector`)."""
Turn: TypeAlias = Callable[[], int]
"""Returns the next number of the producer's counter, which chooses queues in turn. No number is returned twice."""


@with_table
class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The id, queue and offset of a sent message."""

    msg_id: str
    """The id that the producer gave the message (`UNIQ_KEY`)."""
    broker_msg_id: str
    """The id that the broker gave the message, which contains the message's offset in the log."""
    queue: MessageQueue
    queue_offset: int
    code: int
    """SUCCESS, or one of `SEND_SUCCESS_CODES` if the message is stored but not yet flushed or replicated."""

    @property
    def physical_offset(self) -> int:
        """The message's offset in its broker's log, from `broker_msg_id`; raises ValueError for another form of id."""
        return int(self.broker_msg_id[-16:], 16)


@with_table
class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt: its queue, its broker, and how long to wait for the answer."""

    queue: MessageQueue
    address: str
    timeout_s: float


def read_header(answer: Command) -> SendMessageResponseHeader:
    """Returns the fields of an answer to a send; raises HeaderError."""
    return SendMessageResponseHeader.decode(answer.ext_fields)


@with_table
class SendAttempts(msgspec.Struct, eq=False):
    """One send with all its attempts.

    Invariant: `count` is the number of begun attempts; `failure` is the last attempt's error, or None before the first
    error.
    """

    parcel: Parcel
    queue_selector: QueueSelector | None
    """Selects the queue; None means that the queues are used in turn."""
    deadline_ns: int
    """The deadline of all attempts by the owner's clock; the first attempt is made in any case."""
    slow: SlowBrokers | None = None
    """Records the result of each attempt, to avoid slow brokers; None if `avoids_slow_brokers` is off."""
    read: Callable[[Command], SendMessageResponseHeader] = read_header
    """Decodes the fields of an answer; raises HeaderError."""
    count: int = 0
    failure: ClientError | None = None
    _queue: MessageQueue | None = None
    _begun_ns: int = 0
    address: str = ""
    """Host:port of the broker of the last attempt; "" before the first attempt."""

    def begin(self, route: Route, turn: Turn, now_ns: int) -> Attempt:
        """Begin the next attempt by the current route, if possible with a broker other than the last attempt's.

        Raises NoRouteError if no queue is writable, and ConfigError if the selector returns an unknown queue.
        """
        avoided = self._queue.broker_name if self._queue is not None else None
        queue = pick(route, self.queue_selector, turn, avoided, slow=self.slow, now_ns=now_ns)
        self.count += 1
        self._queue = queue
        self._begun_ns = now_ns
        self.address = address = route.addresses[queue.broker_name]
        return Attempt(queue, address, (self.deadline_ns - now_ns) / 1e9)

    def cancel(self) -> None:
        """Cancel the attempt that has begun. The next attempt uses the next queue."""
        self.count -= 1
        self._queue = None

    def ended(self, outcome: Command | ClientError, now_ns: int) -> tuple[SendResult, ...] | None:
        """Returns each message's result, or None if another attempt follows; raises the error of a failed send."""
        assert self._queue is not None, "it has not begun"
        if self.slow is not None:
            self._tell_slow(self.slow, self._queue.broker_name, outcome, now_ns)
        try:
            if isinstance(outcome, ClientError):
                raise outcome
            return results(self.parcel, self._queue, outcome, self.read)
        except ClientError as error:
            self.failure = error
            if not error.retriable or self.count >= ATTEMPT_COUNT or now_ns >= self.deadline_ns:
                raise
        return None

    def _tell_slow(self, slow: SlowBrokers, name: str, outcome: Command | ClientError, now_ns: int) -> None:
        """Record an attempt for `avoids_slow_brokers`.

        A message that every broker would refuse does not count against the broker that refused it; in Java it does.
        """
        is_refusal = isinstance(outcome, Command) and outcome.code in RETRIED_CODES
        if is_refusal or isinstance(outcome, ClientError):
            slow.failed(name, now_ns, is_refusal=is_refusal)
        else:
            slow.served(name, now_ns - self._begun_ns, now_ns)


def is_lost(error: ClientError) -> bool:
    """Return whether the error means that the broker did not answer, in which case its route needs a refresh."""
    return isinstance(error, UnreachableError | ConnectionLostError | AnswerTimeoutError)


def pick(
    route: Route,
    queue_selector: QueueSelector | None,
    turn: Turn,
    avoided: str | None,
    *,
    slow: SlowBrokers | None = None,
    now_ns: int = 0,
) -> MessageQueue:
    """Return the queue that `queue_selector` picks, or without a selector the next queue in turn.

    Without a selector, the avoided broker is used only if no other broker has queues. If `slow` is given, brokers that
    were not slow are preferred. Raises NoRouteError and ConfigError.
    """
    if not route.writable:
        raise NoRouteError(f"topic {route.topic!r} is not writable: its permission lacks W")
    if queue_selector is None:
        queues: Sequence[MessageQueue] = route.writable
        if slow is not None:
            queues = slow.preferred(queues, avoided, now_ns)
        elif avoided is not None:
            queues = [queue for queue in queues if queue.broker_name != avoided] or queues
        return queues[turn() % len(queues)]
    queue = queue_selector(route.writable)
    if queue not in route.writable:
        raise ConfigError(f"{queue} is not a writable queue of topic {route.topic!r}; return one of the given queues")
    return queue


def selector(topic: str, queue_id: int | None, queue_selector: QueueSelector | None) -> QueueSelector | None:
    """Returns the selector for these arguments; raises ConfigError if both are given."""
    if queue_id is None:
        if queue_selector is not None:
            check_plain("queue_selector", queue_selector)
        return queue_selector
    if queue_selector is not None:
        raise ConfigError("queue_id and queue_selector cannot be used together; pass one of them")
    check_whole("queue_id", queue_id)

    def by_id(queues: Sequence[MessageQueue]) -> MessageQueue:
        for queue in queues:
            if queue.queue_id == queue_id:
                return queue
        raise ConfigError(f"topic {topic!r} has no queue {queue_id}: it has {len(queues)}")

    return by_id


def results(
    parcel: Parcel,
    queue: MessageQueue,
    answer: Command,
    read: Callable[[Command], SendMessageResponseHeader] = read_header,
) -> tuple[SendResult, ...]:
    """Returns the result of each message; raises RefusedError or another ClientError."""
    if answer.code not in SEND_SUCCESS_CODES:
        raise RefusedError(f"send to topic {parcel.topic!r}", answer.code, answer.remark)
    try:
        header = read(answer)
    except HeaderError as error:
        raise ClientError(f"send to topic {parcel.topic!r}: the answer cannot be read: {error}") from None
    stored = queue
    if header.queue_id != queue.queue_id:
        stored = MessageQueue(topic=parcel.topic, broker_name=queue.broker_name, queue_id=header.queue_id)
    if len(parcel.msg_ids) == 1:
        return (SendResult(parcel.msg_ids[0], header.msg_id, stored, header.queue_offset, answer.code),)
    broker_ids = header.msg_id.split(",")
    if len(broker_ids) != len(parcel.msg_ids):
        broker_ids = [header.msg_id] * len(parcel.msg_ids)
    return tuple(
        SendResult(msg_id, broker_id, stored, header.queue_offset + number, answer.code)
        for number, (msg_id, broker_id) in enumerate(zip(parcel.msg_ids, broker_ids, strict=True))
    )
