"""Lays out a record's events on the page: bars by connection, the visible end by queue, and time marks.

Times are ms after the picture's origin, to the microsecond, because Unix time in ns exceeds the precision of a
browser's numbers. An uncertain time is drawn as an interval. An overrun is red only if the judge reported one.

A bar goes from a pull's receipt to its answer. Its held part begins at the `hold` that the broker wrote. A proxy's
record does not show when a pull was held, so the possible part is marked.

Which events are drawn: `gather`. The drawing: `page.js`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from attrs import define, field, frozen

from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP, Finding, FindingVerdict, Result
from longpoll_judge.rules.queue_columns import MS, PULL_CODES
from longpoll_judge.show.page.gather import Drawn, Event
from longpoll_judge.show.report_text import clean

ANSWERS: Final = {0: "found", 19: "nothing found", 20: "to be asked again", 21: "offset moved"}
"""The meaning of an answer's code."""
Key = tuple[str, str]
"""Source and request."""
Queue = tuple[str, str, int]
"""Broker, topic and number."""


@frozen
class Bar:
    """One pull."""

    lane: int
    row: int
    """Counted through all lanes from the top."""
    queue: int
    request: str
    asked: tuple[float, float]
    answered: tuple[float, float] | None
    end: float
    """Where the bar ends: its answer, or the last moment at which it can have been under way."""
    held: float | None
    """When its hold began; None if it was not held, or that is unknown."""
    may_be_held: bool
    """It asked to be held, and its record does not tell whether it was."""
    deadline: float | None
    limit: float | None
    """Until when an answer was allowed."""
    overrun: float | None
    """From when on it was late, by a finding."""
    finding: int
    """Its number; -1 for none."""
    verdict: str
    """Of that finding; empty for none."""
    told: str
    """Its result in words."""
    lines: list[int]
    """Its lines of the record, in order of time."""


@frozen
class Lane:
    """One connection."""

    name: str
    row: int
    """Its first."""
    rows: int


@frozen
class Steps:
    """One queue's visible end: the latest time at which each value was reached."""

    name: str
    points: list[tuple[float, int, int]]
    """Moment in ms, end, and the line of the record."""


@frozen
class Mark:
    """A finding on the axis of time."""

    start: float
    end: float
    verdict: str
    name: str


@frozen
class Picture:
    """Everything that is drawn."""

    origin_ms: float
    """Unix time."""
    span_ms: float
    pulls_in_all: int
    bars: list[Bar]
    lanes: list[Lane]
    queues: list[Steps]
    marks: list[Mark]
    lines: list[str]
    """The record's events as it has them, one JSON text each."""


@define
class Pull:
    """The events of one pull."""

    asked: Event
    holds: list[Event] = field(factory=list)
    answers: list[Event] = field(factory=list)

    @property
    def key(self) -> Key:
        """The key that identifies it."""
        return self.asked["source"], self.asked["request"]


@frozen
class Fault:
    """The part of a finding about one pull."""

    number: int
    """The finding's."""
    kind: str
    """The property that is broken."""
    verdict: FindingVerdict
    available_ns: int | None
    """When a message that it missed was certainly visible."""


def picture(result: Result, drawn: Drawn) -> Picture:
    """Lay out the events with the findings."""
    pulls = _pulls(drawn.events)
    origin_ns = min((event["after_ns"] for event in drawn.events), default=0)
    last_ns = max((event["before_ns"] for event in drawn.events), default=0)
    layout = _Layout(origin_ns, last_ns, result.thresholds, _faults(result.findings), _ends(drawn.events))
    queues: dict[Queue, int] = {}
    for pull in pulls:
        queues.setdefault(_queue_of(pull.asked), len(queues))
    lines = _Lines()
    bars: list[Bar] = []
    lanes: list[Lane] = []
    row = 0
    for name, mine in _by_connection(pulls).items():
        rows = _rows([(pull.asked["after_ns"], layout.end_ns(pull)) for pull in mine])
        for pull, place in zip(mine, rows, strict=True):
            bars.append(layout.bar(pull, len(lanes), row + place, queues[_queue_of(pull.asked)], lines))
        lanes.append(Lane(_lane_name(name), row, max(rows) + 1))
        row += lanes[-1].rows
    steps = _steps(drawn.events, queues, layout, lines)
    marks = [_mark(finding, origin_ns) for finding in result.findings]
    bars.sort(key=lambda bar: (bar.asked, bar.row))
    span_ms = layout.ms(last_ns)
    return Picture(origin_ns / MS, span_ms, drawn.pulls_in_all, bars, lanes, steps, marks, lines.texts)


