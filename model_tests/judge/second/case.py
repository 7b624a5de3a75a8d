"""What the clauses share: verdicts over intervals, pulls with their answers, and what was visible when.

Leaves out the clauses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen
from model_tests.judge.second.parts import MS, java_hash
from model_tests.judge.second.reading import (
    FAR,
    LAW_EVENTS,
    PULLS,
    WAKE_NS,
    Queue,
    Record,
    Seen,
    before,
    wanted,
)

from longpoll_spec.policy import PRESETS

DELETED_NS: Final = 5_000 * MS
"""Until how long after its receipt a deletion (215) may take effect: nobody tells of its answer."""

STOPPING_NS: Final = 5_000 * MS
"""Within this a broker that stops closes the connections of those that it has answered."""


@frozen
class Said:
    """A clause is broken, or may be."""

    verdict: str
    source: str
    """By whose events."""
    why: str


def violated(one: Seen, why: str) -> Said:
    """No choice of moments makes it good."""
    return Said("violated", one.source, why)


def unknown(one: Seen, why: str) -> Said:
    """Some choice makes it good."""
    return Said("unknown", one.source, why)


def absent(record: Record, one: Seen, lo: int, hi: int, why: str) -> Iterator[Said]:
    """Something is missing that would stand between two moments: broken where the record is whole there.

    Where it is not, the hole alone leaves the verdict open.
    """
    if record.is_whole(one.source, lo, hi):
        yield violated(one, why)


@frozen
class Exchange:
    """A pull, and its first answer if it has one."""

    request: Seen
    answer: Seen | None

    @property
    def code(self) -> int:
        """The answer's code; -1 without one."""
        return -1 if self.answer is None else int(self.answer.code)

    @property
    def name(self) -> str:
        """How to call it."""
        return f"{self.request.source} {self.request.request}"


def first_answers(record: Record) -> dict[tuple[str, str], Seen]:
    """The first answer to each request."""
    found: dict[tuple[str, str], Seen] = {}
    for one in record.of("answer_sent"):
        found.setdefault(one.about, one)
    return found


def exchanges(record: Record) -> Iterator[Exchange]:
    """Every pull that has an identifier."""
    answers = first_answers(record)
    for one in record.of("request_received"):
        if one.code in PULLS and one.request:
            yield Exchange(one, answers.get(one.about))


def read_answers(record: Record) -> Iterator[tuple[Seen, Seen]]:
    """Pulls that were answered after a read of the store, with these answers."""
    for one in exchanges(record):
        if one.answer is not None and one.code in {0, 19, 20, 21}:
            yield one.request, one.answer


def seen_inside(record: Record, queue: Queue) -> bool:
    """Whether ends of this queue are told."""
    return any(one.place == queue for one in record.of("make_visible"))


def is_inside(record: Record, source: str) -> bool:
    """Whether this source writes events of the law."""
    return any(one.source == source and one.event in LAW_EVENTS for one in record.events)


def policy_says(record: Record, name: str, value: str, *, unnamed: bool) -> bool:
    """Whether every policy of the history has this value of a knob; `unnamed` where none is named."""
    for text in record.policies:
        preset, *knobs = text.split("+")
        if preset not in PRESETS:
            return unnamed
        known = getattr(PRESETS[preset], name)
        for knob in knobs:
            if knob.split("=")[0] == name:
                known = knob.split("=")[1]
        if known != value:
            return False
    return True


def deleted_between(record: Record, queue: Queue, first: Seen, second: Seen) -> bool:
    """Whether the topic may have been deleted between two events, whichever came first."""
    one, other = sorted((first, second), key=lambda event: event.lo)
    if {one.source, other.source} & record.jumped and (record.deletions() or record.holes):
        return True
    is_told = any(
        (gone.broker, gone.topic) == queue[:2] and gone.hi + DELETED_NS >= one.lo and not before(other, gone)
        for gone in record.deletions()
    )
    sources = {one.source, other.source}
    return is_told or not all(record.is_whole(source, one.lo - DELETED_NS, other.hi) for source in sources)


