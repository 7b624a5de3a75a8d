"""The requirements on a broker as plain lists and numbers: messages by queue, and the allowed answers to each pull.

The model knows what was acknowledged. It computes the result of a read at a given end of the queue. An answer is right
if some end explains it that the broker may have seen between request and answer. The model shares no code with the
broker, not even the hash of a tag.

Not modelled: limits by bytes (bodies here are far below 256 KiB a pull), reads of more than 800 messages without a
match, and queues whose first messages were deleted.

Source: the specification in `longpoll_spec`; `DefaultMessageStore.getMessage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from longpoll_protocol.frames import Serialisation

FOUND: Final = 0
NOT_FOUND: Final = 19
RETRY_IMMEDIATELY: Final = 20
OFFSET_MOVED: Final = 21
COUNT_MAX: Final = 32
"""`maxTransferCountOnMessageInMemory`: the most messages in one answer."""
ADDED_PROPERTIES: Final = frozenset({"CLUSTER", "MSG_REGION", "TRACE_ON", "UNIQ_KEY"})
"""Properties that brokers add to a message."""
DROPPED_PROPERTIES: Final = frozenset({"WAIT"})
"""Properties that brokers may drop, like every empty one: 4.9 drops `WAIT`, 5.x keeps it."""
EARLY_NS: Final = 2_000_000
"""Java measures a deadline in whole milliseconds: two roundings of up to one each."""


class ViolationError(AssertionError):
    """The broker did something forbidden, or failed to do something required."""


@frozen
class Expectations:
    """The requirements on a broker; the defaults are the promises of the policy `strict`."""

    scan_period_ms: int | None = None
    """A broker that checks deadlines and missed arrivals only in a scan may be late by this much."""
    visible_at_ack: bool = True
    """Whether an acknowledged message is readable at once, or only after the dispatcher's next poll."""
    answers_on_stop: bool = True
    """Whether held pulls are answered when the broker stops, or only see their connection close."""
    closes_malformed: bool = True
    """Whether a connection that sends something other than a frame is closed; otherwise the broker may answer or stay
    silent.

    5.x closes most of them, but waits for the first 12 bytes of a connection, which may be a PROXY header.
    """
    copies_serialisation: bool = True
    """Whether every answer has its request's encoding; Java writes woken ones in JSON."""
    queue_file_units: int = 300_000
    """Messages of one consume-queue file: a read does not cross its end."""
    patience_ms: int = 5_000
    """A wake or a reply that takes longer than this (plus a scan) counts as lost."""
    late_ms: int = 2_000
    """The latest answer to a held pull after its deadline (plus a scan)."""

    @property
    def patience_ns(self) -> int:
        """How long to wait for something that is due at once."""
        return (self.patience_ms + (self.scan_period_ms or 0)) * 1_000_000

    @property
    def late_ns(self) -> int:
        """How long after its deadline a held pull may be answered."""
        return (self.late_ms + (self.scan_period_ms or 0)) * 1_000_000


STRICT: Final = Expectations()
ROCKETMQ: Final = Expectations(
    scan_period_ms=5_000,
    visible_at_ack=False,
    answers_on_stop=False,
    closes_malformed=False,
    copies_serialisation=False,
)
"""Java's brokers, and the policies named after them."""


def tag_hash(tag: str) -> int:
    """Java's hash of a text, written out: s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, 32 bits, signed."""
    encoded = tag.encode("utf-16-be")
    units = [int.from_bytes(encoded[at : at + 2]) for at in range(0, len(encoded), 2)]
    total: int = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    return (total + 2**31) % 2**32 - 2**31


@frozen
class Wanted:
    """A tag expression: `*`, or tags separated by `||`."""

    expression: str

    def matches(self, tag: str) -> bool:
        """Whether a message with this tag ("" for none) is delivered; tags with equal hashes are not distinguished."""
        if self.expression == "*":
            return True
        asked = {tag_hash(part.strip()) for part in self.expression.split("||")}
        return (tag_hash(tag) if tag else 0) in asked


@frozen
class Message:
    """A message that was sent and acknowledged."""

    body: bytes
    properties: Mapping[str, str]
    acknowledged_ns: int
    physical_offset: int | None
    """The log position in its id; None if there was no id (sent one-way)."""

    @property
    def tag(self) -> str:
        """Its tag, "" for none."""
        return self.properties.get("TAGS", "")

    def is_given_back(self, properties: Mapping[str, str]) -> bool:
        """Whether a delivered message has every sent property that must be kept, and no other."""
        must = {name: value for name, value in self.properties.items() if value and name not in DROPPED_PROPERTIES}
        is_known = all(
            value == self.properties[name] if name in self.properties else name in ADDED_PROPERTIES
            for name, value in properties.items()
        )
        return is_known and must.keys() <= properties.keys()


