"""Completes the evidence of a finding to a history that, judged alone, violates the same clause again.

The rules name the events that show a fault. This module adds the events on which these events depend: the beginning and
end of each source, the closes of their connections, deletions of the topic, and an event that shows that a source was
inside its broker. `omitted` events replace the recorded events that the excerpt lacks, so that a gap in the sequence
numbers always means a gap in the original record. Only violations are completed, because an unknown finding often
depends on events that were not recorded.

`kernel.window` formats the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.lookup import Integers
from longpoll_judge.columns.tables import Tables
from longpoll_judge.contract.clause import moment_text
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.evidence.observers import DELETE_TOPIC
from longpoll_judge.evidence.source_survey import Run, SourceSurvey
from longpoll_judge.evidence.survey import OWN, Survey
from longpoll_judge.kernel.logs import MESSAGES
from longpoll_judge.kernel.window import make_window
from longpoll_judge.read.schema import coded, event_dict, integers_of, order_of
from longpoll_judge.read.source import History
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_spec.history import FORMAT_VERSION, WHITE_BOX

RUNS_MAX: Final = 100
"""If a source's record has more runs of sequence numbers than this, the evidence keeps only the runs that contain an
event of the finding."""
OF_SOURCE: Final = ("source_started", "source_stopped", "lost")
OF_CONNECTION: Final = ("connection_closed", "blocked", "unblocked")
BOUNDED: Final = frozenset(
    {"pull.max.most", "pull.next.visible", "pull.found.visible", "pull.found.appended", "pull.hold.at_end"}
)
"""Clauses that depend only on the visible end of a queue at the latest time at which the broker may have read the
store."""
SUBJECT_FIELDS: Final = {
    "request_received": {"offset": "offset", "commit_offset": "commit_offset"},
    "answer_sent": {name: name for name in ("offset_next", "offset_min", "offset_max")} | {"offset": "offset_told"},
    "append": {"queue_offset": "queue_offset"},
    "message_acknowledged": {"queue_offset": "queue_offset"},
    "make_visible": {"visible_end": "visible_end"},
}
"""For each event, maps the fields with offsets to the names of these offsets in a finding."""
Event = dict[str, Any]
Queue = tuple[str, str, int]
"""Broker, topic and number of a queue."""


def with_excerpts(result: Result, tables: Tables, survey: Survey, history: History) -> Result:
    """Returns the result with codes and offsets, and with the evidence of each violation completed to a history."""
    findings, observed = (completed(each, tables, survey, history) for each in (result.findings, result.observations))
    return msgspec.structs.replace(result, findings=findings, observations=observed)


def completed(findings: Sequence[Finding], tables: Tables, survey: Survey, history: History) -> list[Finding]:
    """Returns the findings with codes and offsets, and with the evidence of each violation completed to a history."""
    violated = [one for one in findings if one.verdict == "violated" and not one.clause.startswith(OWN)]
    scene = _look(tables, violated) if violated else Scene()
    # The evidence of a user property is a pull, not a history.
    return [one if one.clause.startswith(OWN) else _completed(one, scene, survey, history) for one in findings]


@define
class Scene:
    """Events of the whole history on which findings depend, although no finding names them."""

    of_source: dict[str, list[Event]] = field(factory=dict)
    of_connection: dict[tuple[str, str], list[Event]] = field(factory=dict)
    deletions: list[Event] = field(factory=list)
    inside: dict[tuple[str, str], Event] = field(factory=dict)
    """For each source and event name, the first event of this name. Only an observer inside a broker records such
    events."""
    ends: dict[Queue, list[End]] = field(factory=dict)
    """For each queue, the times for which the excerpt must show its visible end."""

    def see(self, event: Event) -> None:
        """Add an event if a finding may depend on it."""
        name, source = event["event"], event["source"]
        if name in OF_SOURCE:
            self.of_source.setdefault(source, []).append(event)
        elif name in OF_CONNECTION:
            self.of_connection.setdefault((source, event.get("connection", "")), []).append(event)
        elif name in WHITE_BOX:
            known = self.inside.get((source, name), event)
            self.inside[source, name] = min(event, known, key=lambda one: int(one["sequence"]))
        else:
            self.deletions.append(event)

    def around(self, finding: Finding) -> Iterator[Event]:
        """Yields the events that complete the evidence of a finding."""
        bounds = list(self._bounds(finding))
        yield from bounds
        events = [*finding.evidence, *bounds]
        topics = {(event.get("broker", ""), event.get("topic", "")) for event in events}
        # An event that names no broker is about the broker that its source records.
        topics |= {("", topic) for _broker, topic in topics}
        told_by = {event["source"] for event in events}
        deletions = [
            one
            for one in self.deletions
            if any(one.get("broker", "") == broker and one.get("topic", "") in {"", topic} for broker, topic in topics)
            if one.get("broker") or one["source"] in told_by
        ]
        yield from deletions
        sources = {event["source"] for event in (*events, *deletions)}
        for source in sources:
            yield from self.of_source.get(source, ())
        for pair in {(event["source"], event.get("connection", "")) for event in events}:
            yield from self.of_connection.get(pair, ())
        seen_inside = {event["source"] for event in events if event["event"] in WHITE_BOX}
        for source in sources - seen_inside:
            # If a source records appends, an append is the best evidence that it is inside the broker.
            yield from [self.inside[source, name] for name in WHITE_BOX if (source, name) in self.inside][:1]

    def _bounds(self, finding: Finding) -> Iterator[Event]:
        until_ns = _read_until(finding)
        for end in self.ends.get(_queue_of(finding), ()):
            if end.until_ns == until_ns:
                yield from end.shown()


@define
class End:
    """The events that show how far a queue can have been visible at some time."""

    until_ns: int
    first: Event | None = None
    """The message with the lowest offset in the history. Messages with lower offsets are older than the history."""
    highest: Event | None = None
    """The highest visible end that the queue may have reached by this time."""
    later: Event | None = None
    """The first visible end after this time, if no earlier end is recorded."""

    def see(self, event: Event) -> None:
        """Update the three events with another event of the queue's log."""
        if event["event"] != "make_visible":
            if event.get("queue_offset", -1) >= 0:
                self.first = min(self.first or event, event, key=lambda one: (one["queue_offset"], *order_of(one)))
        elif event["after_ns"] <= self.until_ns:
            self.highest = max(self.highest or event, event, key=lambda one: one.get("visible_end", -1))
        else:
            self.later = min(self.later or event, event, key=order_of)

    def shown(self) -> Iterator[Event]:
        """Yields the events that show the end."""
        yield from (event for event in (self.first, self.highest or self.later) if event is not None)


