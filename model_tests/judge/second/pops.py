"""The contract's clauses about pops, one function per clause, over plain lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from attrs import frozen
from model_tests.judge.second.case import Said, deleted_between, first_answers, unknown, violated
from model_tests.judge.second.parts import MS, java_hash
from model_tests.judge.second.reading import FAR, LATE_NS, RESETS, WAKE_NS, Record, Seen, wanted
from model_tests.judge.second.waits import is_blocked, open_until

POP, NOTIFICATION, ACK, CHANGE = 200_050, 200_054, 200_051, 200_053
CODES: Final = (POP, NOTIFICATION, ACK, CHANGE)
KNOWN: Final = {0, 1, 2, 3, 13, 16, 17, *range(23, 30), 208, 209, 210, 215, 501, 1500}
SLOW_NS: Final = 2_000 * MS
EARLY_NS: Final = 60 * MS
STOPPING_NS: Final = 5_000 * MS
ACK_NS: Final = 1_000 * MS
AGAIN_NS: Final = 30_000 * MS
AGAIN_MOST: Final = 16


@frozen
class Asked:
    request: Seen
    answer: Seen | None
    got: tuple[Seen, ...]

    @property
    def code(self) -> int:
        return -1 if self.answer is None else int(self.answer.code)

    @property
    def is_held(self) -> bool:
        """Whether the request may be held until a message comes. An ordered pop may wait for another reason."""
        return (
            bool(self.request.may_hold) and self.request.cause != "orderly" and self.request.code in {POP, NOTIFICATION}
        )

    @property
    def due(self) -> int:
        """How long the request may be held, in nanoseconds."""
        return int(max(self.request.timeout_ms, 0)) * MS

    @property
    def scope(self) -> tuple[str, str, str]:
        return self.request.broker, self.request.topic, self.request.group


def asked(record: Record, *codes: int) -> list[Asked]:
    answers, got = first_answers(record), defaultdict[tuple[str, str], list[Seen]](list)
    for one in record.of("message_popped"):
        if all(place_of(one) != place_of(each) for each in got[one.about]):
            got[one.about].append(one)
    requests = record.of("request_received")
    counts = defaultdict[tuple[str, str], int](int)
    for one in requests:
        counts[one.about] += 1
    return [
        Asked(one, answers.get(one.about), tuple(got[one.about]))
        for one in requests
        if one.code in codes
        and one.request
        and counts[one.about] == 1
        and not is_elsewhere(one, answers.get(one.about))
    ]


def is_elsewhere(request: Seen, answer: Seen | None) -> bool:
    if answer is None:
        return False
    pairs = (answer.broker, request.broker), (answer.topic, request.topic)
    is_other = any(own and other and own != other for own, other in pairs)
    return is_other or (answer.queue >= 0 and answer.queue != request.queue)


def place_of(one: Seen) -> tuple[str, int, int, bool]:
    return one.topic, one.queue, one.queue_offset, one.cause == "retry"


def judged(record: Record, one: Asked, hi: int, why: str, *, is_measured: bool = True) -> Iterator[Said]:
    request = one.request
    is_sure = record.is_whole(request.source, request.lo, hi) and not is_blocked(record, request, request.lo, hi)
    is_sure &= not is_measured or request.source not in record.loose
    yield (violated if is_sure else unknown)(request, why)


def end_of(record: Record, one: Asked) -> tuple[int, int]:
    """The time until which a request certainly waited, and the latest possible time of its answer."""
    if one.answer is not None:
        return one.answer.lo, one.answer.hi
    last = open_until(record, one.request).lo
    return last, last


def code_known(record: Record) -> Iterator[Said]:
    return (
        violated(one.request, f"{one.code}") for one in asked(record, *CODES) if one.answer and one.code not in KNOWN
    )


def found_some(record: Record) -> Iterator[Said]:
    for one in asked(record, POP):
        if one.code == 0 and not one.got:
            yield from judged(record, one, end_of(record, one)[1], "no message", is_measured=False)


def found_at_most(record: Record) -> Iterator[Said]:
    for one in asked(record, POP):
        if one.code == 0 and one.request.count_max >= 0 and len(one.got) > max(one.request.count_max, 1):
            yield violated(one.request, f"{len(one.got)} messages")


def found_once(record: Record) -> Iterator[Said]:
    for one in asked(record, POP):
        mine = [each for each in record.of("message_popped") if each.about == one.request.about]
        places = [place_of(each) for each in mine if each.cause != "retry"]
        answers = [each for each in record.of("answer_sent") if each.about == one.request.about]
        if len(answers) == 1 and len({*places}) < len(places):
            yield from judged(record, one, end_of(record, one)[1], "a message twice", is_measured=False)


def is_other(one: Asked, message: Seen) -> bool:
    is_elsewhere = message.cause != "retry" and one.request.queue >= 0 and message.queue != one.request.queue
    return bool(message.topic != one.request.topic or is_elsewhere)


def found_asked(record: Record) -> Iterator[Said]:
    return (
        violated(message, "elsewhere") for one in asked(record, POP) for message in one.got if is_other(one, message)
    )


def takes(request: Seen, message: Seen) -> bool | None:
    """Whether a subscription accepts a message; None if tags do not decide."""
    tags = wanted(request)
    return None if isinstance(tags, str) else tags is None or java_hash(message.tag) in tags


def found_tag(record: Record) -> Iterator[Said]:
    for one in asked(record, POP):
        for message in one.got:
            if message.cause != "retry" and not is_other(one, message) and takes(one.request, message) is False:
                yield violated(message, message.tag)


Delivery = tuple[Asked, Seen]


def histories(record: Record) -> dict[tuple[tuple[str, str, str], int], list[Delivery]]:
    """Map (scope, message) to the message's deliveries in order. Messages whose id was sent twice are left out."""
    found = defaultdict[tuple[tuple[str, str, str], int], list[Delivery]](list)
    for one in asked(record, POP):
        for message in one.got if one.answer is not None and one.request.cause != "orderly" else ():
            if message.topic == one.request.topic and len(message.ids) == 1 and message.ids[0]:
                found[one.scope, message.ids[0]].append((one, message))
    for key, several in list(found.items()):
        if len({place_of(message) for _one, message in several if message.cause != "retry"}) > 1:
            del found[key]
        else:
            several.sort(key=lambda one: (one[0].answer.lo, one[0].answer.hi) if one[0].answer else (0, 0))
    return found


