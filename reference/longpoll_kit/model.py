"""The correct answers: the messages of each queue, and a check whether an answer can be right.

The kit observes everything from outside. A message is certainly available after its publish was acknowledged, and
possibly available after its publish began. A poll is received at some time after its start. Therefore every violation
follows from an order of events that the kit has seen, and never from transit times.

`example` applies the time limits. `polls` sends the polls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_kit.errors import SubjectError, ViolationError
from longpoll_kit.subject import LongPollSubject, MessageOrder, Polled

MS: Final = 1_000_000
"""The number of nanoseconds in a millisecond."""
SHOWN_MAX: Final = 60
"""The maximum number of characters of a body in an error message."""


@frozen
class Allowances:
    """Time limits for a service, in milliseconds. Host pauses do not count for `wake_ms` and `late_ms`.

    - `wake_ms`: from the time when a message and a poll for it are both present to the poll's answer.
    - `late_ms`: from a poll's deadline to its answer.
    - `early_ms`: how long before its deadline a poll may get an empty answer; a service's clock may count milliseconds.
    - `visible_ms`: from the acknowledgement of a publish until a poll must find the message.
    - `may_answer_early`: whether a poll may get an empty answer at any time, unless a message came before the poll.
    """

    wake_ms: int = 500
    late_ms: int = 250
    early_ms: int = 2
    visible_ms: int = 0
    may_answer_early: bool = False

    def deadline_ns(self, ask: Ask) -> int:
        """Return a poll's earliest possible deadline: its start plus its timeout, less `early_ms`."""
        return ask.begun_ns + (ask.timeout_ms - self.early_ms) * MS

    def earliest_end_ns(self, ask: Ask) -> int:
        """The earliest time at which a poll may get an empty answer.

        If a message is present before this time, the answer must return the message.
        """
        return ask.begun_ns if self.may_answer_early else self.deadline_ns(ask)


@define(eq=False)
class Message:
    """A message whose publish has at least begun."""

    number: int
    """The index of the message in its queue: 0, 1, 2, ..."""
    body: bytes
    begun_ns: int
    acked_ns: int | None = None
    """When the publish of this message returned; None while the publish is in progress."""
    taken_by: Ask | None = None
    """The poll that got this message from a consuming service."""
    in_doubt: bool = False
    """Whether a poll without an answer may have taken this message, so that no other poll has to get it."""
    read_ns: int | None = None
    """When the reader's acknowledgement of this message returned; only for a service with `acknowledge`."""

    key: str = ""
    """The ordering key: messages of one key are in order. Empty if the whole queue is in order."""
    is_unordered: bool = False
    """Whether this message's position is still unknown, because other messages were published at the same time."""

    def is_sure(self, moment_ns: int | None = None) -> bool:
        """Return whether the publish of the message was acknowledged, optionally before a given time."""
        return self.acked_ns is not None and (moment_ns is None or self.acked_ns < moment_ns)

    def __str__(self) -> str:
        return f"message {self.number} ({shown(self.body)})"


@define(eq=False)
class Ask:
    """A poll that was started."""

    number: int
    queue: str
    first: int
    """The number of the first message that the poll requests; 0 for a consuming service."""
    position: Any
    timeout_ms: int
    begun_ns: int
    sent_ns: int | None = None
    """When `start_poll` returned."""
    cancelled_ns: int | None = None
    """When `cancel` returned, or a restart began."""
    ended_ns: int | None = None
    handle: Any = None
    answer: Polled | None = None
    error: Exception | None = None
    """The exception with which this poll ended without an answer."""
    is_suspected: bool = False
    """Whether this poll was already reported as late."""
    is_excused: bool = False
    """Whether the answer was late, but only because the host paused."""
    is_stopped: bool = False
    """Whether the kit stopped the thread of this poll, so the poll may have reached the service long after its start.
    """
    is_stray: bool = False
    """Whether any answer is correct if it arrives in time, for example because the position is not in the queue."""
    is_kept: bool = False
    """Whether the kit does not acknowledge the messages of this poll, to test their redelivery."""
    parts: list[Ask] = field(factory=list)
    """For a poll of several queues: one `Ask` for each queue."""
    reached: int = 0
    """The number after the last message in the poll's answer."""

    def __str__(self) -> str:
        start = f" from message {self.first}" if self.first else ""
        where = " and ".join(part.queue for part in self.parts) or self.queue
        return f"poll {self.number} of {where}{start} (up to {self.timeout_ms} ms)"