def messages(record: Record, request: Seen, *kinds: str) -> list[Seen]:
    """The messages of a pull's queue that its own source tells of."""
    own = [one for one in record.of(*kinds) if one.place == request.place and one.source == request.source]
    return [one for one in own if not deleted_between(record, request.place, one, request)]


def tags(record: Record, request: Seen) -> dict[int, set[str]]:
    """The tags that are told of each offset of a pull's queue."""
    found: dict[int, set[str]] = {}
    for kind in ("append", "message_acknowledged"):
        # What was appended is what is there, whatever its producer was told.
        known = set(found)
        for one in messages(record, request, kind):
            if one.queue_offset not in known:
                found.setdefault(one.queue_offset, set()).add(one.tag)
    return found


def told_anywhere(record: Record, request: Seen) -> set[int]:
    """The offsets of a pull's queue of which some source tells the tag."""
    return {one.queue_offset for one in record.of("append", "message_acknowledged") if one.place == request.place}


def takes(request: Seen, tag: str) -> bool:
    """Whether a pull whose subscription can decide takes a message of this tag."""
    codes = wanted(request)
    return codes is None or (not isinstance(codes, str) and java_hash(tag) in codes)


def became_visible(record: Record, request: Seen, offset: int) -> tuple[int, int] | None:
    """When this offset became visible, as far as it is told: not before the one, certainly by the other moment."""
    if seen_inside(record, request.place):
        past = [one for one in messages(record, request, "make_visible") if one.visible_end > offset]
    else:
        past = [one for one in messages(record, request, "message_acknowledged") if one.queue_offset >= offset]
    return (min(one.lo for one in past), min(one.hi for one in past)) if past else None


def certain_end(record: Record, request: Seen) -> int:
    """The visible end that was certainly there before a pull was received."""
    if seen_inside(record, request.place):
        ends = [one.visible_end for one in messages(record, request, "make_visible") if before(one, request)]
    else:
        acknowledged = messages(record, request, "message_acknowledged")
        ends = [one.queue_offset + 1 for one in acknowledged if one.hi + WAKE_NS < request.lo]
    return max(ends, default=0)


def possible_end(record: Record, request: Seen, moment: Seen) -> int | None:
    """The highest visible end that is possible by the end of an event; None for any."""
    if not seen_inside(record, request.place):
        return None
    # An end of an earlier life of the queue makes more possible, never less.
    own = [one for one in record.events if one.place == request.place and one.source == request.source]
    ends: list[int] = [one.visible_end for one in own if one.event == "make_visible" and one.lo <= moment.hi]
    shown: list[int] = [one.queue_offset for one in own if one.event in {"append", "message_acknowledged"}]
    return max([0, *ends, min(shown, default=0)])


def risen_from(record: Record, request: Seen, end: int) -> int:
    """Since when an end that is not told may have been there: ends only rise."""
    lower = [one.lo for one in messages(record, request, "make_visible") if one.visible_end < end]
    return max(lower, default=-FAR)


def unless_stopping(record: Record, request: Seen, answer: Seen, why: str) -> Iterator[Said]:
    """What is wrong with a 19, but for a broker that stops: it answers what it holds, and closes its connections."""
    if answer.cause == "stopped" or any(one.about == request.about for one in record.of("stop")):
        return
    soon = answer.hi + STOPPING_NS
    closes = [
        one
        for one in record.of("connection_closed")
        if (one.source, one.connection) == (request.source, request.connection)
        and not before(one, answer)
        and one.lo <= soon
    ]
    if request.source in record.loose:
        yield unknown(request, why)
    elif not closes or policy_says(record, "on_stop", "silent", unnamed=False):
        yield from absent(record, request, request.lo - DELETED_NS, soon, why)
    elif record.last(request.source).lo > soon:
        yield unknown(request, why)