def wake_prompt(record: Record) -> Iterator[Said]:
    stored = {
        (one.broker, one.topic, one.queue, one.queue_offset, *one.ids): one
        for one in reversed(record.of("message_acknowledged"))
    }
    there = []
    for (scope, number), several in histories(record).items():
        first, message = several[0]
        told = stored.get((scope[0], scope[1], message.queue, message.queue_offset, number))
        if message.cause != "retry" and told is not None and first.answer is not None:
            there.append((scope, message, told.hi, first.answer.lo))
    for one in asked(record, POP, NOTIFICATION):
        until, latest = end_of(record, one)
        for scope, message, since, gone in there if one.is_held else ():
            is_its = scope == one.scope and one.request.queue in {-1, message.queue} and takes(one.request, message)
            limit = WAKE_NS if since >= one.request.lo - WAKE_NS else SLOW_NS
            if is_its and min(until, gone) - max(one.request.hi, since) > limit:
                yield from judged(record, one, latest, f"message {message.queue}/{message.queue_offset} was there")


def deadline_met(record: Record) -> Iterator[Said]:
    for one in asked(record, POP, NOTIFICATION):
        if one.is_held and one.answer is not None and one.answer.lo - one.request.hi - one.due > LATE_NS:
            yield from judged(record, one, one.answer.hi, "late")


def answered(record: Record) -> Iterator[Said]:
    for one in asked(record, *CODES):
        until, latest = end_of(record, one)
        grace = one.due if one.is_held else SLOW_NS
        is_told = one.request.may_hold is not None or one.request.code in {ACK, CHANGE}
        is_judged = one.answer is None and is_told and one.request.cause != "orderly"
        if is_judged and until - one.request.hi - grace > LATE_NS:
            yield from judged(record, one, latest, "never answered")


def not_early(record: Record) -> Iterator[Said]:
    for one in asked(record, POP, NOTIFICATION):
        if one.answer is None or not one.is_held:
            continue
        is_empty = one.code == 210 if one.request.code == POP else (one.code == 0 and one.answer.cause == "expired")
        if is_empty and one.answer.hi + EARLY_NS < one.request.lo + one.due:
            closes = [
                close.lo
                for close in record.of("connection_closed")
                if close.line == one.request.line and close.hi >= one.answer.lo
            ]
            if closes and min(closes) - one.answer.hi < STOPPING_NS:
                yield unknown(one.request, "the broker may have stopped")
            else:
                yield from judged(record, one, one.answer.hi, "early")


def about(record: Record, code: int, one: Asked, message: Seen) -> list[Asked]:
    return [
        each for each in asked(record, code) if each.scope == one.scope and place_of(each.request) == place_of(message)
    ]


def is_unsure(record: Record, first: Seen, last: Seen) -> bool:
    is_whole = all(record.is_whole(each, first.lo, last.hi) for each in {one.source for one in record.events})
    moved = any(
        one.code in RESETS and one.hi >= first.lo and one.lo <= last.hi for one in record.of("request_received")
    )
    return not is_whole or moved or deleted_between(record, first.place, first, last)


