"""The judge's page as one file: which events it draws, where they lie, and the text, put into the template.

The memory for drawn events is bounded however long the record is. Pulls that findings name come first, then those that
are nearest in time to the first finding.

Times are ms after the picture's origin, to the microsecond, because Unix time in ns exceeds the precision of a
browser's numbers. An uncertain time is drawn as an interval. An overrun is red only if the judge reported one. A bar
goes from a pull's receipt to its answer. Its held part begins at the `hold` that the broker wrote. A proxy's record
does not show when a pull was held, so the possible part is marked.

Everything from outside is escaped: texts by Jinja2, data by `as_data`, and the script writes texts alone. The page's
policy allows no script except the one whose hash it names, and no network access. The drawing: `page.js`.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from longpoll_judge.columns.tables import Tables
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    COMMIT_IS_TOLD,
    COMMIT_NEVER_REGRESSES,
    EVIDENCE,
    FOLLOWS_THE_LAW,
    HELD_AS_ASKED,
    HOLD_LIMIT_KEPT,
    NO_LOST_WAKEUP,
    OFFSETS_IN_ORDER,
    PROPERTIES,
    SEND_IS_KEPT,
    VISIBLE_IS_MONOTONE,
    Finding,
    FindingVerdict,
    Result,
)
from longpoll_judge.kernel.gathered import events_at
from longpoll_judge.kernel.pulls import MS, PULL_CODES
from longpoll_judge.read.schema import coded, order_of
from longpoll_judge.show.report import clean, followed_by, told_of

PULLS_MAX: Final = 10_000
"""Most pulls that are drawn: with their answers about 10 MB of page."""
LOG_EVENTS_MAX: Final = 20_000
"""Most events of the queues' logs that are drawn."""
OF_REQUEST: Final = ("answer_sent", "hold")
OF_LOG: Final = ("make_visible", "message_acknowledged")
ENDS: Final = ("connection_closed", "source_stopped")
"""Until when a pull without an answer can have been under way."""
Event = dict[str, Any]
Rows = NDArray[np.int64]


@frozen
class Drawn:
    """Events that a page draws."""

    events: list[Event]
    """In order of time."""
    pulls_in_all: int
    """How many pulls the record has, drawn or not."""


def of_findings(result: Result) -> Drawn:
    """The events that the findings show, where nothing else of the record is at hand."""
    unique = {(one["source"], one["sequence"]): one for each in result.findings for one in each.shown()}
    return Drawn(sorted(unique.values(), key=order_of), result.requests)


def gather(result: Result, tables: Tables, pulls_max: int = PULLS_MAX) -> Drawn:
    """Gather the events to draw of a record; every split is read four times.

    Args:
        result: The findings, which give the places to draw.
        tables: The events of every split.
        pulls_max: Most pulls that are drawn.
    """
    focus_ns = int(result.findings[0].window_start_ms * MS) if result.findings else 0
    named = {request for each in result.findings for request in _requests(each)}
    receipts = _Nearest(pulls_max)
    pulls_in_all = 0
    for number, table in enumerate(tables()):
        rows = _pull_rows(table)
        pulls_in_all += len(rows)
        receipts.add(number, rows, _distances(table, rows, focus_ns, named))
    asked = list(_events_at(tables, receipts.named()).values())
    # An answer stands after its request, or a little before it, and in any split.
    requests = {event["request"] for event in asked}
    kept = _Nearest(pulls_max * len(OF_REQUEST))
    log = _Nearest(LOG_EVENTS_MAX)
    for number, table in enumerate(tables()):
        mine = _where(table, "event", OF_REQUEST)
        mine = mine[_where_mask(table, "request", requests)[mine]]
        kept.add(number, mine, _distances(table, mine, focus_ns, set()))
        of_log = _of_log(table, asked)
        log.add(number, of_log, _distances(table, of_log, focus_ns, set()))
    pairs = {_pair(event) for event in asked}
    found = _events_at(tables, kept.named() | log.named())
    answers = [found[place] for place in kept.named() if _pair(found[place]) in pairs]
    logged = [found[place] for place in log.named() - kept.named()]
    return Drawn(sorted((*asked, *answers, *logged), key=order_of), pulls_in_all)


