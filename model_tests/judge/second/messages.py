"""The contract's clauses about messages that can be broken, each a function of its id; observations weigh nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from attrs import frozen
from model_tests.judge.second.case import Said, is_inside, is_other_log, unknown, violated
from model_tests.judge.second.parts import MS
from model_tests.judge.second.reading import FAR, SENDS, Queue, Record, Seen, before

EARLY_NS: Final = 1_000 * MS
LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@frozen
class Shown:
    """One message that an event tells."""

    event: Seen
    place: Queue
    offset: int
    id: int
    body: int


def _shown(record: Record) -> list[Shown]:
    """Every acknowledged message and every delivered one."""
    told = record.of("message_acknowledged")
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
    """message.one_value."""
    for one, other in combinations(sorted(_shown(record), key=lambda each: each.event.hi), 2):
        if (one.place, one.offset) != (other.place, other.offset) or one.event is other.event:
            continue
        is_other = one.id != other.id and 0 not in {one.id, other.id}
        is_other |= one.body != other.body and -1 not in {one.body, other.body}
        if not is_other or not _are_one_broker(record, one.event, other.event):
            continue
        if is_other_log(record, one.place, one.event, other.event):
            continue
        first, second = one.event, other.event
        closed = [
            gone.hi
            for gone in record.of("connection_closed")
            if (gone.source, gone.connection) == (first.source, first.connection)
        ]
        ended = not first.connection or any(moment < second.hi for moment in closed)
        may_have_ended = ended and first.connection != second.connection and not is_inside(record, second.source)
        yield (unknown if may_have_ended else violated)(second, f"{one.place} has two messages at {one.offset}")


def _sends(record: Record, shown: Shown) -> list[Seen]:
    """The sends of a message, once for each time that they name it."""
    asked = [one for one in record.of("request_received") if one.code in SENDS]
    return [one for one in asked if one.topic == shown.event.topic for each in one.ids if each == shown.id]


def _ends(record: Record, shown: Shown, outcome: str) -> list[Seen]:
    asked = [one for one in record.of("request_received") if one.code == 37 and one.transaction == outcome]
    return [one for one in asked if shown.id in one.ids[:1]]


def _is_appended(record: Record, shown: Shown) -> bool:
    places = ((one.place, one.queue_offset) for one in record.of("append") if _are_one_broker(record, one, shown.event))
    return (shown.place, shown.offset) in places


def stored_once(record: Record) -> Iterator[Said]:
    """message.stored.once."""
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
    """Whether a send was answered with a code after which its messages are not in the store."""
    same = [one for one in record.of("request_received", "message_acknowledged") if one.about == send.about]
    answers = [one for one in record.of("answer_sent") if one.about == send.about and one.offset_min < 0]
    codes = {2, 3, 13, 16, 17, 26, 29, 215, 501, 1500}
    return bool(send.request) and len(same) == 1 and any(one.code in codes for one in answers)


def committed(record: Record) -> Iterator[Said]:
    """message.committed."""
    for one in _shown(record):
        if one.event.event != "answer_sent" or not one.id:
            continue
        sends = _sends(record, one)
        if not sends or any(send.transaction != "prepared" and not _is_refused(record, send) for send in sends):
            continue
        if any(each.lo <= one.event.hi for each in _ends(record, one, "commit")):
            continue
        is_back = any(before(each, one.event) for each in _ends(record, one, "rollback"))
        tellers = {each.source for each in record.events if each.broker == one.event.broker}
        is_whole = all(record.is_whole(source, sends[0].lo, one.event.hi) for source in tellers)
        is_own = is_inside(record, one.event.source) and _is_appended(record, one)
        is_sure = is_whole and (is_own or (is_back and len(sends) == 1))
        yield (violated if is_sure else unknown)(one.event, f"{one.id} is delivered uncommitted")


def early(record: Record) -> Iterator[Said]:
    """message.early."""
    for one in _shown(record):
        sends = _sends(record, one) if one.id and one.event.event == "answer_sent" else []
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


DELIVERED: Final = "message_is_delivered"
Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    "message.one_value": (DELIVERED, one_value),
    "message.stored.once": (DELIVERED, stored_once),
    "message.committed": (DELIVERED, committed),
    "message.early": (DELIVERED, early),
}
