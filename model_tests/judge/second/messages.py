"""The contract's clauses about messages that a broker can violate, one function per clause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from attrs import frozen
from model_tests.judge.second.case import (
    KEPT_NS,
    Said,
    deleted_between,
    is_inside,
    is_other_log,
    kills,
    read_answers,
    unknown,
    violated,
)
from model_tests.judge.second.parts import MS
from model_tests.judge.second.reading import FAR, SENDS, Queue, Record, Seen, before, is_sent_back

EARLY_NS: Final = 1_000 * MS
LATE_NS: Final = 5_000 * MS
LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@frozen
class Shown:
    event: Seen
    place: Queue
    offset: int
    id: int
    body: int


def popped(record: Record) -> list[Seen]:
    """The messages that pops got from their own topic, not from the retry topic."""
    return [one for one in record.of("message_popped") if one.cause != "retry"]


def _shown(record: Record) -> list[Shown]:
    told = [*record.of("message_acknowledged"), *popped(record)]
    found = [Shown(one, one.place, one.queue_offset, (one.ids or [0])[0], (one.bodies or [-1])[0]) for one in told]
    for one in record.of("answer_sent"):
        if one.code == 0 and one.offset_min >= 0 and one.topic and one.queue >= 0:
            for nth, offset in enumerate(one.offsets):
                own = one.ids[nth] if nth < len(one.ids) else 0
                found.append(Shown(one, one.place, offset, own, one.bodies[nth] if nth < len(one.bodies) else -1))
    return found


def _are_one_broker(record: Record, one: Seen, other: Seen) -> bool:
    return one.broker == other.broker and (bool(one.broker) or one.source == other.source)


def one_value(record: Record) -> Iterator[Said]:
    for one, other in combinations(sorted(_shown(record), key=lambda each: each.event.hi), 2):
        if (one.place, one.offset) != (other.place, other.offset) or one.event is other.event:
            continue
        is_other = one.id != other.id and 0 not in {one.id, other.id}
        is_other |= one.body != other.body and -1 not in {one.body, other.body}
        if not is_other or not _are_one_broker(record, one.event, other.event):
            continue
        if is_other_log(record, one.place, one.event, other.event, in_order=True):
            continue
        may_be_lost = not is_inside(record, other.event.source) and _may_be_lost(record, one.event, other.event)
        yield (unknown if may_be_lost else violated)(other.event, f"{one.place} has two messages at {one.offset}")
    yield from _as_sent(record)


def _as_sent(record: Record) -> Iterator[Said]:
    """Messages with another body or queue than each of their sends, where no acknowledgement shows the message."""
    placed = record.of("message_acknowledged")
    told = {(one.broker or one.source, one.place, one.queue_offset) for one in placed}
    named = {(one.topic, own) for one in placed for own in one.ids[:1]}
    copies = [one for one in record.of("message_popped") if one.cause == "retry"]
    there = [one for one in _shown(record) if one.event.event != "message_acknowledged"]
    there += [Shown(one, one.place, -1, (one.ids or [0])[0], (one.bodies or [-1])[0]) for one in copies]
    for one in there:
        sends = [send for send in _sends(record, one) if one.id and send.lo <= one.event.hi]
        sends = [send for send in sends if not _is_refused(record, send)]
        bodies = {
            send.bodies[nth] if nth < len(send.bodies) else -1
            for send in sends
            for nth, own in enumerate(send.ids)
            if own == one.id
        }
        is_placed = one.offset >= 0 and (one.event.topic, one.id) not in named
        queues = {send.queue for send in sends} if is_placed else set()
        is_other = bool(bodies) and not bodies & {-1, one.body} and one.body != -1
        is_other |= bool(queues) and not queues & {-1, one.event.queue}
        if is_other and (one.event.broker or one.event.source, one.place, one.offset) not in told:
            tellers = {each.source for each in record.events if each.broker == one.event.broker}
            is_sure = is_inside(record, one.event.source) and _is_appended(record, one)
            is_sure &= min(sends, key=lambda send: send.lo).broker == one.event.broker
            is_sure &= all(record.is_whole(source, -FAR, one.event.hi) for source in tellers)
            yield (violated if is_sure else unknown)(one.event, f"{one.id} is not as it was sent")


def _may_be_lost(record: Record, first: Seen, second: Seen) -> bool:
    """Whether the broker may have been killed between two events and lost the first message."""
    tellers = {one.source for one in record.of("connection_opened")}
    if first.connection and second.connection and {first.source, second.source} <= tellers:
        old, new = min(first.hi, second.hi), max(first.hi, second.hi)
        after = [since for since, until in kills(record, first.broker) if until >= old]
        return bool(after) and after[0] <= new and old >= after[0] - KEPT_NS
    closed = [gone.hi for gone in record.of("connection_closed") if gone.line == first.line]
    ended = not first.connection or any(moment < second.hi for moment in closed)
    return ended and first.connection != second.connection


def _sends(record: Record, shown: Shown) -> list[Seen]:
    """Return each send of a message, as often as the send lists the message."""
    asked = [one for one in record.of("request_received") if one.code in SENDS and not is_sent_back(one.topic)]
    return [one for one in asked if one.topic == shown.event.topic for each in one.ids if each == shown.id]


def _ends(record: Record, shown: Shown, outcome: str) -> list[Seen]:
    asked = [one for one in record.of("request_received") if one.code == 37 and one.transaction == outcome]
    return [one for one in asked if shown.id in one.ids[:1]]


def _is_appended(record: Record, shown: Shown) -> bool:
    places = ((one.place, one.queue_offset) for one in record.of("append") if _are_one_broker(record, one, shown.event))
    return (shown.place, shown.offset) in places


def stored_once(record: Record) -> Iterator[Said]:
    for one, other in combinations(_shown(record), 2):
        same = one.id == other.id != 0 and one.event.topic == other.event.topic
        if not same or (one.event.queue, one.offset) == (other.event.queue, other.offset):
            continue
        if len(_sends(record, one)) == 1 and len(_ends(record, one, "commit")) <= 1:
            inside = is_inside(record, one.event.source) and is_inside(record, other.event.source)
            hi = max(one.event.hi, other.event.hi)
            tellers = {each.source for each in record.events if each.broker == one.event.broker}
            inside &= one.event.broker == other.event.broker
            is_sure = inside and all(record.is_whole(source, -FAR, hi) for source in tellers)
            is_sure &= _is_appended(record, one) and _is_appended(record, other)
            yield (violated if is_sure else unknown)(other.event, f"{one.id} is stored twice")


def _is_refused(record: Record, send: Seen) -> bool:
    """Whether a send got an error code after which its messages are not in the store."""
    same = [one for one in record.of("request_received", "message_acknowledged") if one.about == send.about]
    answers = [one for one in record.of("answer_sent") if one.about == send.about and one.offset_min < 0]
    codes = {2, 3, 13, 16, 17, 26, 29, 215, 501, 1500}
    return bool(send.request) and len(same) == 1 and any(one.code in codes for one in answers)


def committed(record: Record) -> Iterator[Said]:
    for one in _shown(record):
        if one.event.event == "message_acknowledged" or not one.id:
            continue
        sends = _sends(record, one)
        if not sends or any(send.transaction != "prepared" and not _is_refused(record, send) for send in sends):
            continue
        if any(each.lo <= one.event.hi for each in _ends(record, one, "commit")):
            continue
        is_back = any(before(each, one.event) for each in _ends(record, one, "rollback"))
        tellers = {each.source for each in record.events if each.broker == one.event.broker}
        # Before a delivery that no known send precedes, another send is missing from the record.
        since = sends[0].lo if sends[0].lo <= one.event.hi else -FAR
        is_whole = all(record.is_whole(source, since, one.event.hi) for source in tellers)
        is_own = is_inside(record, one.event.source) and _is_appended(record, one)
        is_sure = is_whole and (is_own or (is_back and len(sends) == 1))
        yield (violated if is_sure else unknown)(one.event, f"{one.id} is delivered uncommitted")


def early(record: Record) -> Iterator[Said]:
    for one in _shown(record):
        sends = _sends(record, one) if one.id and one.event.event != "message_acknowledged" else []
        sends = [send for send in sends if not send.transaction]
        waits = [_delay_ns(send) for send in sends]
        if not waits or min(waits) <= 0:
            continue
        due = min(send.lo + wait for send, wait in zip(sends, waits, strict=True))
        if one.event.hi < due - EARLY_NS:
            vague = one.event.source in record.loose or any(send.delay_level > 0 for send in sends)
            yield (unknown if vague else violated)(one.event, f"{one.id} is delivered early")


def _delay_ns(send: Seen) -> int:
    if send.delay_ms >= 0:
        return int(send.delay_ms) * MS
    return LEVELS_S[min(send.delay_level, len(LEVELS_S)) - 1] * 1_000 * MS if send.delay_level > 0 else 0


def _due(record: Record, send: Seen, own: int) -> int:
    """Return the time by which the message must certainly be in the queue, or `FAR` if this time is unknown."""
    alone = [one for one in record.of("request_received") if one.request and one.about == send.about] == [send]
    is_placed = any(one.about == send.about for one in record.of("message_acknowledged"))
    stored = [
        one.hi
        for one in record.of("answer_sent")
        if one.about == send.about and one.offset_min < 0 and one.code in {0, 10, 11, 12}
    ]
    if is_placed or not alone or not stored:
        return send.hi + _delay_ns(send) if _delay_ns(send) > 0 and not send.transaction else FAR
    due = stored[0] + _delay_ns(send)
    if not send.transaction:
        return due
    ends = [one for one in record.of("request_received") if (one.code, one.transaction) == (37, "commit")]
    mine = [one.hi for one in ends if one.ids[:1] == [own]]
    return max(due, *mine) if mine else FAR


def overdue(record: Record) -> Iterator[Said]:
    for one in _shown(record):
        sends = _sends(record, one) if one.id and one.event.event != "message_acknowledged" else []
        due = max((_due(record, send, one.id) for send in sends), default=FAR) + LATE_NS
        for request, answer in read_answers(record):
            is_short = answer.place == one.place and answer.offset_max <= one.offset
            is_late = due < min(request.lo, one.event.lo)
            if is_short and is_late and not deleted_between(record, one.place, request, one.event):
                yield unknown(one.event, f"{one.id} is not there long after it was due")


def lost(record: Record) -> Iterator[Said]:
    there = _shown(record)
    for send in (one for one in record.of("request_received") if one.code in SENDS and one.topic and one.broker):
        answers = [one for one in record.of("answer_sent") if one.about == send.about and one.offset_min < 0]
        if send.queue < 0 or not any(one.code in {0, 10, 11, 12} for one in answers):
            continue
        reads = [
            (pull, answer)
            for pull, answer in read_answers(record)
            if pull.place == send.place and not deleted_between(record, pull.place, pull, send)
        ]
        since = max((answer.offset_max for _pull, answer in reads if before(answer, send)), default=0)
        known = {each.offset for each in there if each.place == send.place and each.id}
        for own in send.ids:
            due = _due(record, send, own) + LATE_NS
            until = max((answer.offset_max for pull, answer in reads if pull.lo > due), default=-1)
            is_there = any((each.id, each.event.topic) == (own, send.topic) for each in there)
            if own and not is_there and until >= 0 and set(range(since, until)) <= known:
                yield unknown(send, f"{own} is nowhere")


DELIVERED: Final = "message_is_delivered"
Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    "message.one_value": (DELIVERED, one_value),
    "message.stored.once": (DELIVERED, stored_once),
    "message.committed": (DELIVERED, committed),
    "message.early": (DELIVERED, early),
    "message.overdue": (DELIVERED, overdue),
    "message.lost": (DELIVERED, lost),
}