@define(eq=False)
class Queue(ABC):
    """A queue as the kit has observed it.

    Invariant: `messages[n].number == n`; all messages except the last one are acknowledged, because the kit publishes
    messages one after another.
    """

    name: str
    allowances: Allowances
    messages: list[Message] = field(factory=list)
    restarted_ns: int = 0
    """When the service's last restart began."""

    def publish(self, body: bytes, begun_ns: int, key: str = "") -> Message:
        """Record the start of a message's publish."""
        message = Message(len(self.messages), body, begun_ns, key=key)
        self.messages.append(message)
        return message

    @property
    def end(self) -> int:
        """The number of acknowledged messages, which is also the number of the next message."""
        return len(self.messages) - bool(self.messages and not self.messages[-1].is_sure())

    @abstractmethod
    def owed(self, ask: Ask) -> Message | None:
        """Return a message for which a poll in flight must be answered now; None if the poll may still wait."""

    @abstractmethod
    def judge(self, ask: Ask) -> None:
        """Check and record the answer of a poll that has ended. Raises ViolationError."""

    def ended_unanswered(self, ask: Ask) -> None:
        """Record that a poll ended without an answer because of a cancel or a restart."""
        assert ask.cancelled_ns is not None

    def judge_moment(self, ask: Ask) -> None:
        """Check that an answer did not come too early, and has no message published after the poll's cancel."""
        assert ask.answer is not None
        assert ask.ended_ns is not None
        early_ns = self.allowances.earliest_end_ns(ask) - ask.ended_ns
        if not ask.answer.bodies and ask.cancelled_ns is None and early_ns > 0:
            raise ViolationError("not_early", f"{ask} got an empty answer {early_ns / MS:.1f} ms too early")

    def judge_after_cancel(self, ask: Ask, messages: Sequence[Message]) -> None:
        """Check that no message in the answer was published after the poll was cancelled."""
        if ask.cancelled_ns is None:
            return
        for message in messages:
            if message.begun_ns > ask.cancelled_ns:
                raise ViolationError("cancelled_is_over", f"{ask} got {message}, which was published after its cancel")

    def passed_over(self, ask: Ask, message: Message) -> ViolationError:
        """Return the violation that a poll got an empty answer although a message was available."""
        assert message.acked_ns is not None
        since_ms = (self.allowances.earliest_end_ns(ask) - message.acked_ns) / MS
        when = f"{since_ms:.1f} ms before its deadline" if message.acked_ns > ask.begun_ns else "before it was begun"
        what = f"{ask} got an empty answer, although {message} was acknowledged {when}"
        return ViolationError(self.property_lost(ask, message), what)

    def property_lost(self, ask: Ask, message: Message) -> str:
        """Return the property that is broken if a poll did not get an acknowledged message."""
        assert message.acked_ns is not None
        if message.acked_ns > ask.begun_ns:
            return "no_lost_wakeup"
        return "kept_by_restart" if message.acked_ns < self.restarted_ns else "nothing_lost"

    def must_have_seen(self, ask: Ask, message: Message) -> bool:
        """Whether a message was certainly available at a poll's deadline."""
        visible_ns = self.allowances.visible_ms * MS
        return message.is_sure(self.allowances.earliest_end_ns(ask) - visible_ns)


