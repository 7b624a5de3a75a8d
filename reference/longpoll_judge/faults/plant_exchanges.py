"""Faults in exchanges that a history may lack: sends and offset queries, appended after its last event.

Each exchange is correct except for the one fault. Faults in recorded events: `plant_contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from longpoll_judge.contract.clause import SEND_MS
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import Verdict
from longpoll_judge.faults.fault import Fault
from longpoll_judge.faults.recording import MS, NoVictimError, Recording, change, moved
from longpoll_spec.history import Event

US: Final = 1_000
SEND, QUERY, UPDATE, PULL = 10, 14, 15, 11
CONNECTION: Final = "planted"
FAR: Final = 900
Told = dict[str, Any]
Moments = tuple[int, int, int, int]
"""When a send is received, and its message appended, made visible and acknowledged, us."""


def _append_events(recording: Recording, made: Iterable[tuple[int, Told]], *, behind: bool = True) -> None:
    """Put events (moment in us, fields) behind the last one, or before the first, of the first source."""
    marks = [event for event in recording.events if event.event == ("source_stopped" if behind else "source_started")]
    if not marks:
        raise NoVictimError("this history does not tell where its source begins and ends")
    mark = marks[0]
    others = [event for event in recording.events if event.source == mark.source and event is not mark]
    start_ns = max(event.before_ns for event in others) + 10 * US if behind else mark.before_ns
    first = mark.sequence if behind else mark.sequence + 1
    ordered = sorted(made, key=lambda one: one[0])
    events = [
        Event(
            **{"broker": others[0].broker, "connection": CONNECTION, **fields},
            after_ns=start_ns + moment_us * US,
            before_ns=start_ns + moment_us * US + 1,
            source=mark.source,
            sequence=first + number,
        )
        for number, (moment_us, fields) in enumerate(ordered)
    ]
    last_ns = max(event.before_ns for event in events) if behind else mark.before_ns
    end = change(mark, after_ns=max(mark.after_ns, last_ns), before_ns=max(mark.before_ns, last_ns))
    recording.events = [end if event is mark else event for event in recording.events]
    recording.events = [
        change(event, sequence=event.sequence + len(events))
        if event.source == mark.source and event.sequence >= first
        else event
        for event in recording.events
    ]
    recording.events += events


def _place(recording: Recording) -> tuple[Told, int]:
    """A queue that is seen from inside, and its visible end."""
    for event in reversed(recording.events):
        if event.event == "make_visible":
            return {"topic": event.topic, "queue": event.queue}, event.visible_end
    raise NoVictimError("this history does not show from inside what becomes visible")


def _sent(
    place: Told, number: int, offset: int, moments: tuple[int, int, int, int], **told: Any
) -> list[tuple[int, Told]]:
    """A send: when it is received, appended, made visible and acknowledged; `told` changes the acknowledgement."""
    request = {"request": f"planted-{number}"}
    received, appended, visible, acknowledged = moments
    acknowledgement = {"event": "message_acknowledged", "queue_offset": offset, "tag": "a", **place, **request, **told}
    return [
        (received, {"event": "request_received", "code": SEND, **place, **request}),
        (appended, {"event": "append", "queue_offset": offset, "tag": "a", "connection": "", **place}),
        (visible, {"event": "make_visible", "visible_end": offset + 1, "connection": "", **place}),
        (acknowledged, acknowledgement),
    ]


def _one_send(moments: Moments = (0, 10, 20, 30), **told: Any) -> Callable[[Recording], None]:
    def apply(recording: Recording) -> None:
        place, end = _place(recording)
        _append_events(recording, _sent(place, 1, end, moments, **told))

    return apply


def _misplaced(recording: Recording) -> None:
    place, end = _place(recording)
    _append_events(recording, _sent(place, 1, end, (0, 10, 20, 30), queue_offset=end + 5))


def _two_sends(second_at: int, offsets: tuple[int, int]) -> Callable[[Recording], None]:
    """Two sends whose messages are appended in order; `offsets` are acknowledged, the second send is at `second_at`."""

    def apply(recording: Recording) -> None:
        place, end = _place(recording)
        first = _sent(place, 1, end, (0, 10, 20, 40), queue_offset=end + offsets[0])
        second = _sent(place, 2, end + 1, (second_at, 25, 30, 80), queue_offset=end + offsets[1])
        _append_events(recording, [*first, *second])

    return apply


def _delivered_early(recording: Recording) -> None:
    place, end = _place(recording)
    pull = {"request": "planted-9", "code": PULL, "group": "planted", "offset": end, "count_max": 1}
    asked = {"event": "request_received", "expression_type": "TAG", "expression": "*", **pull, **place}
    ends = {"offset_next": end + 1, "offset_min": 0, "offset_max": end + 1, "offsets": [end], "cause": "immediate"}
    answer = {"event": "answer_sent", "request": "planted-9", "code": 0, **ends, **place}
    _append_events(recording, [*_sent(place, 1, end, (60, 10, 20, 70)), (30, asked), (40, answer)])


def _closed_before(recording: Recording) -> None:
    place, end = _place(recording)
    _append_events(recording, [*_sent(place, 1, end, (0, 10, 20, 30)), (25, {"event": "connection_closed"})])


def _answered_again(recording: Recording) -> None:
    """The second acknowledgement names a message of another sender."""
    place, end = _place(recording)
    _asked, *second = _sent(place, 1, end + 1, (0, 40, 50, 60))
    _append_events(recording, [*_sent(place, 1, end, (0, 10, 20, 30)), *second])


def _for_another_queue(recording: Recording) -> None:
    place, end = _place(recording)
    (moment, asked), *stored = _sent(place, 1, end, (0, 10, 20, 30))
    _append_events(recording, [(moment, asked | {"queue": place["queue"] + 1}), *stored])


def _never_answered(recording: Recording) -> None:
    place, _end = _place(recording)
    asked = {"event": "request_received", "code": SEND, "request": "planted-1", **place}
    _append_events(recording, [(0, asked)])
    stop = next(event for event in recording.events if event.event == "source_stopped")
    recording.replace(stop, moved(stop, (SEND_MS + 1_000) * MS))


Asked = tuple[int, int, int]
"""A code, what it commits (-1 for nothing) and what it is answered: an offset, or minus a code; `UNANSWERED`."""
UNANSWERED: Final = 1 << 40


def _offsets(asked: Iterable[Asked], *, behind: bool = True) -> Callable[[Recording], None]:
    """A new group's exchanges about its offset, one after the other."""

    def apply(recording: Recording) -> None:
        place = {"topic": "planted", "queue": 0}
        made: list[tuple[int, Told]] = []
        for number, (code, commit, told) in enumerate(asked):
            request = {"request": f"planted-{number}", **place}
            fields = {"event": "request_received", "code": code, "group": "planted", "commit_offset": commit}
            made.append((20 * number, fields | request))
            answer = {"code": -told} if told < 0 else {"code": 0, "offset": told if code == QUERY else -1}
            if told != UNANSWERED:
                made.append((20 * number + 10, {"event": "answer_sent", **answer, **request}))
        _append_events(recording, made, behind=behind)

    return apply