@define
class _Lines:
    """The lines of the record that the page shows, each once."""

    texts: list[str] = field(factory=list)
    numbers: dict[tuple[str, int], int] = field(factory=dict)

    def number(self, event: Event) -> int:
        """The number of the event's line, from 0."""
        key = event["source"], event["sequence"]
        if key not in self.numbers:
            self.numbers[key] = len(self.texts)
            self.texts.append(clean(msgspec.json.encode(event).decode()))
        return self.numbers[key]


@frozen
class _Layout:
    """Turns a pull into its bar."""

    origin_ns: int
    last_ns: int
    thresholds: Mapping[str, float]
    """`wake_ms` and `late_ms`."""
    faults: Mapping[Key, Fault]
    ends: Mapping[tuple[str, str], int]
    """(source, connection) -> when it was closed; with an empty connection, when the source stopped."""

    def ms(self, moment_ns: float) -> float:
        """A moment on the page's axis."""
        return round((moment_ns - self.origin_ns) / MS, 3)

    def interval(self, event: Event) -> tuple[float, float]:
        """An event's moment on the page's axis."""
        return self.ms(event["after_ns"]), self.ms(event["before_ns"])

    def end_ns(self, pull: Pull) -> int:
        """The last moment at which a pull can have been under way."""
        if pull.answers:
            return max(int(pull.answers[0]["before_ns"]), int(pull.asked["before_ns"]))
        source = pull.asked["source"]
        closed = [self.ends.get((source, name)) for name in (pull.asked.get("connection", ""), "")]
        return max(min((one for one in closed if one is not None), default=self.last_ns), int(pull.asked["before_ns"]))

    def bar(self, pull: Pull, lane: int, row: int, queue: int, lines: _Lines) -> Bar:
        """The bar of a pull at its place."""
        asked, fault = pull.asked, self.faults.get(pull.key)
        may_hold = bool(asked.get("may_hold")) and asked.get("timeout_ms", -1) > 0
        deadline_ns = asked["before_ns"] + asked["timeout_ms"] * MS if may_hold else None
        limit_ns = None if deadline_ns is None else deadline_ns + self.thresholds.get("late_ms", 0.0) * MS
        if fault is not None and fault.available_ns is not None:
            limit_ns = max(fault.available_ns, asked["before_ns"]) + self.thresholds.get("wake_ms", 0.0) * MS
        is_late = fault is not None and fault.kind in {NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE}
        overruns = is_late and limit_ns is not None and limit_ns < self.end_ns(pull)
        return Bar(
            lane=lane,
            row=row,
            queue=queue,
            request=clean(asked["request"]),
            asked=self.interval(asked),
            answered=self.interval(pull.answers[0]) if pull.answers else None,
            end=self.ms(self.end_ns(pull)),
            held=self.ms(pull.holds[0]["before_ns"]) if pull.holds else None,
            may_be_held=may_hold and not pull.holds,
            deadline=None if deadline_ns is None else self.ms(deadline_ns),
            limit=None if limit_ns is None else self.ms(limit_ns),
            overrun=self.ms(limit_ns) if overruns and limit_ns is not None else None,
            finding=-1 if fault is None else fault.number,
            verdict="" if fault is None else fault.verdict,
            told=_told(pull),
            lines=[lines.number(event) for event in (asked, *pull.holds, *pull.answers)],
        )


def _pulls(events: Iterable[Event]) -> list[Pull]:
    """The pulls among the events with what belongs to each, in order of receipt."""
    found: dict[Key, Pull] = {}
    rest: list[Event] = []
    for event in events:
        if event["event"] == "request_received" and event.get("code") in PULL_CODES and event.get("request"):
            found.setdefault((event["source"], event["request"]), Pull(event))
        elif event.get("request"):
            rest.append(event)
    for event in rest:
        pull = found.get((event["source"], event["request"]))
        if pull is not None and event["event"] in {"hold", "answer_sent"}:
            (pull.holds if event["event"] == "hold" else pull.answers).append(event)
    return list(found.values())


def _faults(findings: Sequence[Finding]) -> dict[Key, Fault]:
    """The findings about pulls; the first finding that names a pull counts."""
    faults: dict[Key, Fault] = {}
    for number, finding in enumerate(findings):
        fault = Fault(number, finding.property, finding.verdict, _available_ns(finding))
        followed = [
            (request, Fault(number, each.property, each.verdict, None))
            for each in finding.follows
            for request in each.requests
        ]
        for request, one in [(finding.request, fault), *followed]:
            for source in _sources(finding, request):
                faults.setdefault((source, request), one)
    return faults