@define(eq=False)
class OffsetQueue(Queue):
    """A queue from which polls read by position. Invariant: `positions[n]` is the position of message n."""

    positions: dict[int, Any] = field(factory=lambda: {0: None})
    is_confirming: bool = False
    """Whether a poll's position confirms all messages before it, so that earlier positions can no longer be read."""

    def owed(self, ask: Ask) -> Message | None:
        """Return the first message that the poll requests, if that message is available."""
        message = self.messages[ask.first] if ask.first < len(self.messages) else None
        return message if message is not None and message.is_sure() else None

    def judge(self, ask: Ask) -> None:
        """Check that the answer starts with the requested message and continues in order without gaps."""
        assert ask.answer is not None
        self.judge_moment(ask)
        if not ask.answer.bodies:
            self._judge_nothing(ask)
            return
        messages = self._judge_bodies(ask, ask.answer.bodies)
        self.judge_after_cancel(ask, messages)
        if ask.answer.position_next is None:
            raise SubjectError(
                "an answer with messages needs a position_next; pass the next position to longpoll.Polled"
            )
        ask.reached = messages[-1].number + 1
        self.positions[ask.reached] = ask.answer.position_next

    def _judge_bodies(self, ask: Ask, bodies: Sequence[bytes]) -> Sequence[Message]:
        for number, body in enumerate(bodies, ask.first):
            self._judge_body(ask, number, body)
        return self.messages[ask.first : ask.first + len(bodies)]

    def _judge_nothing(self, ask: Ask) -> None:
        message = self.messages[ask.first] if ask.first < len(self.messages) else None
        if ask.cancelled_ns is None and message is not None and self.must_have_seen(ask, message):
            raise self.passed_over(ask, message)
        if ask.answer is not None and ask.answer.position_next is not None:
            self.positions[ask.first] = ask.answer.position_next

    def _place(self, number: int, body: bytes) -> None:
        """Set the number of a message that was published with others at once to the number at which a poll read it."""
        group = [message for message in self.messages[number:] if message.is_unordered]
        found = next((message for message in group if message.body == body), None)
        if found is not None and group[0].number == number:
            found.body, group[0].body, group[0].is_unordered = group[0].body, body, False

    def _judge_body(self, ask: Ask, number: int, body: bytes) -> None:
        self._place(number, body)
        if number < len(self.messages) and self.messages[number].body == body:
            return
        known = [message.number for message in self.messages if message.body == body]
        if not known:
            raise never_published(ask, body)
        expected = f"message {number}" if number < len(self.messages) else "nothing more"
        if ask.first <= known[0] < number:
            raise ViolationError("answered_once", f"{ask} got message {known[0]} a second time instead of {expected}")
        prop = "nothing_lost" if known[0] > number else "in_order"
        raise ViolationError(prop, f"{ask} got message {known[0]} instead of {expected}")


@define(eq=False)
class NewestQueue(OffsetQueue):
    """A queue whose polls get the newest message after their position, and possibly some messages before it."""

    def _judge_bodies(self, ask: Ask, bodies: Sequence[bytes]) -> Sequence[Message]:
        """Check that the messages are in order, and the last one is no older than any message from before the poll."""
        by_body = {message.body: message for message in self.messages}
        found: list[Message] = []
        for body in bodies:
            message = by_body.get(body)
            if message is None:
                raise never_published(ask, body)
            if message.number < (found[-1].number + 1 if found else ask.first):
                raise ViolationError("in_order", f"{ask} got {message}, which is not after the one that it knew")
            found.append(message)
        newest = max((each for each in self.messages if each.is_sure(ask.begun_ns)), default=None, key=_number)
        if newest is not None and found[-1].number < newest.number:
            what = f"{ask} got {found[-1]} as the newest, although {newest} was acknowledged before it was begun"
            raise ViolationError("nothing_lost", what)
        return found


def _number(message: Message) -> int:
    return message.number


def never_published(ask: Ask, body: bytes) -> ViolationError:
    """Return the violation that a poll got a body that was never published to its queue."""
    return ViolationError("right_messages", f"{ask} got {shown(body)}, which was never published to its queue")