@frozen
class Stored:
    """A message as delivered, its CRC already checked."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: Mapping[str, str]


@frozen
class Read:
    """The result of a read: code, next offset, and the queue offsets of the messages."""

    code: int
    offset_next: int
    offsets: tuple[int, ...] = ()


@frozen
class Answer:
    """An answer to a pull, decoded."""

    code: int
    offset_next: int
    offset_min: int
    offset_max: int
    stored: Sequence[Stored] = ()

    def __str__(self) -> str:
        offsets = [message.queue_offset for message in self.stored]
        return f"code {self.code}, next {self.offset_next}, min {self.offset_min}, max {self.offset_max}, {offsets=}"


@define(eq=False)
class Queue:
    """One queue: every message that it has acknowledged, at its queue offset."""

    topic: str
    queue_id: int
    file_units: int
    messages: list[Message] = field(factory=list)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return len(self.messages)

    def __str__(self) -> str:
        return f"{self.topic}@{self.queue_id}"

    def end_acknowledged_before(self, moment_ns: int) -> int:
        """The end as every client could see it at a time."""
        return sum(message.acknowledged_ns < moment_ns for message in self.messages)

    def read(self, offset: int, wanted: Wanted, count_max: int, end: int) -> Read:
        """The result of a pull while the queue ends at `end`."""
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
            if wanted.matches(self.messages[position].tag):
                found.append(position)
        return Read(FOUND if found else RETRY_IMMEDIATELY, stop, tuple(found))

    def has_match(self, offset: int, wanted: Wanted) -> bool:
        """Whether there is a matching message at or after an offset."""
        return 0 <= offset <= self.end and any(wanted.matches(message.tag) for message in self.messages[offset:])

    def check_stored(self, stored: Stored) -> None:
        """Check that a delivered message equals the sent one; raises ViolationError."""
        sent = self.messages[stored.queue_offset]
        where = f"the message at {self} offset {stored.queue_offset}"
        if (stored.topic, stored.queue_id) != (self.topic, self.queue_id):
            raise ViolationError(f"{where} claims to be in {stored.topic}@{stored.queue_id}")
        if stored.body != sent.body:
            raise ViolationError(f"{where} has body {stored.body[:60]!r} instead of {sent.body[:60]!r}")
        if sent.physical_offset not in {None, stored.physical_offset}:
            raise ViolationError(
                f"{where} has log offset {stored.physical_offset}, but its id has {sent.physical_offset}"
            )
        if not sent.is_given_back(stored.properties):
            raise ViolationError(f"{where} has properties {dict(stored.properties)} instead of {dict(sent.properties)}")


@define(eq=False)
class Pull:
    """A pull without an answer."""

    queue: Queue
    link: int
    """The number of its connection."""
    opaque: int
    offset: int
    wanted: Wanted
    count_max: int
    timeout_ms: int
    """How long it may be held; 0 for not at all."""
    serialisation: Serialisation
    end_at_ask: int
    """The end that was acknowledged before the request: the broker sees at least this."""
    asked_ns: int
    """Just before its bytes were written."""

    @property
    def due_ns(self) -> int:
        """Before this it must not be answered as "not found"."""
        return self.asked_ns + self.timeout_ms * 1_000_000 - EARLY_NS

    def __str__(self) -> str:
        held = f" held up to {self.timeout_ms} ms" if self.timeout_ms else ""
        return f"pull {self.link}-{self.opaque} of {self.queue} at {self.offset} for {self.wanted.expression!r}{held}"

    def must_be_answered(self) -> bool:
        """Whether there is something for it now, so that an answer is due at once."""
        if self.queue.read(self.offset, self.wanted, self.count_max, self.end_at_ask).code != NOT_FOUND:
            return True
        return self.timeout_ms == 0 or self.queue.has_match(self.offset, self.wanted)

    def is_late(self, now_ns: int, expectations: Expectations) -> bool:
        """Whether it should have been answered by now in any case."""
        return now_ns > self.asked_ns + self.timeout_ms * 1_000_000 + expectations.late_ns

    def judge(self, answer: Answer, read_ns: int, *, stopping: bool = False) -> None:
        """Check an answer that was read at `read_ns`; raises ViolationError."""
        queue = self.queue
        if stopping and answer.code == NOT_FOUND and answer.offset_next == self.offset and not answer.stored:
            return
        if answer.offset_min != 0:
            raise ViolationError(f"{self}: minOffset is {answer.offset_min}, although nothing was deleted")
        ends = range(self.end_at_ask, queue.end + 1)
        if answer.offset_max not in ends:
            raise ViolationError(f"{self}: maxOffset is {answer.offset_max}; expected {ends[0]} to {ends[-1]}")
        got = Read(answer.code, answer.offset_next, tuple(message.queue_offset for message in answer.stored))
        explained = [end for end in ends if queue.read(self.offset, self.wanted, self.count_max, end) == got]
        if not any(end >= answer.offset_max for end in explained):
            expected = queue.read(self.offset, self.wanted, self.count_max, answer.offset_max)
            raise ViolationError(f"{self}: {answer}; expected {expected} while the queue ends at {answer.offset_max}")
        if answer.code == NOT_FOUND and self.timeout_ms:
            self._judge_nothing(explained, read_ns)
        for message in answer.stored:
            queue.check_stored(message)

    def _judge_nothing(self, explained: Sequence[int], read_ns: int) -> None:
        if read_ns < self.due_ns:
            early_ms = (self.due_ns - read_ns) / 1e6
            raise ViolationError(f"{self}: got an empty answer {early_ms:.1f} ms before its deadline")
        # It expired after `due_ns`, so it must have seen the messages acknowledged before that.
        seen = self.queue.end_acknowledged_before(self.due_ns)
        if explained[-1] < seen:
            raise ViolationError(
                f"{self}: expired without a message, although message {explained[-1]} was there to wake it"
            )