def _sources(finding: Finding, request: str) -> set[str]:
    """The sources that saw a request: those whose events name it, else all sources of the finding's events."""
    naming = {event["source"] for event in finding.evidence if event.get("request") == request}
    return naming or {event["source"] for event in finding.evidence}


def _available_ns(finding: Finding) -> int | None:
    """When the message that a wakeup was owed for was certainly visible, as far as the evidence tells."""
    if finding.property != NO_LOST_WAKEUP or not finding.messages:
        return None
    message = finding.messages[0]
    seen = [
        int(event["before_ns"])
        for event in finding.shown()
        if (event["event"] == "message_acknowledged" and event.get("queue_offset") == message)
        or (event["event"] == "make_visible" and event.get("visible_end", -1) > message)
    ]
    return min(seen, default=None)


def _ends(events: Iterable[Event]) -> dict[tuple[str, str], int]:
    ended = (event for event in events if event["event"] in {"connection_closed", "source_stopped"})
    return {(event["source"], event.get("connection", "")): int(event["before_ns"]) for event in ended}


def _by_connection(pulls: Iterable[Pull]) -> dict[tuple[str, str, str], list[Pull]]:
    lanes: dict[tuple[str, str, str], list[Pull]] = {}
    for pull in pulls:
        asked = pull.asked
        lanes.setdefault((asked["source"], asked.get("connection", ""), asked.get("group", "")), []).append(pull)
    return lanes


def _lane_name(lane: tuple[str, str, str]) -> str:
    source, connection, group = map(clean, lane)
    return (f"connection {connection}" if connection else f"source {source}") + (f", group {group}" if group else "")


def _rows(spans: Iterable[tuple[int, int]]) -> list[int]:
    """A row for each (start, end), in order of their starts, such that none overlaps another of its row."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    rows: list[int] = []
    for start, end in spans:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        heapq.heappush(busy, (end, row))
        rows.append(row)
    return rows


def _queue_of(event: Event) -> Queue:
    return event.get("broker", ""), event.get("topic", ""), event.get("queue", -1)


def _steps(events: Iterable[Event], queues: Mapping[Queue, int], layout: _Layout, lines: _Lines) -> list[Steps]:
    """The visible end of each queue as the broker wrote it, else the highest that was reported so far.

    A broker's own `make_visible` may fall, and the picture shows it. A proxy sees lower bounds.
    """
    seen: dict[Queue, list[tuple[Event, int]]] = {queue: [] for queue in queues}
    for event in sorted(events, key=lambda one: int(one["before_ns"])):
        end = _end_told(event)
        if end is not None and _queue_of(event) in seen:
            seen[_queue_of(event)].append((event, end))
    shown: list[Steps] = []
    for (_broker, topic, number), told in seen.items():
        written = [(event, end) for event, end in told if event["event"] == "make_visible"]
        points: list[tuple[float, int, int]] = []
        for event, end in written or told:
            if not points or (end != points[-1][1] if written else end > points[-1][1]):
                points.append((layout.ms(event["before_ns"]), end, lines.number(event)))
        shown.append(Steps(clean(f"{topic} / {number}"), points))
    return shown


def _end_told(event: Event) -> int | None:
    """The visible end in an event; None if it has none."""
    end: int = -1
    match event["event"]:
        case "make_visible":
            end = event.get("visible_end", -1)
        case "message_acknowledged" if "queue_offset" in event:
            end = event["queue_offset"] + 1
        case "answer_sent":
            end = event.get("offset_max", -1)
    return end if end >= 0 else None


def _told(pull: Pull) -> str:
    offset = pull.asked.get("offset", -1)
    if not pull.answers:
        return f"offset {offset}, no answer seen"
    answer = pull.answers[0]
    code = answer.get("code", -1)
    told = ANSWERS.get(code, f"code {code}")
    count = len(answer.get("offsets", ()))
    cause = f", {clean(answer['cause'])}" if answer.get("cause") else ""
    return f"offset {offset}, {told}{f' ({count})' if count else ''}{cause}"


def _mark(finding: Finding, origin_ns: int) -> Mark:
    start, end = (round(moment - origin_ns / MS, 3) for moment in (finding.window_start_ms, finding.window_end_ms))
    return Mark(start, end, finding.verdict, clean(finding.clause))


def as_data(shown: Picture) -> str:
    """The picture as JSON that no HTML parser takes for anything else, wherever a text came from."""
    text = clean(msgspec.json.encode(shown).decode())
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