@define(eq=False)
class ConsumingQueue(Queue):
    """A queue that delivers each message to one poll.

    Invariant: `_answers` contains the polls that ended with messages, and `_nothings` the polls that ended empty at
    their deadlines. Every message before `_first_free` was delivered, or was possibly taken by a poll that ended
    without an answer (`in_doubt`).
    """

    order: MessageOrder = "total"
    redelivery_ms: int | None = None
    """How long after a delivery a message may be delivered again; None if the service never delivers it again."""
    client_ends_wait: bool = False
    """Whether a poll that ended empty may still have taken a message that arrived at the poll's end."""
    _by_body: dict[bytes, Message] = field(factory=dict)
    _answers: dict[str, list[tuple[Ask, int]]] = field(factory=dict)
    """Maps each key to its answered polls, with the highest message number that each poll took."""
    _nothings: list[Ask] = field(factory=list)
    _first_free: int = 0

    def publish(self, body: bytes, begun_ns: int, key: str = "") -> Message:
        """Record the start of a publish. The body must be unique."""
        message = super().publish(body, begun_ns, key)
        assert body not in self._by_body
        self._by_body[body] = message
        return message

    def waiting(self) -> Message | None:
        """Return the first message that was neither delivered nor possibly taken, so that some poll must get it."""
        for message in self.messages[self._first_free : self.end]:
            if message.taken_by is None and not message.in_doubt:
                return message
            self._first_free += 1
        return None

    def owed(self, ask: Ask) -> Message | None:  # noqa: ARG002 - it is anybody's
        """Return any message that was not delivered yet, because no poll may wait while such a message exists."""
        return self.waiting()

    def judge(self, ask: Ask) -> None:
        """Check that each message is new, in order, and later than the messages that earlier polls got."""
        assert ask.answer is not None
        self.judge_moment(ask)
        if not ask.answer.bodies:
            if ask.cancelled_ns is None:
                self._nothings.append(ask)
                if self.client_ends_wait and ask.ended_ns is not None:
                    self._doubt(ask, ask.ended_ns)
            return
        repeated = {body for body in ask.answer.bodies if body in self._by_body and self._by_body[body].taken_by}
        taken = [self._take(ask, body) for body in ask.answer.bodies]
        self.judge_after_cancel(ask, taken)
        ask.reached = len(taken)
        if self.order == "none":
            return
        sure = [each for each in taken if not (each.in_doubt or each.is_unordered or each.body in repeated)]
        for key in sorted({each.key for each in sure}):
            self._judge_order(ask, key, [each.number for each in sure if each.key == key])

    def ended_unanswered(self, ask: Ask) -> None:
        """Set `in_doubt` for each message that the poll may have taken, because its answer may be in transit."""
        super().ended_unanswered(ask)
        assert ask.cancelled_ns is not None
        self._doubt(ask, ask.cancelled_ns)

    def _doubt(self, ask: Ask, ended_ns: int) -> None:
        """Set `in_doubt` for the messages that a poll may have taken before its end."""
        for message in self.messages:
            is_due = ask.cancelled_ns is None and self.must_have_seen(ask, message)
            if message.taken_by is None and message.begun_ns < ended_ns and not is_due:
                message.in_doubt = True

    def _take(self, ask: Ask, body: bytes) -> Message:
        message = self._by_body.get(body)
        if message is None:
            raise never_published(ask, body)
        if message.taken_by is not None:
            self._judge_again(ask, message, message.taken_by)
            message.taken_by = ask
            return message
        for nothing in self._nothings:
            assert nothing.ended_ns is not None
            if nothing.ended_ns < ask.begun_ns and self.must_have_seen(nothing, message) and not message.in_doubt:
                raise self.passed_over(nothing, message)
        message.taken_by = ask
        return message

    def _judge_again(self, ask: Ask, message: Message, earlier: Ask) -> None:
        """Check that a message that was delivered before may be delivered again."""
        what = f"{ask} got {message}, which {earlier} got before"
        if self.redelivery_ms is None or earlier is ask:
            raise ViolationError("answered_once", what)
        if message.read_ns is not None and ask.begun_ns > message.read_ns:
            raise ViolationError("answered_once", f"{what}, and which was acknowledged since")
        assert ask.ended_ns is not None
        after_ms = (ask.ended_ns - earlier.begun_ns) / MS
        if after_ms < self.redelivery_ms - self.allowances.early_ms:
            raise ViolationError(
                "answered_once", f"{what}, {after_ms:.0f} ms ago at most (redelivery_ms is {self.redelivery_ms:,})"
            )

    def _judge_order(self, ask: Ask, key: str, numbers: list[int]) -> None:
        of_key = f" of key {key}" if key else ""
        if numbers != sorted(numbers):
            raise ViolationError("in_order", f"{ask} got messages{of_key} in the order {numbers}")
        answers = self._answers.setdefault(key, [])
        for earlier, highest in answers:
            assert earlier.ended_ns is not None
            if earlier.ended_ns < ask.begun_ns and numbers[0] < highest:
                what = f"{ask} got message {numbers[0]}{of_key} after {earlier} got {highest}"
                raise ViolationError("in_order", what)
        answers.append((ask, numbers[-1]))


def queue_for(subject: LongPollSubject, name: str, allowances: Allowances) -> Queue:
    """Create a queue model for the semantics that the subject declares."""
    match subject.semantics:
        case "consuming":
            order: MessageOrder = getattr(subject, "order", "total")
            redelivery_ms = getattr(subject, "redelivery_ms", None)
            client_ends_wait = getattr(subject, "client_ends_wait", False)
            return ConsumingQueue(
                name, allowances, order=order, redelivery_ms=redelivery_ms, client_ends_wait=client_ends_wait
            )
        case "newest":
            return NewestQueue(name, allowances)
        case kind:
            return OffsetQueue(name, allowances, is_confirming=kind == "confirming")


def shown(body: bytes) -> str:
    """Return a body as text for an error message, escaped and truncated."""
    text = repr(body)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(body)} bytes)"
