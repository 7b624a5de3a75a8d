"""Faults that are injected into a recorded history, each of which breaks exactly one clause of the contract.

A history may lack sends and offset queries, so these are added after its last event. Each added exchange is correct
except for its one fault. Faults that may break several clauses: see `faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from model_tests.support.judge.recording import MS, Fault, NoVictimError, Recording, change, moved, pick

from longpoll_judge.contract.clause import SEND_MS, SHOWN_MS
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import EVIDENCE, Verdict
from longpoll_judge.kernel.pulls import STEPS
from longpoll_spec.history import Event

REFUSED: Final = {"offsets": [], "offset_next": -1, "offset_min": -1, "offset_max": -1}
"""The offset fields of an answer to a pull that was refused before it read the queue."""
FAR: Final = 1_000
UNHELD_DELAY_MS: Final = 3_000
LONG_TIMEOUT_MS: Final = 20_000


def _is_expired(_request: Event, answer: Event) -> bool:
    return answer.code == 19 and answer.cause == "expired"


def _hold_of(recording: Recording, request: Event) -> Event:
    """Returns the hold event of a pull; raises `NoVictimError` if there is none."""
    for event in recording.events:
        if event.event == "hold" and (event.source, event.request) == (request.source, request.request):
            return event
    raise NoVictimError("this history does not show from inside that the pull was held")


def _without_steps(recording: Recording, request: Event) -> None:
    """Remove the events of the broker's steps with a pull."""
    mine = (request.source, request.request)
    for event in [each for each in recording.events if each.event in STEPS and (each.source, each.request) == mine]:
        recording.replace(event)


def _last(recording: Recording, suits: Callable[[Event, Event], bool]) -> tuple[Event, Event]:
    """Returns a matching exchange that is the last one of its connection; raises `NoVictimError`."""
    lasts = {(answer.source, answer.connection): (request, answer) for request, answer in recording.exchanges()}
    for request, answer in lasts.values():
        if suits(request, answer):
            return request, answer
    raise NoVictimError(
        "no connection in this history ends with an exchange that this fault can change; record a longer run"
    )


def _code(code: int) -> Callable[[Recording], None]:
    def apply(recording: Recording) -> None:
        request, answer = pick(recording, lambda request, answer: answer.code == 0 and request.expression_type == "TAG")
        assert request.count_max >= 0, "a recorded pull has its limit of messages"
        recording.replace(answer, change(answer, code=code, **REFUSED))

    return apply


def _elsewhere(recording: Recording) -> None:
    _request, answer = pick(recording, lambda _request, answer: bool(answer.connection))
    recording.replace(answer, change(answer, connection=f"not {answer.connection}"))


def _after_the_close(recording: Recording) -> None:
    request, _answer = _last(recording, lambda request, answer: request.before_ns + 4 < answer.after_ns)
    moment = request.before_ns + 1
    closed = Event(
        event="connection_closed",
        after_ns=moment,
        before_ns=moment + 1,
        source=request.source,
        sequence=request.sequence,
        broker=request.broker,
        connection=request.connection,
    )
    recording.replace(request, request, closed)


def _below_its_own_min(recording: Recording) -> None:
    _request, answer = _last(recording, lambda _request, answer: answer.code == 0)
    recording.replace(answer, change(answer, offset_min=answer.offsets[0] + 1))


def _past_its_own_max(recording: Recording) -> None:
    request, answer = pick(
        recording, lambda _request, answer: answer.code == 0 and answer.cause == "woken" and len(answer.offsets) == 1
    )
    recording.replace(answer, change(answer, offset_max=request.offset))


def _nothing_before_the_end(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.code == 20 and answer.cause == "expired")
    recording.replace(answer, change(answer, code=19, offset_next=request.offset))


def _unheld_late(recording: Recording) -> None:
    request, answer = pick(recording, _is_expired)
    recording.replace(_hold_of(recording, request))
    _without_steps(recording, request)
    recording.replace(request, change(request, may_hold=False))
    answer = next(one for one in recording.events if one.event == "answer_sent" and one.request == request.request)
    recording.delay(answer, UNHELD_DELAY_MS * MS)


def _told_early(recording: Recording) -> None:
    request, _answer = pick(recording, _is_expired)
    recording.replace(request, change(request, timeout_ms=LONG_TIMEOUT_MS))


def _held_unasked(recording: Recording) -> None:
    request, _answer = pick(recording, lambda request, answer: bool(request.may_hold) and answer.cause == "expired")
    _hold_of(recording, request)
    _without_steps(recording, request)
    recording.replace(request, change(request, may_hold=False))


def _held_twice(recording: Recording) -> None:
    request, _answer = pick(recording, _is_expired)
    hold = _hold_of(recording, request)
    recording.replace(hold, hold, change(hold, sequence=hold.sequence))