def _queue_of(finding: Finding) -> Queue:
    return finding.evidence[0].get("broker", ""), finding.topic, finding.queue


def _read_until(finding: Finding) -> int | None:
    """Returns the latest time of the read if the finding depends on what was visible then; else None."""
    if finding.clause not in BOUNDED:
        return None
    ends = ("hold", "answer_sent") if finding.clause == "pull.hold.at_end" else ("answer_sent",)
    return min(int(one["before_ns"]) for one in finding.evidence if one["event"] in ends)


def _look(tables: Tables, findings: Iterable[Finding]) -> Scene:
    """Read every split once, and collect the events that the findings depend on."""
    events = [event for finding in findings for event in finding.evidence]
    connections = {event.get("connection", "") for event in events}
    scene = Scene()
    for finding in findings:
        until_ns = _read_until(finding)
        if until_ns is not None:
            scene.ends.setdefault(_queue_of(finding), []).append(End(until_ns))
    for table in tables():
        codes, names = coded(table, "event")
        kinds = {name: codes == code for code, name in enumerate(names)}
        nothing = np.zeros(len(table), dtype=np.bool_)
        wanted = np.logical_or.reduce([nothing, *(kinds.get(name, nothing) for name in OF_SOURCE)])
        gone, gone_names = coded(table, "connection")
        theirs = np.array([name in connections for name in gone_names], dtype=np.bool_)[gone]
        wanted |= theirs & np.logical_or.reduce([nothing, *(kinds.get(name, nothing) for name in OF_CONNECTION)])
        wanted |= kinds.get("request_received", nothing) & (integers_of(table, "code") == DELETE_TOPIC)
        firsts = [first_by_source(table, np.flatnonzero(kinds[name])) for name in WHITE_BOX if name in kinds]
        rows = np.concatenate((np.flatnonzero(wanted), *firsts))
        for row in table.take(pa.array(rows, pa.int64())).to_pylist():
            scene.see(event_dict(row))
        if scene.ends:
            _look_at_ends(table, scene)
    return scene


def _look_at_ends(table: pa.Table, scene: Scene) -> None:
    events = make_window(table)
    for number, queue in enumerate(events.names):
        for end in scene.ends.get(queue, ()):
            moved = events.rows_of_queue("make_visible", number)
            early = moved[events.integers("after_ns", moved) <= end.until_ns]
            logged = np.concatenate([events.rows_of_queue(name, number) for name in MESSAGES])
            logged = logged[events.integers("queue_offset", logged) >= 0]
            lowest = logged[np.argsort(events.integers("queue_offset", logged), kind="stable")[:1]]
            highest = early[np.argsort(-events.integers("visible_end", early), kind="stable")[:1]]
            later = moved[events.integers("after_ns", moved) > end.until_ns][:1]
            for event in events.evidence([*lowest.tolist(), *highest.tolist(), *later.tolist()]):
                end.see(event)


def first_by_source(table: pa.Table, rows: Integers) -> Integers:
    """Returns, of the given rows, each source's row with the lowest sequence number."""
    order = np.argsort(integers_of(table, "sequence")[rows], kind="stable")
    sources, _names = coded(table, "source")
    return rows[order][np.unique(sources[rows][order], return_index=True)[1]]


