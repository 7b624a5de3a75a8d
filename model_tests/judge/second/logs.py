"""The contract's clauses about logs and sends, one function per clause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from model_tests.judge.second.case import (
    Said,
    absent,
    deleted_between,
    is_after_close,
    is_other_log,
    lasts_until,
    outlives,
    read_answers,
    restarted,
    seen_inside,
    unknown,
    violated,
)
from model_tests.judge.second.messages import popped
from model_tests.judge.second.parts import MS
from model_tests.judge.second.reading import FAR, SENDS, Record, Seen, before, is_sent_back
from model_tests.judge.second.waits import is_blocked

OWN_TOPICS: Final = ("%", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "TRANS_CHECK_")
SHOWN_NS: Final = 5_000 * MS
SEND_NS: Final = 10_000 * MS
RETRY_NS: Final = 3_000 * MS


def _pairs(record: Record, *kinds: str) -> Iterator[tuple[Seen, Seen]]:
    """Yield pairs of events from one source in one generation of a queue, without a broker restart between them."""
    for one, other in _of_one_log(record, *kinds):
        if not restarted(record, one.broker, one, other):
            yield one, other


def _of_one_log(record: Record, *kinds: str) -> Iterator[tuple[Seen, Seen]]:
    """Yield pairs of events from one source in one generation of a queue, even across a broker restart."""
    for one, other in combinations(record.of(*kinds), 2):
        same = (one.place, one.source) == (other.place, other.source)
        if same and not is_other_log(record, one.place, one, other):
            yield one, other


def _successive(record: Record, kind: str) -> Iterator[tuple[Seen, Seen]]:
    for one, other in _pairs(record, kind):
        if before(one, other):
            yield one, other
        if before(other, one):
            yield other, one


def _repeated(record: Record, kind: str) -> Iterator[Seen]:
    return (one for one, other in _pairs(record, kind) if one.queue_offset == other.queue_offset)


def append_once(record: Record) -> Iterator[Said]:
    for one in _repeated(record, "append"):
        yield violated(one, f"{one.place} has two messages at {one.queue_offset}")


def append_ordered(record: Record) -> Iterator[Said]:
    for first, last in _successive(record, "append"):
        if last.queue_offset < first.queue_offset:
            yield violated(first, f"{first.place} has {last.queue_offset} after {first.queue_offset}")


def append_gapless(record: Record) -> Iterator[Said]:
    for one, other in _pairs(record, "append"):
        low, high = sorted((one.queue_offset, other.queue_offset))
        between = {
            third.queue_offset
            for third in record.of("append")
            if (third.place, third.source) == (one.place, one.source) and low < third.queue_offset < high
            if not deleted_between(record, one.place, one, third)
        }
        if len(between) < high - low - 1:
            lo, hi = min(one.lo, other.lo), max(one.hi, other.hi)
            yield from absent(record, one, lo, hi, f"{one.place} has nothing between {low} and {high}")


def acknowledged_once(record: Record) -> Iterator[Said]:
    for one, other in _of_one_log(record, "message_acknowledged"):
        if one.queue_offset == other.queue_offset:
            old, new = sorted((one, other), key=lambda each: each.hi)
            is_kept = outlives(record, one.broker, old, new)
            convict = violated if is_kept else unknown
            yield convict(one, f"{one.place} has two messages acknowledged at {one.queue_offset}")


def visible_monotone(record: Record) -> Iterator[Said]:
    for first, last in _successive(record, "make_visible"):
        if last.visible_end < first.visible_end:
            yield violated(first, f"the end of {first.place} falls from {first.visible_end} to {last.visible_end}")


def visible_appended(record: Record) -> Iterator[Said]:
    for shown in record.of("make_visible"):
        if deleted_between(record, shown.place, shown, shown):
            continue
        own = [
            one
            for one in record.of("append")
            if (one.place, one.source) == (shown.place, shown.source)
            and not deleted_between(record, one.place, one, shown)
        ]
        if not own or shown.visible_end <= min(one.queue_offset for one in own):
            continue
        # A message near a deletion may belong to this generation.
        own += [
            one
            for one in record.of("append")
            if (one.place, one.source) == (shown.place, shown.source) and deleted_between(record, one.place, one, one)
        ]
        if not any(one.queue_offset == shown.visible_end - 1 and not before(shown, one) for one in own):
            lo = max((one.lo for one in own if one.queue_offset < shown.visible_end - 1), default=-FAR)
            why = f"{shown.place} is visible to {shown.visible_end}, and not appended"
            yield from absent(record, shown, lo, shown.hi, why)


# -- sends -------------------------------------------------------------------------------------------------------------


def _sends(record: Record) -> dict[tuple[str, str], Seen]:
    return {one.about: one for one in record.of("request_received") if one.code in SENDS and one.request}


def acknowledged_after_request(record: Record) -> Iterator[Said]:
    for send, one in _told_of(record):
        if before(one, send):
            yield violated(one, f"{one.request} is acknowledged before it came")


def acknowledged_same_connection(record: Record) -> Iterator[Said]:
    for send, one in _told_of(record):
        if send.connection and one.connection and send.connection != one.connection:
            yield violated(one, f"{one.request} is acknowledged on another connection")


def _told_of(record: Record) -> Iterator[tuple[Seen, Seen]]:
    """Yield each send that has a unique identifier, paired with each of its acknowledgements."""
    asked = [one for one in record.of("request_received") if one.request]
    for one in record.of("message_acknowledged"):
        mine = [request for request in asked if request.about == one.about]
        if len(mine) == 1 and mine[0].code in SENDS:
            yield mine[0], one


def acknowledged_open_connection(record: Record) -> Iterator[Said]:
    for _send, one in _told_of(record):
        if is_after_close(record, one):
            yield violated(one, f"{one.request} is acknowledged on a closed connection")


def acknowledged_only_once(record: Record) -> Iterator[Said]:
    for _send, one in _told_of(record):
        again = any(other.about == one.about and before(other, one) for other in record.of("message_acknowledged"))
        if again or any(other.about == one.about for other in record.of("answer_sent")):
            yield violated(one, f"{one.request} is answered twice")


def acknowledged_place(record: Record) -> Iterator[Said]:
    for send, one in _told_of(record):
        moved = one.topic != send.topic or send.queue not in {-1, one.queue}
        if moved and send.topic and not one.topic.startswith(OWN_TOPICS):
            yield violated(one, f"{one.request} is acknowledged elsewhere")


def acknowledged_identity(record: Record) -> Iterator[Said]:
    for send, one in _told_of(record):
        (own,), (body,) = one.ids[:1] or [0], one.bodies[:1] or [-1]
        if own == 0 or not send.ids or 0 in send.ids or one.topic.startswith(OWN_TOPICS):
            continue
        listed = [
            send.bodies[nth] if nth < len(send.bodies) else -1 for nth, each in enumerate(send.ids) if each == own
        ]
        if not listed or (body != -1 and body not in listed and -1 not in listed):
            yield violated(one, f"{one.request} is acknowledged with another message")


def send_answered(record: Record) -> Iterator[Said]:
    answered = {one.about for one in record.of("message_acknowledged", "answer_sent")}
    for one in _sends(record).values():
        due = one.hi + SEND_NS
        mine = (one.source, one.connection)
        closes = [gone for gone in record.of("connection_closed") if (gone.source, gone.connection) == mine]
        closes = [gone for gone in closes if not before(gone, one)]
        vague = any(not told.request for told in record.of("message_acknowledged") if told.source == one.source)
        goes_on = due < record.last(one.source).lo and not any(gone.lo <= due for gone in closes)
        if one.about not in answered and goes_on and not vague:
            why = f"{one.request} is never answered"
            if one.source in record.loose or is_blocked(record, one, one.lo, due):
                yield unknown(one, why)
            else:
                yield from absent(record, one, one.lo, due, why)

    for send, one in _told_of(record):
        if one.lo - send.hi > SEND_NS and not is_blocked(record, send, send.lo, one.hi):
            yield unknown(one, f"{one.request} is acknowledged late")


def send_code_known(record: Record) -> Iterator[Said]:
    asked = [one for one in record.of("request_received") if one.request]
    for one in record.of("answer_sent"):
        mine = [request for request in asked if request.about == one.about]
        is_send = len(mine) == 1 and mine[0].code in SENDS and one.offset_min < 0
        if is_send and one.code not in {0, 1, 2, 3, 10, 11, 12, 13, 14, 16, 17, 26, 29, 215, 501, 1500}:
            yield violated(one, f"{one.request} is answered {one.code}")


def batch_gapless(record: Record) -> Iterator[Said]:
    for send, one in _told_of(record):
        mine = [
            each for each in record.of("message_acknowledged") if (each.about, each.place) == (one.about, one.place)
        ]
        above = [each.queue_offset for each in mine if each.queue_offset > one.queue_offset]
        if above and min(above) > one.queue_offset + 1:
            hi = max(each.hi for each in mine)
            yield from absent(record, one, send.lo, hi, f"{one.request} is acknowledged with gaps")
        own = [each.ids[0] for each in sorted(mine, key=lambda each: each.queue_offset) if each.ids and each.ids[0]]
        listed = [send.ids.index(each) for each in own if send.ids.count(each) == 1]
        of_send = [each for each in record.of("message_acknowledged") if each.about == one.about]
        if listed != sorted(listed) or len(of_send) < len(send.ids):
            yield from absent(record, one, send.lo, one.hi, f"{one.request} is not acknowledged as it was sent")


def _appended(record: Record, one: Seen) -> list[Seen]:
    return [
        other
        for other in record.of("append")
        if (other.source, other.place, other.queue_offset) == (one.source, one.place, one.queue_offset)
    ]


def acknowledged_appended(record: Record) -> Iterator[Said]:
    writers, sends = {one.source for one in record.of("append")}, _sends(record)
    for one in record.of("message_acknowledged"):
        if one.source in writers and all(before(one, other) for other in _appended(record, one)):
            lo = sends[one.about].lo if one.about in sends else -FAR
            why = f"{one.queue_offset} of {one.place} is acknowledged and not appended"
            yield from absent(record, one, lo, one.hi, why)


def acknowledged_tag(record: Record) -> Iterator[Said]:
    for one in record.of("message_acknowledged"):
        appended = [other for other in _appended(record, one) if not deleted_between(record, one.place, one, other)]
        if appended and all(other.tag != one.tag for other in appended):
            yield violated(one, f"{one.queue_offset} of {one.place} is acknowledged with another tag")


def sequential(record: Record) -> Iterator[Said]:
    sends = {one.about: send for send, one in _told_of(record)}
    for one, other in _pairs(record, "message_acknowledged"):
        for first, last in ((one, other), (other, one)):
            send = sends.get(last.about) if first.about in sends else None
            if send is not None and before(first, send) and last.queue_offset <= first.queue_offset:
                yield violated(last, f"{last.request} was sent later and stands before {first.request}")

    told = list(_told_of(record))
    for first_send, first in told:
        for send, last in told:
            is_pair = first.source != last.source and first.place == last.place and first.broker
            if not is_pair or not before(first, send) or last.queue_offset > first.queue_offset:
                continue
            watched = record.first(last.source).lo <= first_send.lo and record.last(first.source).lo >= last.hi
            is_sure = watched and not {first.source, last.source} & record.jumped
            if is_sure and not deleted_between(record, last.place, first_send, last):
                yield violated(last, f"{last.request} was sent later and stands before {first.request}")


def shown(record: Record) -> Iterator[Said]:
    if not record.of("message_acknowledged") and all(one.code not in SENDS for one in record.of("request_received")):
        return
    for one in record.of("message_acknowledged", "append"):
        own = [end for end in record.of("make_visible") if (end.place, end.source) == (one.place, one.source)]
        due = one.hi + SHOWN_NS
        gone = [each for each in record.deletions() if (each.broker, each.topic) == one.place[:2]]
        may_be_gone = any(each.lo <= due and one.lo <= lasts_until(record, each) for each in gone)
        if not own or due >= record.last(one.source).lo or may_be_gone:
            continue
        earlier = [each for each in gone if lasts_until(record, each) < one.lo]
        own = [end for end in own if not any(before(end, each) for each in earlier)]
        if not any(end.visible_end > one.queue_offset and end.lo <= due for end in own):
            is_certain = record.is_whole(one.source, -FAR, due) and one.source not in record.loose
            convict = violated if is_certain and one.event == "message_acknowledged" else unknown
            yield convict(one, f"{one.queue_offset} of {one.place} is not shown")


def delivered_after_request(record: Record) -> Iterator[Said]:
    for send, one in _told_of(record):
        for request, answer in read_answers(record):
            same = (answer.source, request.place) == (one.source, one.place)
            told = same and one.queue_offset in answer.offsets and before(answer, send)
            if told and not deleted_between(record, one.place, answer, one):
                yield violated(request, f"{request.request} is given {one.queue_offset} before it was sent")
            shows = (answer.source, request.place) == (one.source, one.place) and before(answer, send)
            is_outside = not seen_inside(record, one.place)
            shows = shows and is_outside and answer.offset_max > one.queue_offset
            shows = shows and 0 <= answer.offset_min <= answer.offset_max
            if shows and not deleted_between(record, one.place, request, one):
                yield violated(one, f"{request.request} is told an end past {one.queue_offset} before it was sent")
        for got in popped(record):
            is_past = got.queue_offset > one.queue_offset and not seen_inside(record, one.place)
            same = (got.source, got.place) == (one.source, one.place)
            same &= is_past or got.queue_offset == one.queue_offset
            if same and before(got, send) and not deleted_between(record, one.place, got, one):
                yield violated(got, f"{got.request} is given {one.queue_offset} or more before it was sent")
    for one in [*record.of("answer_sent"), *popped(record)]:
        if one.event == "message_popped" or (one.code == 0 and one.offset_min >= 0):
            yield from _delivered_by_id(record, one)


def _delivered_by_id(record: Record, answer: Seen) -> Iterator[Said]:
    """Check `send.delivered.after_request` by message id, for messages whose offset was not acknowledged."""
    opened = [one.line for one in record.of("connection_opened")]
    sends = [one for one in record.of("request_received") if one.code in SENDS and not is_sent_back(one.topic)]
    told = {(one.source, one.place, one.queue_offset) for one in record.of("message_acknowledged")}
    for offset, own in zip(answer.offsets or [answer.queue_offset], answer.ids, strict=False):
        mine = [one for one in sends if own in one.ids and (one.source, one.topic) == (answer.source, answer.topic)]
        if not own or not mine or (answer.source, answer.place, offset) in told:
            continue
        first, begun = min(mine, key=lambda one: one.lo), record.first(answer.source)
        if before(answer, first):
            is_sure = first.connection and first.line in opened and first.lo > begun.lo + RETRY_NS
            is_sure &= record.is_whole(answer.source, begun.lo, answer.hi)
            yield (violated if is_sure else unknown)(answer, f"{own} is delivered before it was sent")


ORDER, VISIBLE, KEPT = "offsets_in_order", "visible_is_monotone", "send_is_kept"
Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    "log.append.once": (ORDER, append_once),
    "log.append.ordered": (ORDER, append_ordered),
    "log.append.gapless": (ORDER, append_gapless),
    "log.acknowledged.once": (ORDER, acknowledged_once),
    "log.visible.monotone": (VISIBLE, visible_monotone),
    "log.visible.appended": (VISIBLE, visible_appended),
    "send.acknowledged.after_request": (KEPT, acknowledged_after_request),
    "send.acknowledged.same_connection": (KEPT, acknowledged_same_connection),
    "send.acknowledged.open_connection": (KEPT, acknowledged_open_connection),
    "send.acknowledged.once": (KEPT, acknowledged_only_once),
    "send.acknowledged.place": (KEPT, acknowledged_place),
    "send.acknowledged.identity": (KEPT, acknowledged_identity),
    "send.answered": (KEPT, send_answered),
    "send.code.known": (KEPT, send_code_known),
    "send.batch.gapless": (KEPT, batch_gapless),
    "send.acknowledged.appended": (KEPT, acknowledged_appended),
    "send.acknowledged.tag": (KEPT, acknowledged_tag),
    "send.shown": (KEPT, shown),
    "send.sequential": (KEPT, sequential),
    "send.delivered.after_request": (KEPT, delivered_after_request),
}
