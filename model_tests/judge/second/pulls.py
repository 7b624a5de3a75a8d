"""The contract's clauses about the contents of answers to pulls, one function per clause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from model_tests.judge.second.case import (
    Exchange,
    Said,
    became_visible,
    begun_anew,
    certain_end,
    deleted_between,
    exchanges,
    first_known,
    has_rolled,
    is_after_close,
    is_inside,
    is_own,
    lasts_until,
    left_to,
    may_be_sent_away,
    may_follow,
    messages,
    possible_end,
    read_answers,
    seen_inside,
    tags,
    takes,
    told_to_stop,
    unknown,
    unless_stopping,
    unrecorded,
    violated,
)
from model_tests.judge.second.parts import MS
from model_tests.judge.second.reading import WAKE_NS, Record, Seen, before, wanted

UNREMOVED_NS: Final = 1_000 * MS
REFUSALS: Final = (1, 2, 3, 16, 17, 23, 24, 25, 26, 27, 28, 29, 215, 501, 1500)


def has_unknown_tag(record: Record, one: Exchange) -> bool:
    if one.code not in {0, 20} or wanted(one.request) is None or one.answer is None:
        return False
    if deleted_between(record, one.request.place, one.request, one.answer):
        return False
    told = {seen.queue_offset for seen in messages(record, one.request, "append", "message_acknowledged")}
    passed = {*range(max(one.request.offset, 0), min(one.answer.offset_next, one.request.offset + 1000))}
    return any(offset not in told for offset in passed | set(one.answer.offsets))


def code_known(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        if one.answer is not None and one.code not in {0, 19, 20, 21, *REFUSALS}:
            yield violated(one.request, f"{one.name} is answered {one.code}")


def error_explained(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        shown = any(other.place == one.request.place for other in record.of("append", "message_acknowledged"))
        if one.code == 1 and shown and wanted(one.request) != "undecidable" and one.request.count_max >= 0:
            yield unknown(one.request, f"{one.name} is answered SYSTEM_ERROR")


def _answers(record: Record) -> list[Seen]:
    return [one for one in record.of("answer_sent") if not one.is_nobodys]


def after_request(record: Record) -> Iterator[Said]:
    # If an identifier occurs twice, the first request counts.
    asked = {one.about: one for one in reversed(record.of("request_received")) if one.request}
    for one in _answers(record):
        if one.about in asked and one.place == asked[one.about].place and before(one, asked[one.about]):
            yield violated(one, f"{one.request} is answered before it came")


def once(record: Record) -> Iterator[Said]:
    told = Counter(one.about for one in record.of("request_received"))
    # If answers name different queues, it is unknown which of these queues belongs to the request.
    seen: set[object] = set()
    for one in _answers(record):
        if (one.about, one.place) in seen and told[one.about] <= 1:
            convict = violated if told[one.about] else unknown
            yield convict(one, f"{one.request} has several answers")
        seen.add((one.about, one.place))


def same_connection(record: Record) -> Iterator[Said]:
    asked = {one.about: one for one in record.of("request_received") if one.request}
    told = Counter(one.about for one in record.of("request_received"))
    for one in _answers(record):
        request = asked.get(one.about) if told[one.about] == 1 else None
        if request is None or request.place != one.place or not (one.connection and request.connection):
            continue
        if one.connection != request.connection:
            yield violated(one, f"{one.request} is answered on another connection")


def open_connection(record: Record) -> Iterator[Said]:
    told = Counter(one.about for one in record.of("request_received"))
    for one in _answers(record):
        if told[one.about] <= 1 and is_after_close(record, one):
            yield violated(one, f"{one.request} is answered on a closed connection")


def found_some(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code == 0 and not answer.offsets:
            yield violated(request, f"{request.request} is told FOUND and given nothing")


def none_empty(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code != 0 and answer.offsets:
            yield violated(request, f"{request.request} is given messages with {answer.code}")


def found_ordered(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if any(later <= earlier for earlier, later in pairwise(answer.offsets)):
            yield violated(request, f"{request.request} is given messages out of order")


def found_from_asked(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if any(offset < request.offset for offset in answer.offsets):
            yield violated(request, f"{request.request} is given what it did not ask for")


def found_at_most(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code == 0 and len(answer.offsets) > max(request.count_max, 1):
            yield violated(request, f"{request.request} is given too many messages")


def found_visible(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        end = possible_end(record, request, answer)
        if end is not None and any(offset >= end for offset in answer.offsets):
            why = f"{request.request} is given what was not visible"
            yield from unrecorded(record, request, answer.hi, why)


def found_appended(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        shown = {one.queue_offset for one in left_to(record, request, "append", "message_acknowledged")}
        base = first_known(record, request)
        missing = [offset for offset in answer.offsets if offset >= base and offset not in shown]
        is_sure = seen_inside(record, request.place) and not deleted_between(record, request.place, request, answer)
        if missing and is_sure:
            why = f"{request.request} is given {missing}, which nobody appended"
            yield from unrecorded(record, request, answer.hi, why)


def found_tag(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if isinstance(wanted(request), str):
            continue
        told = tags(record, request)
        for offset in answer.offsets:
            if offset in told and not any(takes(request, tag) for tag in told[offset]):
                yield violated(request, f"{request.request} is given {offset}, whose tag it does not want")


def found_identified(record: Record) -> Iterator[Said]:
    for one in record.of("answer_sent"):
        lists = (one.ids, one.bodies) if one.code == 0 and one.offset_min >= 0 else ()
        if any(told and len(told) != len(one.offsets) for told in lists):
            yield violated(one, f"{one.request} is given messages of which some have no identity")


def found_next(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code != 0 or not answer.offsets:
            continue
        last = answer.offsets[-1]
        is_full = len(answer.offsets) == max(request.count_max, 1) or wanted(request) is None
        if answer.offset_next <= last or (is_full and answer.offset_next != last + 1):
            yield violated(request, f"{request.request} is sent on to {answer.offset_next} after {last}")


def found_complete(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code != 0 or isinstance(wanted(request), str):
            continue
        passed = {o: t for o, t in tags(record, request).items() if request.offset <= o < answer.offset_next}
        wants = [offset for offset, told in passed.items() if all(takes(request, tag) for tag in told)]
        if wanted(request) is None:
            wants = list(range(request.offset, min(answer.offset_next, request.offset + 10_000)))
        if len(wants) <= len(answer.offsets):
            continue
        first = min(answer.offsets, default=answer.offset_next)
        later = [offset for offset in wants if offset >= first]
        why = f"{request.request} is not given all that it passes over"
        yield from unless_removed(record, (request, answer), first, why, len(later) <= len(answer.offsets))


def unless_removed(record: Record, read: tuple[Seen, Seen], end: int, why: str, at_front: bool) -> Iterator[Said]:
    """Report skipped messages as a violation, or as unknown if retention may have removed the messages."""
    request, answer = read
    if is_own(record) or not at_front:
        yield violated(request, why)
        return
    lowest = [told.offset_min for asked, told in read_answers(record) if asked.place == request.place]
    known = [
        offset
        for offset, told in tags(record, request).items()
        if request.offset <= offset < end and all(takes(request, tag) for tag in told)
    ]
    visible = became_visible(record, request, max(known)) if known else None
    is_young = visible is not None and visible[0] > answer.hi - UNREMOVED_NS
    if max(lowest, default=0) < end:
        yield violated(request, why) if is_young else unknown(request, why)


def found_within(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code in {0, 20} and not answer.offset_min <= request.offset < answer.offset_max:
            convict = unknown if may_be_sent_away(record, request, answer) else violated
            yield convict(request, f"{request.request} is told {answer.code} outside of the bounds")


def found_above_min(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if any(offset < answer.offset_min for offset in answer.offsets):
            yield violated(request, f"{request.request} is given what lies below offset_min")


def next_visible(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        end = possible_end(record, request, answer)
        if answer.code in {0, 20} and end is not None and answer.offset_next > end:
            why = f"{request.request} is sent past what was visible"
            yield from unrecorded(record, request, answer.hi, why)


def next_within(record: Record) -> Iterator[Said]:
    if not is_own(record):
        return
    for request, answer in read_answers(record):
        if answer.code in {0, 20} and answer.offset_next > answer.offset_max:
            yield violated(request, f"{request.request} is sent past offset_max")


def none_true(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code != 19 or isinstance(wanted(request), str):
            continue
        stopping = told_to_stop(record, request, answer)
        if stopping == "yes":
            continue
        inside, end = seen_inside(record, request.place), certain_end(record, request)
        wants_all = inside and wanted(request) is None and request.offset < end
        known = tags(record, request).items()
        denied = [o for o, told in known if request.offset <= o < end and all(takes(request, tag) for tag in told)]
        if wants_all or denied:
            is_measured = request.source in record.loose and not inside
            is_doubtful = is_measured or stopping == "perhaps" or may_follow(record, request)
            is_doubtful = is_doubtful or has_rolled(record, request, answer)
            convict = unknown if is_doubtful else violated
            yield convict(request, f"{request.request} is denied what was visible to {end}")


def none_next(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code == 19 and answer.offset_next != request.offset:
            convict = unknown if has_rolled(record, request, answer) else violated
            yield convict(request, f"{request.request} is told 19 and moved to {answer.offset_next}")


def none_at_end(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code == 19 and answer.offset_max != request.offset:
            why = f"{request.request} is told 19 at {request.offset} of {answer.offset_max}"
            yield from unless_stopping(record, request, answer, why)


def passed_next(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code == 20 and answer.offset_next <= request.offset:
            convict = unknown if may_be_sent_away(record, request, answer) else violated
            yield convict(request, f"{request.request} passes over nothing")


def passed_none_match(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code != 20 or isinstance(wanted(request), str):
            continue
        for offset, told in tags(record, request).items():
            if request.offset <= offset < answer.offset_next and all(takes(request, tag) for tag in told):
                why = f"{request.request} passes over {offset}, which it wants"
                yield from unless_removed(record, (request, answer), answer.offset_next, why, at_front=True)


def illegal_outside(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        inside = answer.offset_min <= request.offset <= answer.offset_max
        if answer.code == 21 and inside:
            # The broker may have reset the group's offset.
            convict = violated if is_own(record) or is_inside(record, request.source) else unknown
            yield convict(request, f"{request.request} is told 21 within its bounds")


def illegal_next(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.code != 21:
            continue
        allowed = {answer.offset_min} if request.offset < answer.offset_min else {answer.offset_max}
        if request.offset < 0:
            allowed.add(answer.offset_max)
        if answer.offset_min == 0:
            allowed.add(0)
        if answer.offset_next not in allowed:
            convict = violated if is_own(record) or is_inside(record, request.source) else unknown
            yield convict(request, f"{request.request} is told 21 and sent to {answer.offset_next}")


def min_below_max(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.offset_min > answer.offset_max or answer.offset_min < 0:
            yield violated(request, f"{request.request} is told bounds that cross")


def _successive(record: Record) -> Iterator[tuple[Seen, Seen, Seen]]:
    """Yield (earlier answer, later answer, later request) about a queue in one run of its broker.

    The second answer was certainly read after the first.
    """
    told = [pair for pair in read_answers(record) if pair[1].connection]
    lives = _lives_of_connections(record)
    for asked, earlier in told:
        for request, later in told:
            if asked.place != request.place or not before(earlier, request):
                continue
            one, other = ((each.source, each.connection) for each in (earlier, later))
            same = one == other or any(one in life and other in life for life in lives)
            if same and not deleted_between(record, request.place, asked, later):
                yield earlier, later, request


def _lives_of_connections(record: Record) -> list[set[tuple[str, str]]]:
    """Group connections by runs of a broker. Connections that overlap, directly or through others, share a run."""
    spans: dict[tuple[str, str], list[int]] = {}
    brokers: dict[tuple[str, str], str] = {}
    for _asked, answer in read_answers(record):
        name = answer.source, answer.connection
        span = spans.setdefault(name, [answer.hi, answer.lo])
        span[:] = [min(span[0], answer.hi), max(span[1], answer.lo)]
        is_shared = answer.broker and not {one.source for one in record.events if one.broker == answer.broker} & (
            record.jumped
        )
        brokers[name] = answer.broker if is_shared else f"{answer.source} of {answer.broker}"
    for one in record.of("connection_opened"):
        name = one.source, one.connection
        if name in spans:
            spans[name][0] = min(spans[name][0], one.hi)
    for gone in record.of("connection_closed"):
        name = gone.source, gone.connection
        if name in spans and gone.hi < spans[name][1]:
            del spans[name]
    found: list[set[tuple[str, str]]] = [{name} for name, (lo, hi) in spans.items() if lo < hi]
    for own, (lo, hi) in spans.items():
        for other, (begin, end) in spans.items():
            if lo < hi and begin < end and lo < end and begin < hi and brokers[own] == brokers[other]:
                joined = [life for life in found if own in life or other in life]
                found = [life for life in found if life not in joined] + [set().union(*joined)]
    return found


def min_never_falls(record: Record) -> Iterator[Said]:
    for earlier, later, request in _successive(record):
        if later.offset_min < earlier.offset_min:
            yield violated(request, f"{request.request} is told a lower offset_min than before")
    for request, answer in read_answers(record):
        if seen_inside(record, request.place) or not request.broker:
            continue
        for asked, told in read_answers(record):
            is_lower = asked.place == request.place and answer.offset_min < told.offset_min
            if is_lower and before(told, request) and not _deleted(record, told, answer):
                yield unknown(request, f"{request.request} is told a lower offset_min, perhaps of another life")


def _shown_end(answer: Seen) -> int:
    """Return the highest end that an answer shows, because messages it delivers or skips were visible."""
    ends = [int(offset) + 1 for offset in answer.offsets] if answer.code == 0 else []
    return max([int(answer.offset_max), *ends, *([int(answer.offset_next)] if answer.code in {0, 20} else [])])


def max_never_falls(record: Record) -> Iterator[Said]:
    for earlier, later, request in _successive(record):
        if later.offset_max < _shown_end(earlier) and not seen_inside(record, request.place):
            yield violated(request, f"{request.request} is told a lower offset_max than before")
    for request, answer in read_answers(record):
        if seen_inside(record, request.place) or not request.broker:
            continue
        shown = [(told, _shown_end(told)) for asked, told in read_answers(record) if asked.place == request.place]
        shown += [
            (one, one.queue_offset + 1) for one in record.of("message_acknowledged") if one.place == request.place
        ]
        for one, end in shown:
            if one.hi + WAKE_NS < request.lo and answer.offset_max < end and not _deleted(record, one, answer):
                yield unknown(request, f"{request.request} is told a lower offset_max, perhaps of another life")


def _deleted(record: Record, one: Seen, other: Seen) -> bool:
    told = [
        (gone.lo, lasts_until(record, gone))
        for gone in record.deletions()
        if (gone.broker, gone.topic) == one.place[:2]
    ]
    told += [(lo, hi) for place, lo, hi in begun_anew(record) if place == one.place]
    return any(lo <= other.hi and one.lo <= hi for lo, hi in told)


def min_kept(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record) if not is_own(record) else ():
        for one in record.of("message_acknowledged"):
            is_gone = one.place == request.place and one.queue_offset < answer.offset_min
            if is_gone and one.lo < answer.hi < one.hi + 3_600 * 1_000 * MS and not _deleted(record, one, answer):
                yield unknown(request, f"{one.queue_offset} is gone soon after its acknowledgement")


def filter_agrees(record: Record) -> Iterator[Said]:
    told = [(asked, answer) for asked, answer in read_answers(record) if asked.expression_type and asked.expression]
    for request, answer in told:
        if answer.code not in {0, 20} or seen_inside(record, request.place):
            continue
        for asked, given in told:
            withheld = {o for o in given.offsets if request.offset <= o < answer.offset_next} - {*answer.offsets}
            if given.code != 0 or not withheld or asked.place != request.place or not _takes_as_much(request, asked):
                continue
            if deleted_between(
                record, request.place, *sorted((asked, request, given, answer), key=lambda e: e.lo)[::3]
            ):
                continue
            missing = min(withheld)
            may_be_removed = not before(answer, asked) and not any(offset < missing for offset in answer.offsets)
            lowest = [one.offset_min for other, one in read_answers(record) if other.place == request.place]
            may_be_removed &= not is_own(record)
            if may_be_removed and max(lowest) > missing:
                continue
            some_stay = bool(answer.offsets) or answer.offset_next < answer.offset_max
            says = unknown if may_be_removed and some_stay else violated
            yield says(request, f"{request.request} passes over {missing}, which {asked.request} is given")


def _takes_as_much(request: Seen, asked: Seen) -> bool:
    if (request.expression_type, request.expression) == (asked.expression_type, asked.expression):
        return True
    own, other = wanted(request), wanted(asked)
    if isinstance(own, str):
        return False
    return own is None or (other is not None and not isinstance(other, str) and other <= own)


def max_least(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        if answer.offset_max < certain_end(record, request):
            is_measured = request.source in record.loose and not seen_inside(record, request.place)
            is_reset = answer.code == 21 and answer.offset_max == 0
            is_reset &= not is_own(record) and not is_inside(record, request.source)
            convict = unknown if is_measured or is_reset or may_follow(record, request) else violated
            yield convict(request, f"{request.request} is told an offset_max that is too low")


def max_most(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        end = possible_end(record, request, answer)
        if end is not None and answer.offset_max > end:
            why = f"{request.request} is told an offset_max that is too high"
            yield from unrecorded(record, request, answer.hi, why)


RIGHT, ONCE = "answer_is_right", "answered_once"
Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    "pull.code.known": (RIGHT, code_known),
    "pull.error.explained": (RIGHT, error_explained),
    "answer.after_request": (RIGHT, after_request),
    "answer.once": (ONCE, once),
    "answer.same_connection": (ONCE, same_connection),
    "answer.open_connection": (ONCE, open_connection),
    "pull.found.some": (RIGHT, found_some),
    "pull.none.empty": (RIGHT, none_empty),
    "pull.found.ordered": (RIGHT, found_ordered),
    "pull.found.from_asked": (RIGHT, found_from_asked),
    "pull.found.at_most": (RIGHT, found_at_most),
    "pull.found.visible": (RIGHT, found_visible),
    "pull.found.appended": (RIGHT, found_appended),
    "pull.found.tag": (RIGHT, found_tag),
    "pull.found.next": (RIGHT, found_next),
    "pull.found.identified": (RIGHT, found_identified),
    "pull.found.complete": (RIGHT, found_complete),
    "pull.found.above_min": (RIGHT, found_above_min),
    "pull.next.visible": (RIGHT, next_visible),
    "pull.next.within": (RIGHT, next_within),
    "pull.none.true": (RIGHT, none_true),
    "pull.none.next": (RIGHT, none_next),
    "pull.none.at_end": (RIGHT, none_at_end),
    "pull.passed.next": (RIGHT, passed_next),
    "pull.passed.none_match": (RIGHT, passed_none_match),
    "pull.illegal.outside": (RIGHT, illegal_outside),
    "pull.illegal.next": (RIGHT, illegal_next),
    "pull.min.below_max": (RIGHT, min_below_max),
    "pull.found.within": (RIGHT, found_within),
    "pull.min.kept": (RIGHT, min_kept),
    "pull.filter.agrees": (RIGHT, filter_agrees),
    "pull.min.never_falls": (RIGHT, min_never_falls),
    "pull.max.never_falls": (RIGHT, max_never_falls),
    "pull.max.least": (RIGHT, max_least),
    "pull.max.most": (RIGHT, max_most),
}