def _held_before_it_came(recording: Recording) -> None:
    request, _answer = pick(recording, _is_expired)
    hold = _hold_of(recording, request)
    recording.replace(hold)
    request = next(one for one in recording.events if one.event == "request_received" and one.request == hold.request)
    early = moved(hold, request.after_ns - 1 - hold.before_ns)
    recording.replace(request, change(early, sequence=request.sequence), change(request, sequence=request.sequence))


def _held_after_the_answer(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.cause == "expired")
    hold = _hold_of(recording, request)
    recording.replace(hold)
    answer = next(one for one in recording.events if one.event == "answer_sent" and one.request == request.request)
    later = moved(hold, answer.before_ns + 1 - hold.after_ns)
    recording.replace(answer, answer, change(later, sequence=answer.sequence))


def _step(recording: Recording, request: Event, moment_ns: int) -> None:
    """Let the pull run at this time."""
    told = change(request, event="run", after_ns=moment_ns, before_ns=moment_ns + 1, code=-1, offset=-1)
    recording.replace(request, request, told)


def _run_unasked(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.cause == "immediate")
    hold_free = change(request, may_hold=False)
    recording.replace(request, hold_free)
    _step(recording, hold_free, answer.after_ns)


def _run_before_it_came(recording: Recording) -> None:
    request, _answer = pick(recording, lambda _request, answer: answer.cause == "woken")
    _hold_of(recording, request)
    _step(recording, request, request.after_ns - 2)


def _run_after_the_answer(recording: Recording) -> None:
    request, answer = pick(recording, lambda _request, answer: answer.cause == "woken")
    _hold_of(recording, request)
    _step(recording, request, answer.before_ns + 1)


def _held_with_an_old_end(recording: Recording) -> None:
    request, _answer = pick(recording, _is_expired)
    hold = _hold_of(recording, request)
    recording.replace(hold, change(hold, visible_end=0))


def _held_past_the_end(recording: Recording) -> None:
    request, answer = pick(recording, _is_expired)
    _hold_of(recording, request)
    recording.replace(request, change(request, offset=answer.offset_max + FAR))
    recording.replace(answer, change(answer, code=21, offset_next=answer.offset_max))


def _limit_of_one(recording: Recording) -> None:
    assert recording.meta is not None, "a complete recording has its meta file"
    sources = [msgspec.structs.replace(source, hold_limit=1) for source in recording.meta.sources]
    recording.meta = msgspec.structs.replace(recording.meta, sources=sources)


def _not_the_last(recording: Recording, suits: Callable[[Event, Event], bool]) -> tuple[Event, Event]:
    """Returns a matching exchange that later exchanges of its connection follow; raises `NoVictimError`."""
    _request, last = _last(recording, lambda _request, _answer: True)
    return pick(
        recording,
        lambda request, answer: (
            suits(request, answer) and answer.connection == last.connection and answer.before_ns < last.after_ns
        ),
    )


def _min_rises_and_falls(recording: Recording) -> None:
    _request, answer = _not_the_last(recording, lambda _request, answer: answer.code == 19 and answer.offset_max > 0)
    recording.replace(answer, change(answer, offset_min=1))


def _max_rises_and_falls(recording: Recording) -> None:
    """Keep only the pulls for all tags and their answers, as seen from outside, and raise one answer's max offset."""
    plain = {event.request for event in recording.events if event.expression == "*"}
    told = ("source_started", "source_stopped")
    kept = [
        event
        for event in recording.events
        if event.event in told or (event.request in plain and event.event in {"request_received", "answer_sent"})
    ]
    recording.events = [change(event, sequence=number) for number, event in enumerate(kept)]
    _request, answer = _not_the_last(recording, lambda _request, answer: answer.code == 0)
    recording.replace(answer, change(answer, offset_max=answer.offset_max + FAR))


def _nothing_pulled(recording: Recording) -> None:
    kept = [event for event in recording.events if not event.request]
    recording.events = [change(event, sequence=number) for number, event in enumerate(kept)]


def _nothing_at_all(recording: Recording) -> None:
    assert recording.meta is not None, "a complete recording has its meta file"
    recording.events = []
    recording.meta = msgspec.structs.replace(recording.meta, sources=[])


def _offset_renamed(recording: Recording) -> None:
    request, _answer = pick(recording, lambda request, answer: answer.code == 0 and request.offset > 0)
    recording.replace(request, change(request, offset=-1))


def _without(name: str) -> Callable[[Recording], None]:
    """Returns a fault that removes the first event of this name and renumbers its source's later events."""

    def apply(recording: Recording) -> None:
        event = next((event for event in recording.events if event.event == name), None)
        if event is None:
            raise NoVictimError(f"this history has no {name}")
        recording.replace(event)

    return apply


