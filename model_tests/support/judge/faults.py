"""Faults that are injected into a recorded history: into answers, a queue's log, or the evidence for them.

A fault changes the first matching exchange in order of time. Everything else stays as recorded, except that the events
after a removed event get new numbers. Faults of exactly one clause: see `contract_faults`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from model_tests.support.judge.contract_faults import CONTRACT_FAULTS, EXCHANGE_FAULTS
from model_tests.support.judge.recording import (
    MS,
    Fault,
    NoVictimError,
    Recording,
    change,
    closed_connections,
    deadline_ns,
    last_ns,
    load,
    lost,
    moved,
    pick,
    write,
)

from longpoll_judge.columns.expression import parse
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    HELD_AS_ASKED,
    NO_LOST_WAKEUP,
    OFFSETS_IN_ORDER,
    VISIBLE_IS_MONOTONE,
    Verdict,
)
from longpoll_protocol.properties import java_hash
from longpoll_spec.history import PART_GLOB, Event

ALLOWANCE_MS: Final = 500
"""The time in ms by which a delayed answer misses its deadline, larger than any time limit in use."""
WAKE_DELAY_MS: Final = 2_000


def _pick_expired(recording: Recording) -> tuple[Event, Event]:
    """Returns an expired pull with its answer or, if no pull expired, any pull that may be held."""
    try:
        return pick(recording, lambda request, answer: bool(request.may_hold) and answer.cause == "expired")
    except NoVictimError:
        return pick(recording, lambda request, _answer: bool(request.may_hold))


def delete_answer(recording: Recording) -> None:
    """Remove the answer of a held pull; raises `NoVictimError`."""
    closed = closed_connections(recording)
    ends = {source: last_ns(recording, source) for source in {event.source for event in recording.events}}
    held = {(event.source, event.request) for event in recording.events if event.event == "hold"}

    def suits(request: Event, answer: Event) -> bool:
        was_held = not held or (request.source, request.request) in held
        due_ns = deadline_ns(request) + ALLOWANCE_MS * MS
        is_open = (request.source, request.connection) not in closed
        return bool(request.may_hold) and was_held and is_open and due_ns < ends[answer.source]

    def is_woken(request: Event, answer: Event) -> bool:
        is_early = answer.after_ns + ALLOWANCE_MS * MS < ends[answer.source]
        return bool(request.may_hold) and answer.code == 0 and answer.cause == "woken" and is_early

    try:
        _request, answer = pick(recording, suits)
    except NoVictimError:
        _request, answer = pick(recording, is_woken)
    recording.replace(answer)


def _answer_delayed(recording: Recording) -> None:
    request, answer = _pick_expired(recording)
    recording.delay(answer, deadline_ns(request) + ALLOWANCE_MS * MS - answer.after_ns)


def _wake_delayed(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: answer.cause == "woken" and answer.code == 0)
    recording.delay(answer, WAKE_DELAY_MS * MS)


def _answer_duplicated(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, _answer: True)
    recording.replace(answer, answer, change(moved(answer, MS), sequence=answer.sequence))


def is_plain_found(request: Event, answer: Event) -> bool:
    """Whether a pull for all tags was answered FOUND."""
    return answer.code == 0 and request.expression_type == "TAG" and request.expression in ("", "*")


def _next_wrong(recording: Recording) -> None:
    _request, answer = pick(recording, is_plain_found)
    recording.replace(answer, change(answer, offset_next=answer.offset_next + 1))


FAR: Final = 1_000_000
"""An offset beyond any offset of a history with injected faults."""


Suits = Callable[[Event, Event], bool]


Change = Callable[[Event, Event], dict[str, object]]


def _takes_all(request: Event) -> bool:
    return request.expression_type == "TAG" and request.expression in ("", "*")


def _selective(request: Event, answer: Event) -> bool:
    return answer.code == 0 and answer.cause == "immediate" and not _takes_all(request)


def _before_its_request(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.cause == "immediate")
    recording.replace(answer, moved(answer, request.after_ns - answer.before_ns - MS))


def _illegal_to_nowhere(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.code == 19 and answer.offset_max > 0)
    recording.replace(request, change(request, offset=answer.offset_max + 1_000))
    recording.replace(answer, change(answer, code=21, offset_next=answer.offset_max + 5))


def _answered_much_later(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: answer.code == 19)
    recording.replace(answer, answer, change(moved(answer, 700 * MS), sequence=answer.sequence))


def _wake_late(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: answer.cause == "woken" and answer.code == 0)
    recording.delay(answer, 150 * MS)


def _deadline_missed(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.cause == "expired")
    recording.delay(answer, deadline_ns(request) + 60 * MS - answer.after_ns)


def _timeout_cut(recording: Recording) -> None:
    request, _answer = pick(recording, lambda request, answer: answer.cause == "expired" and request.timeout_ms > 55)
    recording.replace(request, change(request, timeout_ms=1))


def _forgotten_at_the_stop(recording: Recording) -> None:
    """Remove the answer of the last pull that is open shortly before the history ends."""
    for request, answer in reversed(list(recording.exchanges())):
        ends_ns = last_ns(recording, answer.source)
        if request.may_hold and ends_ns < deadline_ns(request) + 40 * MS and ends_ns > request.before_ns + 55 * MS:
            recording.replace(answer)
            return
    raise NoVictimError("no pull is open near the end of this history; record a longer run")


def _first(recording: Recording, *events: str) -> Event:
    found = next((event for event in recording.events if event.event in events), None)
    if found is None:
        raise NoVictimError(f"this history has no event named {' or '.join(events)}")
    return found


def _appends(recording: Recording) -> list[tuple[Event, Event]]:
    """Returns each pair of consecutive appends to one queue."""
    appended: dict[tuple[str, str, int], list[Event]] = {}
    for event in recording.events:
        if event.event == "append":
            appended.setdefault((event.source, event.topic, event.queue), []).append(event)
    pairs = [pair for events in appended.values() for pair in pairwise(events)]
    return sorted(pairs, key=lambda pair: pair[0].sequence)


def _offset_given_twice(recording: Recording) -> None:
    append = _first(recording, "append")
    recording.replace(append, append, change(moved(append, MS), sequence=append.sequence))


def _appends_swapped(recording: Recording) -> None:
    for one, two in _appends(recording):
        if one.tag == two.tag and one.before_ns < two.after_ns:
            recording.replace(one, change(one, queue_offset=two.queue_offset))
            recording.replace(two, change(two, queue_offset=one.queue_offset))
            return
    raise NoVictimError("no two consecutive messages have the same tag; record a longer run")


def _visible_moves_back(recording: Recording) -> None:
    first = _first(recording, "make_visible")
    later = next(
        event
        for event in recording.events
        if event.event == "make_visible"
        and (event.source, event.topic, event.queue) == (first.source, first.topic, first.queue)
        and event.visible_end > first.visible_end
        and event.after_ns > first.before_ns
    )
    again = change(first, after_ns=later.before_ns + 1, before_ns=later.before_ns + 2, sequence=later.sequence)
    recording.replace(later, later, again)


def _tag_changed(recording: Recording) -> None:
    request, answer = pick(
        recording, lambda request, answer: _selective(request, answer) and "||" not in request.expression
    )
    append = next(
        event
        for event in recording.events
        if event.event in ("append", "message_acknowledged")
        and (event.topic, event.queue, event.queue_offset) == (request.topic, request.queue, answer.offsets[0])
    )
    recording.replace(append, change(append, tag=f"not {append.tag}"))


def _idle_event(recording: Recording) -> Event:
    """Returns an event on which no verdict depends."""
    return _first(recording, "expire", "connection_opened", "run", "take")


def _source_undeclared(recording: Recording) -> None:
    event = _idle_event(recording)
    recording.replace(event, event, change(event, source="stranger", sequence=0))
    stranger = next(each for each in recording.events if each.source == "stranger")
    later = [each for each in recording.events if each.source == event.source and each.sequence > event.sequence]
    for each in later:
        recording.events[recording.events.index(each)] = change(each, sequence=each.sequence - 1)
    assert stranger.sequence == 0, "a source with one event begins at 0"


def _subscription_unknown(recording: Recording) -> None:
    request, _answer = pick(recording, is_plain_found)
    recording.replace(request, change(request, expression_type="REGEX", expression="a.*"))


def _request_missing(recording: Recording) -> None:
    request, _answer = pick(recording, lambda _request, answer: answer.cause == "immediate")
    recording.replace(request)


def _request_twice(recording: Recording) -> None:
    request, _answer = pick(recording, is_plain_found)
    recording.replace(request, request, change(request, sequence=request.sequence))


def _format_newer(recording: Recording) -> None:
    assert recording.meta is not None, "a complete recording has its meta file"
    recording.meta = msgspec.structs.replace(recording.meta, format_version=99)


def _wrong(sentence: str, suits: Suits, changed: Change, *properties: str) -> Fault:
    """Returns a fault in the content of one answer."""

    def apply(recording: Recording) -> None:
        request, answer = pick(recording, suits)
        recording.replace(answer, change(answer, **changed(request, answer)))

    return _broken(sentence, apply, ANSWER_IS_RIGHT, *properties)


def _too_many(request: Event, answer: Event) -> dict[str, object]:
    offsets = list(range(answer.offsets[0], answer.offsets[0] + request.count_max + 1))
    return {"offsets": offsets, "offset_next": offsets[-1] + 1}


def _broken(sentence: str, apply: Callable[[Recording], None], *properties: str) -> Fault:
    """Returns a fault that violates at least one of these properties."""
    return Fault(sentence, apply, "invalid", frozenset(properties))


def _idle(sentence: str, changed: Callable[[Event], Sequence[Event]]) -> Fault:
    """Returns a fault that changes only an event on which no verdict depends."""

    def apply(recording: Recording) -> None:
        event = _idle_event(recording)
        recording.replace(event, *changed(event))

    return _missing(sentence, apply)


def _missing(sentence: str, apply: Callable[[Recording], None], verdict: Verdict = "unknown") -> Fault:
    """Returns a fault that removes or damages evidence, so that no property is certain to be violated."""
    return Fault(sentence, apply, verdict, frozenset())


def _wrong_tag(recording: Recording) -> None:
    """Add a message that does not match to the answer of a pull for certain tags."""
    tags: dict[tuple[str, int], dict[int, str]] = {}
    for event in recording.events:
        if event.event in ("append", "message_acknowledged"):
            tags.setdefault((event.topic, event.queue), {})[event.queue_offset] = event.tag

    def surplus(request: Event, answer: Event) -> int:
        expression = parse(request.expression_type, request.expression)
        known = tags.get((request.topic, request.queue), {})
        if answer.code != 0 or expression is None or expression.takes_everything:
            return -1
        if 0 <= request.count_max <= len(answer.offsets):
            return -1
        for offset in range(request.offset, answer.offset_next):
            if offset in known and java_hash(known[offset]) not in expression.tag_codes:
                return offset
        return -1

    request, answer = pick(recording, lambda request, answer: surplus(request, answer) >= 0)
    offsets = list(answer.offsets)
    offset = surplus(request, answer)
    offsets.insert(bisect_left(offsets, offset), offset)
    recording.replace(answer, change(answer, offsets=offsets))


def _answer_before_visible(recording: Recording) -> None:
    """Move an answer to just before the time at which its last message became visible."""
    seen = {(event.topic, event.queue, event.visible_end): event for event in reversed(recording.events)}
    for request, answer in recording.exchanges():
        if answer.code == 0:
            visible = seen.get((answer.topic, answer.queue, answer.offsets[-1] + 1))
            if visible is not None and visible.event == "make_visible" and visible.after_ns > request.before_ns + 2000:
                early = visible.after_ns - answer.before_ns - 1000
                recording.replace(answer, moved(answer, early))
                return
    raise NoVictimError("no answer of this history suits the fault; record a longer run")


def _sequence_gap(recording: Recording) -> None:
    """Remove an event on which no verdict depends, and leave its sequence number unused."""
    for place, event in enumerate(recording.events):
        if event.event in ("expire", "connection_opened", "run", "take"):
            del recording.events[place]
            return
    raise NoVictimError("no event of this history suits the fault; record a longer run")


def _events_lost(recording: Recording) -> None:
    """Replace events, including the answer of one pull, by a report of lost events."""
    before = list(recording.events)
    delete_answer(recording)
    pairs = zip(before, [*recording.events, None], strict=True)
    gone = next(was for was, event in pairs if event is None or was.after_ns != event.after_ns)
    event = next(each for each in recording.events if each.source == gone.source and each.sequence == gone.sequence)
    recording.replace(event, lost(gone, 1), event)


FAULTS: Final[dict[str, Fault]] = {
    "answer_deleted": _broken("One pull is never answered.", delete_answer, ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP),
    "answer_delayed": _broken(
        "One answer comes half a second after its deadline.", _answer_delayed, ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP
    ),
    "wake_delayed": _broken("One woken answer comes 2 s later.", _wake_delayed, NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE),
    "answer_duplicated": _broken("One pull is answered twice.", _answer_duplicated, ANSWERED_ONCE),
    "next_wrong": _broken("One offset_next is 1 too high.", _next_wrong, ANSWER_IS_RIGHT),
    "message_missing": _wrong(
        "One body lacks a message.",
        lambda _request, answer: answer.code == 0 and len(answer.offsets) > 1,
        lambda _request, answer: {"offsets": answer.offsets[1:]},
    ),
    "message_from_the_future": _wrong(
        "One body has a message that was not there.",
        is_plain_found,
        lambda _request, answer: {"offsets": [*answer.offsets, answer.offset_next + FAR]},
    ),
    "too_many_messages": _wrong(
        "One body is larger than asked.",
        lambda request, answer: is_plain_found(request, answer) and request.count_max >= 0,
        _too_many,
    ),
    "messages_out_of_order": _wrong(
        "One body begins with its second message.",
        lambda _request, answer: len(answer.offsets) > 1,
        lambda _request, answer: {"offsets": [*answer.offsets[1:], answer.offsets[0]]},
    ),
    "next_stays": _wrong(
        "One offset_next stays behind.",
        lambda _request, answer: answer.code == 20,
        lambda request, _answer: {"offset_next": request.offset},
    ),
    "wrong_tag": _broken("One body has a message of another tag.", _wrong_tag, ANSWER_IS_RIGHT),
    "answer_before_visible": _broken(
        "One answer has a message before it was visible.", _answer_before_visible, ANSWER_IS_RIGHT
    ),
    "denies_message": _wrong(
        "One answer says 19 though a message was there.",
        lambda _request, answer: answer.code == 0 and answer.cause == "immediate",
        lambda request, _answer: {"code": 19, "offsets": [], "offset_next": request.offset},
        HELD_AS_ASKED,
    ),
    "end_too_high": _wrong(
        "One offset_max is too high.",
        lambda _request, answer: answer.offset_max >= 0,
        lambda _request, answer: {"offset_max": answer.offset_max + FAR},
    ),
    "end_too_low": _wrong(
        "One offset_max is too low.",
        lambda request, answer: answer.code == 19 and request.offset > 0,
        lambda _request, _answer: {"offset_max": 0},
    ),
    "legal_called_illegal": _wrong(
        "One offset within bounds is called illegal.",
        lambda _request, answer: answer.code == 19 and answer.offset_max > 0,
        lambda _request, _answer: {"code": 21},
    ),
    "half_line": _missing(
        "The last line is half written.",
        lambda recording: setattr(recording, "damaged_tail", msgspec.json.encode(recording.events[-1])[:40]),
    ),
    "meta_missing": _missing("There is no meta file.", lambda recording: setattr(recording, "meta", None)),
    "sequence_gap": _missing("One event is missing.", _sequence_gap),
    "events_lost": Fault(
        "The source lost events, one answer among them.",
        _events_lost,
        "unknown",
        frozenset({ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}),
    ),
    "found_empty": _wrong("One FOUND carries nothing.", is_plain_found, lambda _request, _answer: {"offsets": []}),
    "message_before_asked": _wrong(
        "One body begins before the offset asked for.",
        lambda request, answer: is_plain_found(request, answer) and request.offset > 0,
        lambda request, answer: {"offsets": [request.offset - 1, *answer.offsets]},
    ),
    "message_twice": _wrong(
        "One body carries a message twice.",
        is_plain_found,
        lambda _request, answer: {"offsets": [answer.offsets[0], *answer.offsets]},
    ),
    "last_message_missing": _wrong(
        "One body lacks its last message.",
        lambda request, answer: is_plain_found(request, answer) and len(answer.offsets) > 1,
        lambda _request, answer: {"offsets": answer.offsets[:-1]},
    ),
    "next_back": _wrong(
        "One offset_next is the last message's.",
        is_plain_found,
        lambda _request, answer: {"offset_next": answer.offsets[-1]},
    ),
    "next_too_far": _wrong(
        "One offset_next lies far behind the log.",
        _selective,
        lambda _request, answer: {"offset_next": answer.offset_next + FAR},
    ),
    "bounds_crossed": _wrong(
        "One offset_min is above offset_max.",
        lambda _request, answer: answer.code == 19,
        lambda _request, answer: {"offset_min": answer.offset_max + FAR},
    ),
    "nothing_with_messages": _wrong(
        "One 19 carries a message.",
        lambda _request, answer: answer.code == 19,
        lambda request, _answer: {"offsets": [request.offset]},
    ),
    "nothing_moves_on": _wrong(
        "One 19 moves the offset.",
        lambda _request, answer: answer.code == 19,
        lambda request, _answer: {"offset_next": request.offset + 1},
    ),
    "passes_over_a_match": _wrong(
        "One 20 passes over a message that matches.", _selective, lambda _request, _answer: {"code": 20, "offsets": []}
    ),
    "illegal_to_nowhere": _broken(
        "One 21 leads to no end of the queue.", _illegal_to_nowhere, ANSWER_IS_RIGHT, HELD_AS_ASKED
    ),
    "answer_before_request": _broken("One answer comes before its request.", _before_its_request, ANSWER_IS_RIGHT),
    "tag_changed": _broken("One message has another tag than its readers saw.", _tag_changed, ANSWER_IS_RIGHT),
    "answered_much_later": _broken("One pull is answered again much later.", _answered_much_later, ANSWERED_ONCE),
    "wake_late": _broken("One wake comes 150 ms later.", _wake_late, NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE),
    "deadline_missed": _broken(
        "One answer comes 60 ms after its deadline.", _deadline_missed, ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP
    ),
    "timeout_cut": _broken(
        "One pull was to be answered at once and was not.", _timeout_cut, ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP
    ),
    "forgotten_at_the_stop": _broken(
        "One pull is left when the broker stops.", _forgotten_at_the_stop, ANSWERED_ON_STOP
    ),
    "offset_given_twice": _broken("One queue offset is given twice.", _offset_given_twice, OFFSETS_IN_ORDER),
    "append_missing": _broken(
        "One queue offset is left out.",
        lambda recording: recording.replace(_appends(recording)[0][1]),
        OFFSETS_IN_ORDER,
        ANSWER_IS_RIGHT,
    ),
    "appends_swapped": _broken("Two queue offsets are given in the wrong order.", _appends_swapped, OFFSETS_IN_ORDER),
    "visible_moves_back": _broken("The visible end moves back once.", _visible_moves_back, VISIBLE_IS_MONOTONE),
    "interval_reversed": _idle(
        "One event ends before it begins.", lambda event: [change(event, after_ns=event.before_ns + 1)]
    ),
    "sequence_repeated": _missing(
        "One event stands there twice.", lambda recording: recording.events.append(_idle_event(recording))
    ),
    "event_unknown": _idle("One event has a name that nobody knows.", lambda event: [change(event, event="teleport")]),
    "source_undeclared": _missing("One event comes from a source without clock.", _source_undeclared),
    "subscription_unknown": _missing("One subscription cannot be decided by tags.", _subscription_unknown),
    "request_missing": _missing("One answer has no request.", _request_missing),
    "request_twice": _missing("One request is received twice.", _request_twice),
    "format_newer": _missing("The meta file is of a later format.", _format_newer),
    "clock_set_back": _idle(
        "One event lies two minutes before those that it follows.",
        lambda event: [moved(change(event, event="recheck"), -120_000 * MS)],
    ),
    "lost_declared": _idle("The source says that it lost events.", lambda event: [event, lost(event, 3)]),
    **CONTRACT_FAULTS,
    **EXCHANGE_FAULTS,
}


def plant(history: Path, fault: str, planted: Path) -> Fault:
    """Write a copy of the history with a fault to a new directory; raises `NoVictimError`."""
    recording = load(history)
    FAULTS[fault].apply(recording)
    write(planted, recording.events, recording.meta)
    if recording.damaged_tail:
        with max(planted.glob(PART_GLOB)).open("ab") as file:
            file.write(recording.damaged_tail)
    return FAULTS[fault]