def _events_at(tables: Tables, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Event]:
    """The events at these places (split, row)."""
    wanted: dict[int, list[int]] = {}
    for number, row in places:
        wanted.setdefault(number, []).append(row)
    found: dict[tuple[int, int], Event] = {}
    for number, table in enumerate(tables()) if wanted else ():
        told = events_at(table, wanted.get(number, ()))
        found |= {(number, row): event for row, event in told.items()}
    return found


def _pair(event: Event) -> tuple[str, str]:
    return event["source"], event["request"]


@define
class _Nearest:
    """The places (split, row) with the least distances; never more than twice `most` of them at a time."""

    most: int
    places: Rows = field(factory=lambda: np.empty((0, 2), dtype=np.int64))
    distances: Rows = field(factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, number: int, rows: Rows, distances: Rows) -> None:
        """Rows of one split, of which the nearest stay."""
        best = np.argsort(distances, kind="stable")[: self.most]
        new = np.column_stack((np.full(len(best), number, dtype=np.int64), rows[best]))
        together = np.concatenate((self.distances, distances[best]))
        order = np.argsort(together, kind="stable")[: self.most]
        self.places = np.concatenate((self.places, new))[order]
        self.distances = together[order]

    def named(self) -> set[tuple[int, int]]:
        """The same places as pairs."""
        return {(split_number, row) for split_number, row in self.places.tolist()}


def _requests(finding: Finding) -> Iterable[str]:
    return (name for name in (finding.request, *(one for each in finding.follows for one in each.requests)) if name)


def _pull_rows(table: pa.Table) -> Rows:
    rows = _where(table, "event", ("request_received",))
    codes = table["code"].to_numpy()[rows]
    nameless = _where_mask(table, "request", {""})[rows]
    found: Rows = rows[np.isin(codes, PULL_CODES) & ~nameless]
    return found


def _distances(table: pa.Table, rows: Rows, focus_ns: int, named: set[str]) -> Rows:
    """How far each row is from the focus, in ns; less than nothing for a request that a finding names."""
    away: Rows = np.abs(table["after_ns"].to_numpy()[rows] - focus_ns)
    if named:
        away[_where_mask(table, "request", named)[rows]] = -1
    return away


def _of_log(table: pa.Table, asked: Iterable[Event]) -> Rows:
    """Events of the logs of the queues that were asked, and what ended connections and sources."""
    topics = {event.get("topic", "") for event in asked}
    logged = _where(table, "event", OF_LOG)
    logged = logged[_where_mask(table, "topic", topics)[logged]]
    found: Rows = np.concatenate((logged, _where(table, "event", ENDS)))
    return found


def _where_mask(table: pa.Table, column: str, wanted: Iterable[str]) -> NDArray[np.bool_]:
    codes, names = coded(table, column)
    asked = set(wanted)
    mask: NDArray[np.bool_] = np.array([name in asked for name in names], dtype=np.bool_)[codes]
    return mask


def _where(table: pa.Table, column: str, wanted: Iterable[str]) -> Rows:
    rows: Rows = np.flatnonzero(_where_mask(table, column, wanted))
    return rows


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


FINDINGS_SHOWN_MAX: Final = 500
EVIDENCE_SHOWN_MAX: Final = 100
"""Most events of a finding that are shown: the last ones."""
BROKEN: Final = {
    NO_LOST_WAKEUP: "a wakeup was lost or late",
    ANSWERED_BY_DEADLINE: "a pull was answered after its deadline",
    ANSWERED_ON_STOP: "a pull was not answered when its broker stopped",
    ANSWERED_ONCE: "a pull was not answered exactly once",
    ANSWER_IS_RIGHT: "an answer was wrong",
    OFFSETS_IN_ORDER: "a log's offsets were out of order",
    VISIBLE_IS_MONOTONE: "a visible end went back",
    COMMIT_NEVER_REGRESSES: "a committed offset went back",
    HOLD_LIMIT_KEPT: "more pulls were held than promised",
    FOLLOWS_THE_LAW: "the specification did not allow a step",
    HELD_AS_ASKED: "a pull was held, or not, against what it asked",
    SEND_IS_KEPT: "an acknowledged message was not kept",
    COMMIT_IS_TOLD: "a committed offset was told wrong",
    EVIDENCE: "the record is damaged",
}
"""The meaning of a broken property."""
LATENCY_NAMES: Final = {"wake_ms": "message visible to pull answered", "late_ms": "deadline to answer"}