def _visible_past_the_log(recording: Recording) -> None:
    """Raise the visible end beyond the log when the history ends and no pull waits any more."""
    last = next((event for event in reversed(recording.events) if event.event == "make_visible"), None)
    stop = next((event for event in recording.events if event.event == "source_stopped"), None)
    if last is None or stop is None:
        raise NoVictimError("this history shows no visible end from inside, or does not end")
    moment = {"after_ns": stop.after_ns, "before_ns": stop.after_ns, "sequence": stop.sequence}
    recording.replace(stop, change(last, **moment, visible_end=last.visible_end + 1), stop)


def _never_shown(recording: Recording) -> None:
    """Acknowledge one more message at the end of the history, and let the source run on without showing it."""
    appends = [event for event in recording.events if event.event == "append"]
    stop = next((event for event in recording.events if event.event == "source_stopped"), None)
    if not appends or stop is None:
        raise NoVictimError("this history shows no message from inside, or does not end")
    append = max(appends, key=lambda one: one.queue_offset)
    moment = {"after_ns": stop.after_ns, "before_ns": stop.after_ns, "request": ""}
    added = change(append, **moment, sequence=stop.sequence, queue_offset=append.queue_offset + 1)
    recording.replace(stop, added, moved(stop, (SHOWN_MS + 1_000) * MS))
    stop = next(event for event in recording.events if event.event == "source_stopped")
    recording.replace(
        stop, change(added, event="message_acknowledged", request="send-never-shown", sequence=stop.sequence), stop
    )


def _visible_too_soon(recording: Recording) -> None:
    """Make a message visible just before its append begins, so before any client can have read the message."""
    appends = [event for event in recording.events if event.event == "append"]
    for event in recording.events:
        if event.event == "make_visible":
            mine = [one for one in appends if (one.topic, one.queue) == (event.topic, event.queue)]
            append = next((one for one in mine if one.queue_offset == event.visible_end - 1), None)
            if append is not None and append is not mine[0]:
                early = append.after_ns - 1
                recording.replace(event, change(event, after_ns=early, before_ns=early))
                return
    raise NoVictimError("this history shows no message that was appended and made visible")


def _doubled(name: str) -> Callable[[Recording], None]:
    def apply(recording: Recording) -> None:
        event = next(event for event in recording.events if event.event == name)
        recording.replace(event, event, change(event, sequence=event.sequence))

    return apply


def _stopped_early(recording: Recording) -> None:
    stop = next(event for event in recording.events if event.event == "source_stopped")
    before = next(event for event in reversed(recording.events) if event.sequence == stop.sequence - 1)
    recording.events[recording.events.index(before)] = change(before, sequence=stop.sequence)
    recording.events[recording.events.index(stop)] = change(stop, sequence=before.sequence)


def _source_silent(recording: Recording) -> None:
    assert recording.meta is not None, "a complete recording has its meta file"
    silent = msgspec.structs.replace(recording.meta.sources[0], name="the other one")
    recording.meta = msgspec.structs.replace(recording.meta, sources=[*recording.meta.sources, silent])


def _policy_unknown(recording: Recording) -> None:
    assert recording.meta is not None, "a complete recording has its meta file"
    recording.meta = msgspec.structs.replace(recording.meta, policy="lenient")


def _breaks(clause: str, sentence: str, apply: Callable[[Recording], None]) -> Fault:
    line = CLAUSE[clause]
    verdict: Verdict = "invalid" if line.verdict == "violated" else "unknown"
    properties = frozenset() if line.property == EVIDENCE else frozenset({line.property})
    return Fault(sentence, apply, verdict, properties, clause)


