"""Plants one fault into any recorded history, so that the judge can be seen to find it.

A victim is picked deterministically: the first, in order of time, that suits the fault. Everything else stays as it was
recorded; a removed event's number is closed up, so that nothing but the fault itself is wrong. Histories are read whole
into memory. Leaves out the judging.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Final

import msgspec

from longpoll_judge.columns.expression import parse
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ONCE,
    HELD_AS_ASKED,
    NO_LOST_WAKEUP,
)
from longpoll_judge.faults.fault import Fault
from longpoll_judge.faults.plant_contract import CONTRACT_FAULTS
from longpoll_judge.faults.plant_exchanges import EXCHANGE_FAULTS
from longpoll_judge.faults.plant_more import MORE_FAULTS
from longpoll_judge.faults.recording import (
    MS,
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
)
from longpoll_judge.generate import write
from longpoll_protocol.properties import java_hash
from longpoll_spec.history import PART_GLOB, Event

ALLOWANCE_MS: Final = 500
"""How far a delayed answer goes past its deadline: well over any threshold in use."""
WAKE_DELAY_MS: Final = 2_000


def _pick_expired(recording: Recording) -> tuple[Event, Event]:
    """An expired pull if there is one, else any that may be held."""
    try:
        return pick(recording, lambda request, answer: bool(request.may_hold) and answer.cause == "expired")
    except NoVictimError:
        return pick(recording, lambda request, _answer: bool(request.may_hold))


def _answer_deleted(recording: Recording) -> None:
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


def _is_plain_found(request: Event, answer: Event) -> bool:
    return answer.code == 0 and request.expression_type == "TAG" and request.expression in ("", "*")


def _next_wrong(recording: Recording) -> None:
    _request, answer = pick(recording, _is_plain_found)
    recording.replace(answer, change(answer, offset_next=answer.offset_next + 1))


def _message_missing(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: answer.code == 0 and len(answer.offsets) > 1)
    recording.replace(answer, change(answer, offsets=answer.offsets[1:]))


def _message_from_the_future(recording: Recording) -> None:
    _request, answer = pick(recording, _is_plain_found)
    recording.replace(answer, change(answer, offsets=[*answer.offsets, answer.offset_next + 1_000_000]))


def _too_many_messages(recording: Recording) -> None:
    _request, answer = pick(
        recording, lambda request, answer: _is_plain_found(request, answer) and request.count_max >= 0
    )
    offsets = list(range(answer.offsets[0], answer.offsets[0] + _request.count_max + 1))
    recording.replace(answer, change(answer, offsets=offsets, offset_next=offsets[-1] + 1))


def _messages_out_of_order(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: len(answer.offsets) > 1)
    recording.replace(answer, change(answer, offsets=[*answer.offsets[1:], answer.offsets[0]]))


def _next_stays(recording: Recording) -> None:
    """The answer to a pull that passes over messages says to ask for the same offset again."""
    _request, answer = pick(recording, lambda _request, answer: answer.code == 20)
    recording.replace(answer, change(answer, offset_next=_request.offset))


def _wrong_tag(recording: Recording) -> None:
    """A selective pull also gets a message that its tag excludes."""
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
    """An answer is moved to just before its last message became visible."""
    seen = {(event.topic, event.queue, event.visible_end): event for event in reversed(recording.events)}
    for request, answer in recording.exchanges():
        if answer.code == 0:
            visible = seen.get((answer.topic, answer.queue, answer.offsets[-1] + 1))
            if visible is not None and visible.event == "make_visible" and visible.after_ns > request.before_ns + 2000:
                early = visible.after_ns - answer.before_ns - 1000
                recording.replace(answer, moved(answer, early))
                return
    raise NoVictimError("no answer of this history suits the fault; record a longer run")


def _denies_message(recording: Recording) -> None:
    """A pull that found something at once says that there is nothing new."""
    _request, answer = pick(recording, lambda _request, answer: answer.code == 0 and answer.cause == "immediate")
    denied = change(answer, code=19, offsets=[], offset_next=_request.offset)
    recording.replace(answer, denied)


def _end_too_high(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: answer.offset_max >= 0)
    recording.replace(answer, change(answer, offset_max=answer.offset_max + 1_000_000))


def _end_too_low(recording: Recording) -> None:
    _request, answer = pick(recording, lambda request, answer: answer.code == 19 and request.offset > 0)
    recording.replace(answer, change(answer, offset_max=0))


def _legal_called_illegal(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: answer.code == 19 and answer.offset_max > 0)
    recording.replace(answer, change(answer, code=21))


def _half_line(recording: Recording) -> None:
    recording.damaged_tail = msgspec.json.encode(recording.events[-1])[:40]


def _meta_missing(recording: Recording) -> None:
    recording.meta = None


def _sequence_gap(recording: Recording) -> None:
    """An event that no verdict reads goes missing, and its number with it."""
    for place, event in enumerate(recording.events):
        if event.event in ("expire", "connection_opened", "run", "take"):
            del recording.events[place]
            return
    raise NoVictimError("no event of this history suits the fault; record a longer run")


def _events_lost(recording: Recording) -> None:
    """The source says that it dropped events, and the answer of one pull is among them."""
    before = list(recording.events)
    _answer_deleted(recording)
    pairs = zip(before, [*recording.events, None], strict=True)
    gone = next(was for was, event in pairs if event is None or was.after_ns != event.after_ns)
    event = next(each for each in recording.events if each.source == gone.source and each.sequence == gone.sequence)
    recording.replace(event, lost(gone, 1), event)


FAULTS: Final[dict[str, Fault]] = {
    "answer_deleted": Fault(
        "One pull is never answered.",
        _answer_deleted,
        "invalid",
        frozenset({ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}),
    ),
    "answer_delayed": Fault(
        "One answer comes half a second after its deadline.",
        _answer_delayed,
        "invalid",
        frozenset({ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}),
    ),
    "wake_delayed": Fault(
        "One woken answer comes 2 s later.",
        _wake_delayed,
        "invalid",
        frozenset({NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE}),
    ),
    "answer_duplicated": Fault(
        "One pull is answered twice.", _answer_duplicated, "invalid", frozenset({ANSWERED_ONCE})
    ),
    "next_wrong": Fault("One offset_next is 1 too high.", _next_wrong, "invalid", frozenset({ANSWER_IS_RIGHT})),
    "message_missing": Fault("One body lacks a message.", _message_missing, "invalid", frozenset({ANSWER_IS_RIGHT})),
    "message_from_the_future": Fault(
        "One body has a message that was not there.", _message_from_the_future, "invalid", frozenset({ANSWER_IS_RIGHT})
    ),
    "too_many_messages": Fault(
        "One body is larger than asked.", _too_many_messages, "invalid", frozenset({ANSWER_IS_RIGHT})
    ),
    "messages_out_of_order": Fault(
        "One body begins with its second message.", _messages_out_of_order, "invalid", frozenset({ANSWER_IS_RIGHT})
    ),
    "next_stays": Fault("One offset_next stays behind.", _next_stays, "invalid", frozenset({ANSWER_IS_RIGHT})),
    "wrong_tag": Fault("One body has a message of another tag.", _wrong_tag, "invalid", frozenset({ANSWER_IS_RIGHT})),
    "answer_before_visible": Fault(
        "One answer has a message before it was visible.",
        _answer_before_visible,
        "invalid",
        frozenset({ANSWER_IS_RIGHT}),
    ),
    "denies_message": Fault(
        "One answer says 19 though a message was there.",
        _denies_message,
        "invalid",
        frozenset({ANSWER_IS_RIGHT, HELD_AS_ASKED}),
    ),
    "end_too_high": Fault("One offset_max is too high.", _end_too_high, "invalid", frozenset({ANSWER_IS_RIGHT})),
    "end_too_low": Fault("One offset_max is too low.", _end_too_low, "invalid", frozenset({ANSWER_IS_RIGHT})),
    "legal_called_illegal": Fault(
        "One offset within bounds is called illegal.", _legal_called_illegal, "invalid", frozenset({ANSWER_IS_RIGHT})
    ),
    "half_line": Fault("The last line is half written.", _half_line, "unknown", frozenset()),
    "meta_missing": Fault("There is no meta file.", _meta_missing, "unknown", frozenset()),
    "sequence_gap": Fault("One event is missing.", _sequence_gap, "unknown", frozenset()),
    "events_lost": Fault(
        "The source lost events, one answer among them.",
        _events_lost,
        "unknown",
        frozenset({ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP}),
    ),
    **MORE_FAULTS,
    **CONTRACT_FAULTS,
    **EXCHANGE_FAULTS,
}
"""By name; the first five are what any judge of long polling must find."""


def plant(history: Path, fault: str, planted: Path) -> Fault:
    """Write a copy of the history with this fault into a new directory; raises `NoVictimError`."""
    recording = load(history)
    FAULTS[fault].apply(recording)
    write(planted, recording.events, recording.meta)
    if recording.damaged_tail:
        with max(planted.glob(PART_GLOB)).open("ab") as file:
            file.write(recording.damaged_tail)
    return FAULTS[fault]
