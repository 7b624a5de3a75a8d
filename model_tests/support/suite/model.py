"""The right answers of a RocketMQ broker, for the kit's model: which messages a pull of a queue may get.

The model computes the result of a read for a given max offset of the queue. An answer is right if it is the result for
some max offset that the broker may have seen between request and answer. The model shares no code with the broker, not
even the hash of a tag.

The model omits limits by bytes, because bodies here are far below 256 KiB a pull. It also omits reads of more than 800
messages without a match, and queues whose first messages were deleted.

Source: the specification in `longpoll_spec`; `DefaultMessageStore.getMessage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field, frozen
from model_tests.support.suite.requests import Draft, PullTerms, Wanted

from longpoll_kit.errors import ViolationError
from longpoll_kit.model import Allowances, Ask, Message, Queue
from longpoll_kit.subject import Polled

FOUND: Final = 0
NOT_FOUND: Final = 19
RETRY_IMMEDIATELY: Final = 20
OFFSET_MOVED: Final = 21
COUNT_MAX: Final = 32
"""The maximum number of messages in one answer, `maxTransferCountOnMessageInMemory`."""
ADDED_PROPERTIES: Final = frozenset({"CLUSTER", "MSG_REGION", "TRACE_ON", "UNIQ_KEY"})
"""Properties that brokers add to a message."""
DROPPED_PROPERTIES: Final = frozenset({"WAIT"})
"""Properties that brokers may drop, in addition to empty ones: 4.9 drops `WAIT`, and 5.x keeps it."""


@frozen
class Expectations:
    """The requirements on a broker. The defaults are the promises of the policy `strict`."""

    scan_period_ms: int | None = None
    """The delay in ms that is allowed if the broker checks deadlines and missed arrivals only in a scan."""
    visible_at_ack: bool = True
    """Whether an acknowledged message is readable at once; otherwise it is readable after the dispatcher's next poll.
    """
    answers_on_stop: bool = True
    """Whether a stopping broker answers held pulls; otherwise it only closes their connections."""
    closes_malformed: bool = True
    """Whether the broker closes a connection that sends something other than a frame.

        5.x closes most such connections, but first waits for 12 bytes, which may be a PROXY header."""
    copies_serialisation: bool = True
    """Whether every answer has the encoding of its request. Java answers woken pulls in JSON."""
    queue_file_units: int = 300_000
    """The number of messages in one consume-queue file. A read never crosses the end of a file."""
    patience_ms: int = 5_000
    """If a wake or a reply takes more ms than this, plus a scan period, it counts as lost."""
    late_ms: int = 2_000
    """How many ms after its deadline a held pull may be answered, plus a scan period."""

    @property
    def allowances(self) -> Allowances:
        scan_ms = self.scan_period_ms or 0
        return Allowances(wake_ms=self.patience_ms + scan_ms, late_ms=self.late_ms + scan_ms)


STRICT: Final = Expectations()
ROCKETMQ: Final = Expectations(
    scan_period_ms=5_000,
    visible_at_ack=False,
    answers_on_stop=False,
    closes_malformed=False,
    copies_serialisation=False,
)
"""The expectations for Java's brokers, and for the policies named after them."""


def broken(what: str, prop: str = "protocol_kept") -> ViolationError:
    """Returns a violation that the kit's model cannot see: of RocketMQ's protocol, or of a promise on the wire."""
    return ViolationError(prop, what, "`longpoll conform` shows the bytes of such conversations")


@frozen
class Stored:
    """A delivered message, whose CRC was already checked."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: Mapping[str, str]


@frozen
class Read:
    """The result of a read: code, next offset, and the queue offsets of the found messages."""

    code: int
    offset_next: int
    offsets: tuple[int, ...] = ()


@frozen
class Answer(Polled):
    code: int = field(kw_only=True)
    offset_min: int = field(kw_only=True)
    offset_max: int = field(kw_only=True)
    stored: Sequence[Stored] = field(default=(), kw_only=True)

    def __str__(self) -> str:
        offsets = [message.queue_offset for message in self.stored]
        ends = f"min {self.offset_min}, max {self.offset_max}"
        return f"code {self.code}, next {self.position_next}, {ends}, {offsets=}"


@define(eq=False)
class WireMessage(Message):
    """A message that was sent and acknowledged."""

    properties: Mapping[str, str] = field(factory=dict)
    physical_offset: int | None = None
    """The log offset in the message's id; None if the message was sent one-way and so has no known id."""

    @property
    def tag(self) -> str:
        """The tag of the message, or "" if it has no tag."""
        return self.properties.get("TAGS", "")

    def is_given_back(self, properties: Mapping[str, str]) -> bool:
        """Whether a delivered message has every sent property that brokers must keep, and no unknown property."""
        must = {name: value for name, value in self.properties.items() if value and name not in DROPPED_PROPERTIES}
        is_known = all(
            value == self.properties[name] if name in self.properties else name in ADDED_PROPERTIES
            for name, value in properties.items()
        )
        return is_known and must.keys() <= properties.keys()