def hidden_until(record: Record, one: Asked, message: Seen, by: int, since: int) -> int:
    """Return the earliest end of a delivery's invisible time, counting changes that may have come before `by`."""
    sends = [
        each.lo for each in record.of("request_received") if each.code in {10, 310, 320} and message.ids[0] in each.ids
    ]
    end: int = max([one.request.lo, since, *sorted(sends)[:1]]) + max(message.delay_ms, 0) * MS
    changes = about(record, CHANGE, one, message)
    for change in changes:
        if change.request.lo > by:
            continue
        own = change.request.lo + max(change.request.delay_ms, 0) * MS
        is_certain = len(changes) == 1 and change.code == 0 and change.answer is not None and change.answer.hi < end
        end = own if is_certain else min(end, own)
    return end


def pairs(record: Record) -> Iterator[tuple[Delivery, Delivery, int]]:
    """Yield successive deliveries of a message, and the earliest end of the first delivery's invisible time."""
    for several in histories(record).values():
        since, first = -FAR, several[0][0].request
        for one, other in pairwise(several):
            assert one[0].answer is not None
            assert other[0].answer is not None
            # A copy that comes again was hidden by the delivery before it.
            is_hidden = place_of(one[1]) == place_of(other[1]) and not is_unsure(record, first, one[0].answer)
            end = hidden_until(record, *one, other[0].answer.hi, since if is_hidden else -FAR)
            is_right = other[0].answer.hi >= end and not acknowledged_before(record, one, other[0], end)
            since, first = end if is_right else -FAR, one[0].request
            yield one, other, end


def acknowledged_before(record: Record, one: Delivery, other: Asked, end: int) -> bool:
    if about(record, CHANGE, *one) or other.answer is None:
        return False
    return any(
        ack.code == 0 and ack.answer is not None and ack.answer.hi + ACK_NS < end and other.answer.lo > ack.answer.hi
        for ack in about(record, ACK, *one)
    )


def said_of(record: Record, one: Asked, other: Asked, why: str) -> Iterator[Said]:
    assert other.answer is not None
    if is_unsure(record, one.request, other.answer):
        yield unknown(other.request, why)
    else:
        yield from judged(record, other, other.answer.hi, why)


def invisible_kept(record: Record) -> Iterator[Said]:
    for one, (other, _message), end in pairs(record):
        is_early = other.answer is not None and other.answer.hi < end
        if is_early and not acknowledged_before(record, one, other, end):
            yield from said_of(record, one[0], other, "again too early")


def acknowledged_final(record: Record) -> Iterator[Said]:
    for one, (other, _message), end in pairs(record):
        if acknowledged_before(record, one, other, end):
            yield from said_of(record, one[0], other, "again after its acknowledgement")


def delivered_again(record: Record) -> Iterator[Said]:
    empty = [one for one in asked(record, POP) if one.code == 210 and one.request.cause != "orderly"]
    for (scope, _number), several in histories(record).items():
        last, message = several[-1]
        changes = about(record, CHANGE, last, message)
        if (
            len(several) >= AGAIN_MOST
            or any(about(record, ACK, *each) for each in several)
            or any(change.answer is None for change in changes)
            or last.answer is None
        ):
            continue
        ends = [each.answer.hi + max(each.request.delay_ms, 0) * MS for each in changes if each.answer is not None]
        due = max([last.answer.hi + max(message.delay_ms, 0) * MS, *ends]) + AGAIN_NS + WAKE_NS
        for one in empty:
            is_its = (
                one.scope == scope and wanted(one.request) is None and one.answer is not None and one.answer.lo > due
            )
            if is_its and one.answer is not None and not is_unsure(record, last.request, one.answer):
                yield unknown(message, "not delivered again")
                break


PROPERTY: Final = "pop_is_kept"
CLAUSES: Final[dict[str, tuple[str, Callable[[Record], Iterator[Said]]]]] = {
    "pop.code.known": (PROPERTY, code_known),
    "pop.found.some": (PROPERTY, found_some),
    "pop.found.at_most": (PROPERTY, found_at_most),
    "pop.found.once": (PROPERTY, found_once),
    "pop.found.asked": (PROPERTY, found_asked),
    "pop.found.tag": (PROPERTY, found_tag),
    "pop.wake.prompt": (PROPERTY, wake_prompt),
    "pop.deadline.met": (PROPERTY, deadline_met),
    "pop.answered": (PROPERTY, answered),
    "pop.hold.not_early": (PROPERTY, not_early),
    "pop.invisible.kept": (PROPERTY, invisible_kept),
    "pop.acknowledged.final": (PROPERTY, acknowledged_final),
    "pop.delivered.again": (PROPERTY, delivered_again),
}
TIMELESS: Final = (
    "pop.code.known",
    "pop.found.some",
    "pop.found.at_most",
    "pop.found.once",
    "pop.found.asked",
    "pop.found.tag",
)