def _breaks(clause: str, sentence: str, apply: Callable[[Recording], None]) -> Fault:
    line = CLAUSE[clause]
    verdict: Verdict = "invalid" if line.verdict == "violated" else "unknown"
    return Fault(sentence, apply, verdict, frozenset({line.property}), clause)


EXCHANGE_FAULTS: Final[dict[str, Fault]] = {
    "acknowledged_before_its_send": _breaks(
        "send.acknowledged.after_request", "One message is acknowledged before its send.", _one_send((50, 10, 20, 30))
    ),
    "acknowledged_elsewhere": _breaks(
        "send.acknowledged.same_connection",
        "One message is acknowledged on another connection.",
        _one_send(connection="not planted"),
    ),
    "acknowledged_after_the_close": _breaks(
        "send.acknowledged.open_connection", "One message is acknowledged once nobody is there.", _closed_before
    ),
    "acknowledged_again": _breaks(
        "send.acknowledged.once", "One send is acknowledged, and later again.", _answered_again
    ),
    "acknowledged_for_another_queue": _breaks(
        "send.acknowledged.place", "One message is acknowledged in another queue.", _for_another_queue
    ),
    "send_unanswered": _breaks("send.answered", "One send is never answered.", _never_answered),
    "acknowledged_not_appended": _breaks(
        "send.acknowledged.appended", "One message is acknowledged and was not appended there.", _misplaced
    ),
    "acknowledged_with_other_tag": _breaks(
        "send.acknowledged.tag", "One message is acknowledged with another tag.", _one_send(tag="b")
    ),
    "sends_inverted": _breaks(
        "send.sequential", "Two sends after each other have inverted offsets.", _two_sends(60, (1, 0))
    ),
    "acknowledged_twice": _breaks(
        "log.acknowledged.once", "Two messages are acknowledged with one offset.", _two_sends(5, (0, 0))
    ),
    "delivered_before_its_send": _breaks(
        "send.delivered.after_request", "One message is delivered before its send.", _delivered_early
    ),
    "told_too_little": _breaks(
        "commit.told.kept", "A group is told less than it committed.", _offsets([(UPDATE, 9, 0), (QUERY, -1, 5)])
    ),
    "told_too_much": _breaks(
        "commit.told.most",
        "A group is told more than it committed.",
        _offsets([(QUERY, -1, -22), (UPDATE, 9, 0), (QUERY, -1, FAR)]),
    ),
    "told_what_nobody_committed": _breaks(
        "commit.told.written",
        "A group is told an offset between two that it committed.",
        _offsets([(UPDATE, 9, 0), (QUERY, -1, 9), (UPDATE, 5, 0), (QUERY, -1, 7)]),
    ),
    "told_of_none": _breaks(
        "commit.told.some", "A group is told of no offset, and has one.", _offsets([(UPDATE, 9, 0), (QUERY, -1, -22)])
    ),
    "question_unanswered": _breaks(
        "commit.answered", "A group asks and is not answered.", _offsets([(QUERY, -1, UNANSWERED)], behind=False)
    ),
    "question_answered_strangely": _breaks(
        "commit.code.known", "A group asks and is told a code that there is not.", _offsets([(QUERY, -1, -999)])
    ),
}
"""By name."""
