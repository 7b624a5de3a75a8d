"""hold_limit_kept: a broker holds no more pulls at once than the `hold_limit` of its source in meta.json.

Only an observer inside the broker sees held pulls. A pull is certainly held from the end of its `hold`, or of a
traversal's `keep`, to the beginning of the step that removes it from the table. A `take` also ends this interval,
because the pull's state is then unknown, so the count is never too high. Each source has at most one finding, at the
first time with too many pulls. The limit for a single queue is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.lookup import BEGINNING
from longpoll_judge.contract.result import HOLD_LIMIT_KEPT, Finding
from longpoll_judge.evidence.survey import Context, SourceFacts, Survey
from longpoll_judge.kernel.pulls import MS
from longpoll_judge.read.schema import EVENT_SCHEMA, event_dict
from longpoll_judge.read.source import History, events_by_source

BEGINS: Final = ("hold", "keep")
ENDS: Final = ("take", "expire", "run", "stop", "answer_sent")
OTHERS: Final = ("request_received", "recheck", "connection_closed")
Event = dict[str, Any]


def judge_holds(history: History, survey: Survey, context: Context) -> list[Finding]:
    """Returns for each source at most one finding: the source held more pulls at once than its limit allows."""
    crowded = {
        source: limit
        for source, limit in history.hold_limits.items()
        if source in survey.sources and (survey.sources[source].holds > limit or survey.excerpts)
    }
    found = []
    for source, events in events_by_source(history, crowded, EVENT_SCHEMA.names, (*BEGINS, *ENDS, *OTHERS)).items():
        finding = judge_source(events, crowded[source], context.sources[source])
        found += [] if finding is None else [finding]
    return found


@frozen
class _Held:
    """An interval, in nanoseconds, in which a pull was certainly held."""

    begin_ns: int
    end_ns: int
    event: Event
    ends: tuple[Event, ...] = ()
    """Events that may have removed the pull from the table."""


@define
class _Table:
    """The pulls that are certainly held; `begun` maps each of them to the event that put it into the table."""

    begun: dict[str, Event] = field(factory=dict)
    connections: dict[str, str] = field(factory=dict)
    received_ns: dict[str, int] = field(factory=dict)
    """For each request, the time by which the broker had received it. A hold with an earlier time does not count."""
    gone_ns: dict[str, int] = field(factory=dict)
    """For each request, the latest time of the event that removes the pull from the table."""
    closed_ns: dict[str, int] = field(factory=dict)
    held: list[_Held] = field(factory=list)

    def see(self, event: Event) -> None:
        name, request = event["event"], event["request"]
        if event["connection"] and request:
            self.connections.setdefault(request, event["connection"])
        if name == "request_received":
            self.received_ns.setdefault(request, event["before_ns"])
        elif name in BEGINS:
            closed_ns = self.closed_ns.get(self.connections.get(request, ""), BEGINNING)
            if max(self.gone_ns.get(request, BEGINNING), closed_ns) < event["after_ns"]:
                self.begun.setdefault(request, event)
        elif name == "connection_closed":
            self.closed_ns[event["connection"]] = event["before_ns"]
            of_it = [each for each in self.begun if self.connections.get(each) == event["connection"]]
            for each in of_it:
                self.end(each, event)
        elif name != "recheck" or (request in self.begun and _may_find(self.begun[request], event)):
            self.end(request, event)

    def end(self, request: str, event: Event) -> None:
        self.gone_ns[request] = max(self.gone_ns.get(request, BEGINNING), event["before_ns"])
        self.stop(request, event["after_ns"], event)

    def stop(self, request: str, moment_ns: int, *ends: Event) -> None:
        """End the interval in which the pull was certainly held, if it has begun; `ends` are its evidence."""
        begun = self.begun.pop(request, None)
        if begun is None:
            return
        begin_ns = max(begun["before_ns"], self.received_ns.get(request, BEGINNING))
        if begin_ns < moment_ns:
            self.held.append(_Held(begin_ns, moment_ns, begun, ends))


def _may_find(held: Event, recheck: Event) -> bool:
    """Whether a recheck may have seen messages that the pull has not read.

    If the `hold` event and the recheck report the same end, the recheck saw no more messages. If a traversal put the
    pull back, the event reports the end that the traversal saw, so the recheck may have seen more.
    """
    return bool(held["event"] != "hold" or not 0 <= recheck["visible_end"] == held["visible_end"])


def judge_source(events: Iterable[Event], limit: int, facts: SourceFacts) -> Finding | None:
    """Judge the events of one source. After a gap in the record, a pull is no longer certainly held."""
    table = _Table()
    for event in sorted(events, key=lambda event: (event["after_ns"], event["before_ns"], event["sequence"])):
        table.see(event)
    for request in list(table.begun):
        table.stop(request, facts.last_ns)
    certain = _too_many(list(_whole(table.held, facts)), limit) if facts.is_steady else []
    together = certain or _too_many(table.held, limit)
    if not together:
        return None
    shown = sorted((held.event for held in together), key=lambda event: (event["after_ns"], event["sequence"]))
    return Finding(
        property=HOLD_LIMIT_KEPT,
        clause="hold.limit.kept",
        verdict="violated" if certain else "unknown",
        topic=shown[-1]["topic"],
        queue=shown[-1]["queue"],
        request=shown[-1]["request"],
        window_start_ms=shown[0]["after_ns"] / MS,
        window_end_ms=max(held.begin_ns for held in together) / MS,
        why=f"{len(together)} pulls were held at once, and the broker promises to hold at most {limit}",
        evidence=[event_dict(event) for held in together for event in (held.event, *held.ends)],
    )


def _whole(held: list[_Held], facts: SourceFacts) -> Iterator[_Held]:
    """Yields the intervals of certain holding, cut at the next gap of the record, which may hide the interval's end."""
    begins = np.array([each.begin_ns for each in held], dtype=np.int64)
    for each, hole_ns in zip(held, facts.holes.begin_from(begins).tolist(), strict=True):
        yield evolve(each, end_ns=max(min(each.end_ns, hole_ns), each.begin_ns))


def _too_many(held: list[_Held], limit: int) -> list[_Held]:
    """Returns the pulls held at the first time with more pulls than the limit; empty if the limit was kept."""
    count = 0
    for moment_ns, change in sorted(_changes(held)):
        count += change
        if count > limit:
            return [each for each in held if each.begin_ns <= moment_ns < each.end_ns]
    return []


def _changes(held: Iterable[_Held]) -> Iterator[tuple[int, int]]:
    """Yields (time, change of the count); at equal times, ends come before begins."""
    for each in held:
        yield each.begin_ns, 1
        yield each.end_ns, -1
