"""Injects one fault into any recorded history, to test that the judge finds it.

The fault changes the first exchange, in order of time, that suits it. Everything else stays as it was recorded; a
removed event's number is closed up, so that nothing but the fault itself is wrong. Histories are read whole into
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ONCE,
    NO_LOST_WAKEUP,
)
from longpoll_judge.recording import (
    MS,
    Fault,
    NoVictimError,
    Recording,
    change,
    closed_connections,
    deadline_ns,
    last_ns,
    load,
    moved,
    pick,
    write,
)
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
    """Whether a pull that takes everything was answered FOUND."""
    return answer.code == 0 and request.expression_type == "TAG" and request.expression in ("", "*")


def _next_wrong(recording: Recording) -> None:
    _request, answer = pick(recording, is_plain_found)
    recording.replace(answer, change(answer, offset_next=answer.offset_next + 1))


FAULTS: Final[dict[str, Fault]] = {
    "answer_deleted": Fault(
        "One pull is never answered.",
        delete_answer,
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
}
"""By name: those that any judge of long polling must find."""


def plant(history: Path, fault: str, planted: Path, faults: Mapping[str, Fault] = FAULTS) -> Fault:
    """Write a copy of the history with one of the faults into a new directory; raises `NoVictimError`."""
    recording = load(history)
    faults[fault].apply(recording)
    write(planted, recording.events, recording.meta)
    if recording.damaged_tail:
        with max(planted.glob(PART_GLOB)).open("ab") as file:
            file.write(recording.damaged_tail)
    return faults[fault]