def _completed(finding: Finding, scene: Scene, survey: Survey, history: History) -> Finding:
    evidence = finding.evidence
    if finding.verdict == "violated":
        # Keep all events that the rule named, because a repeated event may be the fault. Add any further event only
        # once.
        shown = list(evidence)
        shown += (event for event in scene.around(finding) if event not in evidence)
        shown = [event for place, event in enumerate(shown) if place < len(evidence) or event not in shown[:place]]
        left_out = [
            event for name in {one["source"] for one in shown} for event in _omitted(finding, name, shown, survey)
        ]
        evidence = sorted((*shown, *left_out), key=order_of)
    told = _offsets(finding)
    tags = [one.get("tag", "") for one in finding.evidence if one.get("queue_offset") in finding.messages[:1]]
    own = [event for event in finding.evidence if finding.request and event.get("request") == finding.request]
    return msgspec.structs.replace(
        finding,
        evidence=evidence,
        tag=tags[0] if tags else "",
        offsets=told,
        time=moment_text(finding.window_start_ms * 1_000_000),
        group=next((event["group"] for event in own if event.get("group")), ""),
        connection=next((event["connection"] for event in own if event.get("connection")), ""),
        codes=_codes(own),
        meta=_meta(evidence, history),
    )


def _codes(own: Iterable[Event]) -> dict[str, str]:
    found: dict[str, str] = {}
    kinds: dict[str, tuple[str, type[RequestCode | ResponseCode]]] = {
        "request_received": ("request", RequestCode),
        "answer_sent": ("answer", ResponseCode),
    }
    for event in own:
        if event["event"] in kinds and event.get("code", -1) >= 0:
            name, codes = kinds[event["event"]]
            known = {int(code): code.name for code in codes}
            found.setdefault(name, f"{event['code']} {known.get(event['code'], '')}".strip())
    return found


def _offsets(finding: Finding) -> dict[str, int]:
    """Returns the offsets in the request at fault and in its answer, or in the log if the log is at fault."""
    found: dict[str, int] = {}
    for event in finding.evidence:
        names = SUBJECT_FIELDS.get(event["event"], {})
        if not finding.request or event.get("request") == finding.request:
            found |= {told: event[name] for name, told in names.items() if name in event}
    return found


@frozen
class _Piece:
    """A range of recorded sequence numbers that the evidence omits, and the times of their events."""

    first: int
    last: int
    after_ns: int
    before_ns: int


def _omitted(finding: Finding, source: str, shown: Iterable[Event], survey: Survey) -> Iterator[Event]:
    """Yields `omitted` events for all recorded events of a source that are not in the evidence."""
    mine = sorted((event for event in shown if event["source"] == source), key=lambda event: int(event["sequence"]))
    seen = survey.sources.get(source)
    for piece in _pieces(mine, seen) if seen is not None else ():
        yield {
            "event": "omitted",
            "after_ns": piece.after_ns,
            "before_ns": max(piece.before_ns, piece.after_ns),
            "source": source,
            "sequence": piece.first,
            "lost_count": piece.last - piece.first + 1,
            "cause": finding.clause,
        }


def _pieces(shown: list[Event], seen: SourceSurvey) -> Iterator[_Piece]:
    """Yields the ranges of sequence numbers between the events in the evidence, within each run of the source."""
    runs = joined_runs(seen.runs)
    last_run = runs[-1]
    if len(runs) > RUNS_MAX:
        runs = [run for run in runs if any(run.first <= event["sequence"] <= run.last for event in shown)]
    for run in runs:
        first, after_ns = run.first, run.first_after_ns
        for event in shown:
            number = event["sequence"]
            if run.first <= number <= run.last:
                if first < number:
                    yield _Piece(first, number - 1, after_ns, event["before_ns"])
                first, after_ns = number + 1, event["after_ns"]
        if first <= run.last:
            # The last run lasts until the source was last active, because the judge looked for missing events until
            # then.
            until_ns = seen.last_ns if run is last_run else after_ns
            yield _Piece(first, run.last, max(after_ns, until_ns), run.last_before_ns)


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """Returns the runs of a source; runs of different splits that touch or overlap are joined."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and run.first <= found[-1].last + 1:
            if run.last > found[-1].last:
                found[-1] = Run(found[-1].first, run.last, found[-1].first_after_ns, run.last_before_ns)
        else:
            found.append(run)
    return found


def _meta(evidence: Iterable[Event], history: History) -> dict[str, Any]:
    """Returns the `meta.json` for the evidence, whose times are already on the common clock."""
    names = sorted({event["source"] for event in evidence} & history.sources.keys())
    meta: dict[str, Any] = {"format_version": FORMAT_VERSION, "sources": []}
    for name in names:
        source = {"name": name, "clock": history.sources[name].clock}
        limit = history.sources[name].hold_limit
        meta["sources"].append(source | ({"hold_limit": limit} if limit >= 0 else {}))
        policy = history.policy_of.get(name, "")
        meta |= {"policy": policy} if policy else {}
        if name in history.laws:
            meta["law"] = msgspec.to_builtins(history.laws[name][1])
    return meta