CONTRACT_FAULTS: Final[dict[str, Fault]] = {
    "code_made_up": _breaks("pull.code.known", "One pull is answered with a code that there is not.", _code(999)),
    "system_error": _breaks("pull.error.explained", "One pull is answered SYSTEM_ERROR.", _code(1)),
    "answered_elsewhere": _breaks("answer.same_connection", "One answer goes to another connection.", _elsewhere),
    "answered_after_close": _breaks(
        "answer.open_connection", "One answer is sent on a connection that is closed.", _after_the_close
    ),
    "below_its_own_min": _breaks(
        "pull.found.above_min", "One body begins before the answer's own offset_min.", _below_its_own_min
    ),
    "past_its_own_max": _breaks(
        "pull.next.within", "One offset_next lies past the answer's own offset_max.", _past_its_own_max
    ),
    "nothing_before_the_end": _breaks(
        "pull.none.at_end", "One 19 is said before the queue's end.", _nothing_before_the_end
    ),
    "unheld_late": _breaks("pull.unheld.prompt", "One pull that may not be held is answered 3 s late.", _unheld_late),
    "told_early": _breaks("pull.hold.not_early", "One pull is told 19 long before its deadline.", _told_early),
    "held_unasked": _breaks("pull.hold.allowed", "One pull is held that may not be.", _held_unasked),
    "held_twice": _breaks("pull.hold.once", "One pull is held twice.", _held_twice),
    "held_before_it_came": _breaks("pull.hold.after_request", "One pull is held before it came.", _held_before_it_came),
    "held_after_the_answer": _breaks("pull.hold.unanswered", "One pull is held once answered.", _held_after_the_answer),
    "run_unasked": _breaks("pull.step.allowed", "One pull that may not be held is run again.", _run_unasked),
    "run_before_it_came": _breaks("pull.step.after_request", "One pull is run before it came.", _run_before_it_came),
    "run_after_the_answer": _breaks("pull.step.unanswered", "One pull is run once answered.", _run_after_the_answer),
    "held_with_an_old_end": _breaks("pull.hold.read", "One hold saw an older end.", _held_with_an_old_end),
    "held_past_the_end": _breaks("pull.hold.at_end", "One pull is held past the queue's end.", _held_past_the_end),
    "too_many_held": _breaks("hold.limit.kept", "More pulls are held than the broker promises.", _limit_of_one),
    "min_rises_and_falls": _breaks(
        "pull.min.never_falls", "One offset_min is above the next ones.", _min_rises_and_falls
    ),
    "max_rises_and_falls": _breaks(
        "pull.max.never_falls", "One offset_max is above the next ones, seen from outside.", _max_rises_and_falls
    ),
    "visible_past_the_log": _breaks(
        "log.visible.appended", "One visible end lies past the last message that was appended.", _visible_past_the_log
    ),
    "never_shown": _breaks(
        "send.shown", "One message is acknowledged and never made visible, and its source goes on.", _never_shown
    ),
    "visible_too_soon": _breaks(
        "log.visible.appended", "One message is appended after it was made visible.", _visible_too_soon
    ),
    "nothing_pulled": _breaks("evidence.nothing_judged", "There is a log, and nobody pulls.", _nothing_pulled),
    "nothing_at_all": _breaks("evidence.empty", "There are no events.", _nothing_at_all),
    "offset_renamed": _breaks("evidence.field_missing", "One pull does not tell its offset.", _offset_renamed),
    "start_missing": _breaks("evidence.source_start", "The source does not begin.", _without("source_started")),
    "started_twice": _breaks("evidence.source_start", "The source begins twice.", _doubled("source_started")),
    "stop_missing": _breaks("evidence.source_end", "The source does not end.", _without("source_stopped")),
    "stopped_twice": _breaks("evidence.source_end", "The source ends twice.", _doubled("source_stopped")),
    "stopped_early": _breaks("evidence.source_end", "The source goes on after its end.", _stopped_early),
    "source_silent": _breaks("evidence.source_silent", "A source is declared and not there.", _source_silent),
    "policy_unknown": _breaks("evidence.unknown_policy", "The policy is none that there is.", _policy_unknown),
}


US: Final = 1_000
SEND, QUERY, UPDATE, PULL = 10, 14, 15, 11
CONNECTION: Final = "planted"
OFFSET_FAR: Final = 900
Told = dict[str, Any]
Moments = tuple[int, int, int, int]
"""The times in us at which a send is received, and at which its message is appended, made visible and acknowledged."""


def _append_events(recording: Recording, made: Iterable[tuple[int, Told]], *, behind: bool = True) -> None:
    """Add events, given as (time in us, fields), after the last or before the first event of the first source."""
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
    """Returns a queue for which the broker recorded its own steps, and the queue's visible end."""
    for event in reversed(recording.events):
        if event.event == "make_visible":
            return {"topic": event.topic, "queue": event.queue}, event.visible_end
    raise NoVictimError("this history does not show from inside what becomes visible")


def _sent(
    place: Told, number: int, offset: int, moments: tuple[int, int, int, int], **told: Any
) -> list[tuple[int, Told]]:
    """Returns the events of a send: received, appended, made visible and acknowledged.

    `told` changes fields of the acknowledgement.
    """
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
    """Returns a fault: two sends whose messages are appended in order and acknowledged at `offsets`.

    The second send begins at `second_at`.
    """

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
    """Add a send and acknowledge it twice, the second time with a message of another sender."""
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
"""(code, committed offset or -1, result); the result is an offset, a negated response code, or `UNANSWERED`."""
UNANSWERED: Final = 1 << 40


def _offsets(asked: Iterable[Asked], *, behind: bool = True) -> Callable[[Recording], None]:
    """Returns a fault: a new group's commits and queries of its offset, one after the other."""

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
        _offsets([(QUERY, -1, -22), (UPDATE, 9, 0), (QUERY, -1, OFFSET_FAR)]),
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