@define(eq=False)
class WireQueue(Queue):
    """A queue of a topic, with every acknowledged message at its queue offset."""

    topic: str = ""
    queue_id: int = 0
    file_units: int = 300_000
    offset_next: int = 0
    """The nextBeginOffset of the last answer."""

    @property
    def known(self) -> Sequence[WireMessage]:
        """The queue's messages, typed as messages with properties."""
        return self.messages  # type: ignore[return-value] # only `sent` adds some

    def sent(self, draft: Draft, begun_ns: int, acked_ns: int, physical_offset: int | None = None) -> WireMessage:
        """Record an acknowledged message at the queue's end."""
        message = WireMessage(
            self.end, draft.body, begun_ns, acked_ns, properties=draft.properties, physical_offset=physical_offset
        )
        self.messages.append(message)
        return message

    def seen_before(self, moment_ns: int) -> int:
        """Returns the max offset that every client could see at a time."""
        return sum(message.is_sure(moment_ns) for message in self.messages)

    def read(self, offset: int, wanted: Wanted, count_max: int, end: int) -> Read:
        """Returns the result of a pull while the queue's max offset is `end`."""
        if end == 0:
            return Read(NOT_FOUND, 0) if offset == 0 else Read(OFFSET_MOVED, 0)
        if not 0 <= offset <= end:
            return Read(OFFSET_MOVED, max(0, min(offset, end)))
        if offset == end:
            return Read(NOT_FOUND, offset)
        stop = min(end, (offset // self.file_units + 1) * self.file_units)
        count_max = max(1, min(count_max, COUNT_MAX))
        found: list[int] = []
        for position in range(offset, stop):
            if len(found) == count_max:
                return Read(FOUND, position, tuple(found))
            if wanted.matches(self.known[position].tag):
                found.append(position)
        return Read(FOUND if found else RETRY_IMMEDIATELY, stop, tuple(found))

    def owed(self, ask: Ask) -> Message | None:
        """Returns the message that the pull must get, if any.

        A pull must get the message at its offset if this message was stored before the pull, and otherwise the first
        matching message.
        """
        terms: PullTerms = ask.position
        if 0 <= terms.offset < self.seen_before(ask.begun_ns):
            return self.messages[terms.offset]
        later = self.known[terms.offset :] if 0 <= terms.offset <= self.end else []
        return next((message for message in later if terms.wanted.matches(message.tag)), None)

    def judge(self, ask: Ask) -> None:
        """Check that some max offset that the broker may have seen explains the answer; raises ViolationError."""
        terms, answer = ask.position, ask.answer
        assert isinstance(answer, Answer)
        nothing = answer.code == NOT_FOUND and not answer.stored
        if ask.cancelled_ns is not None and nothing and answer.position_next == terms.offset:
            return  # A broker that stops answers its held pulls with their own offset.
        said = f"{ask} at {terms.offset} for {terms.wanted.expression!r}"
        if answer.offset_min != 0:
            raise broken(f"{said}: minOffset is {answer.offset_min}, although nothing was deleted")
        ends = range(self.seen_before(ask.begun_ns), self.end + 1)
        if answer.offset_max not in ends:
            raise broken(f"{said}: maxOffset is {answer.offset_max}; expected {ends[0]} to {ends[-1]}")
        got = Read(answer.code, answer.position_next, tuple(message.queue_offset for message in answer.stored))
        explained = [end for end in ends if self.read(terms.offset, terms.wanted, terms.count_max, end) == got]
        if not any(end >= answer.offset_max for end in explained):
            expected = self.read(terms.offset, terms.wanted, terms.count_max, answer.offset_max)
            raise broken(f"{said}: {answer}; expected {expected} while the queue ends at {answer.offset_max}")
        if nothing and ask.timeout_ms:
            self.judge_moment(ask)
            end = explained[-1]
            if end < self.end and self.must_have_seen(ask, self.messages[end]):
                raise self.passed_over(ask, self.messages[end])
        for message in answer.stored:
            self.check_stored(message)
        self.offset_next = answer.position_next

    def check_stored(self, stored: Stored) -> None:
        """Check that a delivered message equals the sent one; raises ViolationError."""
        sent = self.known[stored.queue_offset]
        where = f"the message at {self.name} offset {stored.queue_offset}"
        if (stored.topic, stored.queue_id) != (self.topic, self.queue_id):
            raise broken(f"{where} claims to be in {stored.topic}@{stored.queue_id}", "right_messages")
        if stored.body != sent.body:
            raise broken(f"{where} has body {stored.body[:60]!r} instead of {sent.body[:60]!r}", "right_messages")
        if sent.physical_offset not in {None, stored.physical_offset}:
            raise broken(f"{where} has log offset {stored.physical_offset}, but its id has {sent.physical_offset}")
        if not sent.is_given_back(stored.properties):
            raise broken(f"{where} has properties {dict(stored.properties)} instead of {dict(sent.properties)}")