@frozen
class Group:
    """Findings of one clause and verdict: those that rest on one line of the contract."""

    clause: str
    verdict: str
    title: str
    findings: list[tuple[int, Finding]]
    """With their numbers."""


def render_html(result: Result, drawn: Drawn | None = None) -> str:
    """The whole page; without `drawn` its timeline has the events of the findings alone."""
    drawn = of_findings(result) if drawn is None else drawn
    shown = picture(result, drawn)
    script = _part("page.js")
    page = _environment().get_template("page.html")
    text = page.render(
        result=result,
        sentence=sentence(result),
        why=why(result),
        groups=groups(result.findings[:FINDINGS_SHOWN_MAX]),
        more=max(len(result.findings) - FINDINGS_SHOWN_MAX, 0) + result.findings_left_out,
        picture=shown,
        is_part=drawn.pulls_in_all > len(shown.bars),
        facts=_facts(result),
        latency_names=LATENCY_NAMES,
        broken=[(name, rate) for name, rate in result.rates.items() if rate.violated],
        evidence=evidence,
        followed_by=followed_by,
        told_of=told_of,
        style=Markup(_part("page.css")),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - the same
        data=Markup(as_data(shown)),  # noqa: S704 - it has none of the letters that HTML looks at
        script_hash=_hash(script),
    )
    return clean(text)


def sentence(result: Result) -> str:
    """The verdict in a sentence."""
    if result.findings:
        worst = worst_of(result)
        said = BROKEN.get(worst.property, f"{worst.property} is broken")
        return f"The history is {result.verdict}: {said if worst.verdict == 'violated' else f'it may be that {said}'}."
    if result.gaps:
        return f"The history is {result.verdict}: {result.gaps[0]['why']}."
    return f"The history is {result.verdict}: {result.requests:,} pulls were looked at, and nothing was found."


def why(result: Result) -> str:
    """The reason behind the sentence; empty if the sentence is complete."""
    if not result.findings:
        return ""
    worst = worst_of(result)
    return f"{worst.topic} / {worst.queue}: {worst.why}."


def worst_of(result: Result) -> Finding:
    """The finding that the page begins with: the first violation, else the first finding."""
    return next((one for one in result.findings if one.verdict == "violated"), result.findings[0])


def groups(findings: Iterable[Finding]) -> list[Group]:
    """The findings by clause and verdict, violations first, then in their own order."""
    found: dict[tuple[str, str], Group] = {}
    for number, one in enumerate(findings):
        title = BROKEN.get(one.property, one.property)
        group = found.setdefault((one.clause, one.verdict), Group(one.clause, one.verdict, title, []))
        group.findings.append((number, one))
    return sorted(found.values(), key=lambda group: group.verdict != "violated")


def evidence(finding: Finding) -> list[tuple[str, str]]:
    """When each event of a finding was, after the first of them, and its line of the record."""
    events = finding.shown()[-EVIDENCE_SHOWN_MAX:]
    start_ns = min((event["after_ns"] for event in events), default=0)
    return [(_moment(event, start_ns), msgspec.json.encode(event).decode()) for event in events]


def _moment(event: Mapping[str, int], start_ns: int) -> str:
    first, last = ((event[name] - start_ns) / 1e6 for name in ("after_ns", "before_ns"))
    return f"+{first:.3f} ms" if last - first < 1 else f"+{first:.1f} to {last:.1f} ms"


def _facts(result: Result) -> list[tuple[str, str]]:
    idle = [name for name in PROPERTIES if not result.judged.get(name)]
    return [
        ("events", f"{result.events:,}"),
        ("queues", f"{result.queues:,}"),
        *((f"{name} judged", f"{share.judged:,} of {share.of:,}") for name, share in result.shares.items()),
        ("not applicable", ", ".join(idle) or "nothing"),
        ("engine", f"{result.engine}, {result.seconds:.1f} s after a start of {result.start_seconds:.1f} s"),
        ("thresholds", ", ".join(f"{name} {value:g}" for name, value in result.thresholds.items())),
    ]


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("longpoll_judge", "show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _part(name: str) -> str:
    return (resources.files("longpoll_judge.show") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """As a content security policy names a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
