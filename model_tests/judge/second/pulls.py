"""The contract's clauses about what answers to pulls say, each a function of its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from model_tests.judge.second.case import (
    Exchange,
    Said,
    certain_end,
    deleted_between,
    exchanges,
    first_known,
    is_after_close,
    left_to,
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
from model_tests.judge.second.reading import Record, Seen, before, wanted

REFUSALS: Final = (1, 2, 3, 16, 17, 23, 24, 25, 26, 27, 28, 29, 215, 501, 1500)


def has_unknown_tag(record: Record, one: Exchange) -> bool:
    """Whether an answer hangs on a message whose tag nobody told."""
    if one.code not in {0, 20} or wanted(one.request) is None or one.answer is None:
        return False
    if deleted_between(record, one.request.place, one.request, one.answer):
        return False
    told = {seen.queue_offset for seen in messages(record, one.request, "append", "message_acknowledged")}
    passed = {*range(max(one.request.offset, 0), min(one.answer.offset_next, one.request.offset + 1000))}
    return any(offset not in told for offset in passed | set(one.answer.offsets))


def code_known(record: Record) -> Iterator[Said]:
    """pull.code.known."""
    for one in exchanges(record):
        if one.answer is not None and one.code not in {0, 19, 20, 21, *REFUSALS}:
            yield violated(one.request, f"{one.name} is answered {one.code}")


def error_explained(record: Record) -> Iterator[Said]:
    """pull.error.explained."""
    for one in exchanges(record):
        shown = any(other.place == one.request.place for other in record.of("append", "message_acknowledged"))
        if one.code == 1 and shown and wanted(one.request) != "undecidable" and one.request.count_max >= 0:
            yield unknown(one.request, f"{one.name} is answered SYSTEM_ERROR")


def _answers(record: Record) -> list[Seen]:
    """Those of which it is known whose they are."""
    return [one for one in record.of("answer_sent") if not one.is_nobodys]


def after_request(record: Record) -> Iterator[Said]:
    """answer.after_request."""
    # Of an identifier that came twice the first counts.
    asked = {one.about: one for one in reversed(record.of("request_received")) if one.request}
    for one in _answers(record):
        if one.about in asked and one.place == asked[one.about].place and before(one, asked[one.about]):
            yield violated(one, f"{one.request} is answered before it came")


def once(record: Record) -> Iterator[Said]:
    """answer.once."""
    told = Counter(one.about for one in record.of("request_received"))
    # Of answers that name different queues nobody knows which is whose.
    seen: set[object] = set()
    for one in _answers(record):
        if (one.about, one.place) in seen and told[one.about] <= 1:
            convict = violated if told[one.about] else unknown
            yield convict(one, f"{one.request} has several answers")
        seen.add((one.about, one.place))


def same_connection(record: Record) -> Iterator[Said]:
    """answer.same_connection."""
    asked = {one.about: one for one in record.of("request_received") if one.request}
    told = Counter(one.about for one in record.of("request_received"))
    for one in _answers(record):
        request = asked.get(one.about) if told[one.about] == 1 else None
        if request is None or request.place != one.place or not (one.connection and request.connection):
            continue
        if one.connection != request.connection:
            yield violated(one, f"{one.request} is answered on another connection")


def open_connection(record: Record) -> Iterator[Said]:
    """answer.open_connection."""
    told = Counter(one.about for one in record.of("request_received"))
    for one in _answers(record):
        if told[one.about] <= 1 and is_after_close(record, one):
            yield violated(one, f"{one.request} is answered on a closed connection")


def found_some(record: Record) -> Iterator[Said]:
    """pull.found.some."""
    for request, answer in read_answers(record):
        if answer.code == 0 and not answer.offsets:
            yield violated(request, f"{request.request} is told FOUND and given nothing")


def none_empty(record: Record) -> Iterator[Said]:
    """pull.none.empty."""
    for request, answer in read_answers(record):
        if answer.code != 0 and answer.offsets:
            yield violated(request, f"{request.request} is given messages with {answer.code}")


def found_ordered(record: Record) -> Iterator[Said]:
    """pull.found.ordered."""
    for request, answer in read_answers(record):
        if any(later <= earlier for earlier, later in pairwise(answer.offsets)):
            yield violated(request, f"{request.request} is given messages out of order")


def found_from_asked(record: Record) -> Iterator[Said]:
    """pull.found.from_asked."""
    for request, answer in read_answers(record):
        if any(offset < request.offset for offset in answer.offsets):
            yield violated(request, f"{request.request} is given what it did not ask for")


def found_at_most(record: Record) -> Iterator[Said]:
    """pull.found.at_most."""
    for request, answer in read_answers(record):
        if answer.code == 0 and len(answer.offsets) > max(request.count_max, 1):
            yield violated(request, f"{request.request} is given too many messages")


def found_visible(record: Record) -> Iterator[Said]:
    """pull.found.visible."""
    for request, answer in read_answers(record):
        end = possible_end(record, request, answer)
        if end is not None and any(offset >= end for offset in answer.offsets):
            why = f"{request.request} is given what was not visible"
            yield from unrecorded(record, request, answer.hi, why)


def found_appended(record: Record) -> Iterator[Said]:
    """pull.found.appended."""
    for request, answer in read_answers(record):
        shown = {one.queue_offset for one in left_to(record, request, "append", "message_acknowledged")}
        base = first_known(record, request)
        missing = [offset for offset in answer.offsets if offset >= base and offset not in shown]
        is_sure = seen_inside(record, request.place) and not deleted_between(record, request.place, request, answer)
        if missing and is_sure:
            why = f"{request.request} is given {missing}, which nobody appended"
            yield from unrecorded(record, request, answer.hi, why)


def found_tag(record: Record) -> Iterator[Said]:
    """pull.found.tag."""
    for request, answer in read_answers(record):
        if isinstance(wanted(request), str):
            continue
        told = tags(record, request)
        for offset in answer.offsets:
            if offset in told and not any(takes(request, tag) for tag in told[offset]):
                yield violated(request, f"{request.request} is given {offset}, whose tag it does not want")


def found_next(record: Record) -> Iterator[Said]:
    """pull.found.next."""
    for request, answer in read_answers(record):
        if answer.code != 0 or not answer.offsets:
            continue
        last = answer.offsets[-1]
        is_full = len(answer.offsets) == max(request.count_max, 1) or wanted(request) is None
        if answer.offset_next <= last or (is_full and answer.offset_next != last + 1):
            yield violated(request, f"{request.request} is sent on to {answer.offset_next} after {last}")


def found_complete(record: Record) -> Iterator[Said]:
    """pull.found.complete."""
    for request, answer in read_answers(record):
        if answer.code != 0 or isinstance(wanted(request), str):
            continue
        passed = {o: t for o, t in tags(record, request).items() if request.offset <= o < answer.offset_next}
        if sum(all(takes(request, tag) for tag in told) for told in passed.values()) > len(answer.offsets):
            yield violated(request, f"{request.request} is not given all that it passes over")


def found_above_min(record: Record) -> Iterator[Said]:
    """pull.found.above_min."""
    for request, answer in read_answers(record):
        if any(offset < answer.offset_min for offset in answer.offsets):
            yield violated(request, f"{request.request} is given what lies below offset_min")


def next_visible(record: Record) -> Iterator[Said]:
    """pull.next.visible."""
    for request, answer in read_answers(record):
        end = possible_end(record, request, answer)
        if answer.code in {0, 20} and end is not None and answer.offset_next > end:
            why = f"{request.request} is sent past what was visible"
            yield from unrecorded(record, request, answer.hi, why)


def next_within(record: Record) -> Iterator[Said]:
    """pull.next.within."""
    if not all(one.split("+")[0] in {"strict", "strict-clone"} for one in record.policies):
        return
    for request, answer in read_answers(record):
        if answer.code in {0, 20} and answer.offset_next > answer.offset_max:
            yield violated(request, f"{request.request} is sent past offset_max")


def none_true(record: Record) -> Iterator[Said]:
    """pull.none.true."""
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
            convict = unknown if is_measured or stopping == "perhaps" else violated
            yield convict(request, f"{request.request} is denied what was visible to {end}")


def none_next(record: Record) -> Iterator[Said]:
    """pull.none.next."""
    for request, answer in read_answers(record):
        if answer.code == 19 and answer.offset_next != request.offset:
            yield violated(request, f"{request.request} is told 19 and moved to {answer.offset_next}")


def none_at_end(record: Record) -> Iterator[Said]:
    """pull.none.at_end."""
    for request, answer in read_answers(record):
        if answer.code == 19 and answer.offset_max != request.offset:
            why = f"{request.request} is told 19 at {request.offset} of {answer.offset_max}"
            yield from unless_stopping(record, request, answer, why)


def passed_next(record: Record) -> Iterator[Said]:
    """pull.passed.next."""
    for request, answer in read_answers(record):
        if answer.code == 20 and answer.offset_next <= request.offset:
            yield violated(request, f"{request.request} passes over nothing")


def passed_none_match(record: Record) -> Iterator[Said]:
    """pull.passed.none_match."""
    for request, answer in read_answers(record):
        if answer.code != 20 or isinstance(wanted(request), str):
            continue
        for offset, told in tags(record, request).items():
            if request.offset <= offset < answer.offset_next and all(takes(request, tag) for tag in told):
                yield violated(request, f"{request.request} passes over {offset}, which it wants")


def illegal_outside(record: Record) -> Iterator[Said]:
    """pull.illegal.outside."""
    for request, answer in read_answers(record):
        inside = answer.offset_min <= request.offset <= answer.offset_max
        if answer.code == 21 and inside:
            yield violated(request, f"{request.request} is told 21 within its bounds")


def illegal_next(record: Record) -> Iterator[Said]:
    """pull.illegal.next."""
    for request, answer in read_answers(record):
        if answer.code != 21:
            continue
        allowed = {answer.offset_min} if request.offset < answer.offset_min else {answer.offset_max}
        if answer.offset_min == 0:
            allowed.add(0)
        if answer.offset_next not in allowed:
            yield violated(request, f"{request.request} is told 21 and sent to {answer.offset_next}")


def min_below_max(record: Record) -> Iterator[Said]:
    """pull.min.below_max."""
    for request, answer in read_answers(record):
        if answer.offset_min > answer.offset_max:
            yield violated(request, f"{request.request} is told bounds that cross")


def _successive(record: Record) -> Iterator[tuple[Seen, Seen, Seen]]:
    """Pairs of answers about one queue on one connection, the later one certainly read after the earlier."""
    told = list(read_answers(record))
    for asked, earlier in told:
        for request, later in told:
            same = (asked.place, asked.source, asked.connection) == (request.place, request.source, request.connection)
            if not request.connection:
                continue  # of no connection nobody knows which it is
            if same and before(earlier, request) and not deleted_between(record, request.place, asked, later):
                yield earlier, later, request


def min_never_falls(record: Record) -> Iterator[Said]:
    """pull.min.never_falls."""
    for earlier, later, request in _successive(record):
        if later.offset_min < earlier.offset_min:
            yield violated(request, f"{request.request} is told a lower offset_min than before")


def _delivered_ends(answer: Seen) -> list[int]:
    return [offset + 1 for offset in answer.offsets] if answer.code == 0 else []


def max_never_falls(record: Record) -> Iterator[Said]:
    """pull.max.never_falls."""
    for earlier, later, request in _successive(record):
        shown = max([earlier.offset_max, *_delivered_ends(earlier)])
        if later.offset_max < shown and not seen_inside(record, request.place):
            yield violated(request, f"{request.request} is told a lower offset_max than before")


def max_least(record: Record) -> Iterator[Said]:
    """pull.max.least."""
    for request, answer in read_answers(record):
        if answer.offset_max < certain_end(record, request):
            is_measured = request.source in record.loose and not seen_inside(record, request.place)
            convict = unknown if is_measured else violated
            yield convict(request, f"{request.request} is told an offset_max that is too low")


def max_most(record: Record) -> Iterator[Said]:
    """pull.max.most."""
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
    "pull.min.never_falls": (RIGHT, min_never_falls),
    "pull.max.never_falls": (RIGHT, max_never_falls),
    "pull.max.least": (RIGHT, max_least),
    "pull.max.most": (RIGHT, max_most),
}
