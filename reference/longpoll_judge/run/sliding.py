"""Judges a growing history by its last events, as if its record began with a gap.

The judge treats the time before the kept events as a gap, and expects later events. Therefore a finding that is certain
for the kept events stays certain, and all other findings wait for the judgement of the whole history. Each event is
judged at least twice: with the events before it, and with the events after it. A request without an answer is kept for
longer than any hold. An answered pull is counted once, as soon as no event from before the answer can still arrive.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.keys import request_keys
from longpoll_judge.columns.lookup import BEGINNING, NEVER, are_of
from longpoll_judge.columns.tables import joined, taken
from longpoll_judge.contract.causes import identified
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.observers import DELETE_TOPIC
from longpoll_judge.evidence.source_survey import DISORDER_NS, RecordGaps, Run, Span, gaps_of, union
from longpoll_judge.evidence.survey import Context, Survey, connection_text, context_and_gaps, merge
from longpoll_judge.kernel.gathered import have_request, rows_where
from longpoll_judge.kernel.lives import REQUEST_EVENTS
from longpoll_judge.kernel.pulls import MS, PULL_CODES
from longpoll_judge.kernel.rows import BESIDE, FINDING, Found
from longpoll_judge.kernel.verdict import (
    NOTE_ELSEWHERE,
    NOTE_OPEN,
    NOTE_POPS,
    NOTE_PROPERTIES,
    NOTE_REPEATED,
    NOTE_UNDECIDED,
    Native,
    judge_window,
)
from longpoll_judge.read.schema import coded, compute, fill, integers_of
from longpoll_judge.read.source import History
from longpoll_judge.run.excerpt import OF_CONNECTION, OF_SOURCE, completed, first_by_source
from longpoll_judge.run.tally import Latest, Tally
from longpoll_spec.history import WHITE_BOX

CHECKPOINT: Final = "query-1"
"""The name of the directory with the checkpoint of a Spark query. The number in the name is the version of the
checkpoint's format."""
SPAN_NS: Final = 20_000 * MS
"""How long (ns) events are kept, unless there are too many. The time exceeds the time limit for an answer to a send."""
EVENTS_MAX: Final = 1_000_000
"""The maximum number of events that are kept."""
FRESH_MIN: Final = 200_000
"""The number of new events that start a judgement. Half as many new events as are kept, or `FRESH_NS`, also start it.
"""
FRESH_NS: Final = 2_000 * MS
"""The longest time in ns for which new events wait until they are judged."""
OPEN_NS: Final = 600_000 * MS
"""How long (ns) a request without an answer is kept, which must be longer than any hold."""
SILENT_NS: Final = 10_000 * MS
"""If a source's last event is earlier than the other sources' by more than this (ns), the source counts as stopped."""
FINDINGS_MAX: Final = 1_000
"""The maximum number of findings that are kept; the oldest are dropped first."""
CLOSES_MAX: Final = 20_000
"""The number of closes of connections that are kept, which are the latest ones."""
RARE_MAX: Final = 50_000
KEPT_NOTES: Final = (NOTE_ELSEWHERE, NOTE_POPS, NOTE_PROPERTIES, NOTE_REPEATED, NOTE_UNDECIDED)
"""Notes whose counts only grow. For all other notes, only the last count is known."""
OF_ALL: Final = frozenset({"commit.told.most"})
"""Clauses that depend on all earlier events."""


@define(eq=False)
class Sliding:
    """The last events of a history. Invariant: events in neither `pieces` nor `open` happened before `gone_ns`."""

    wake_ms: float
    late_ms: float
    pieces: list[tuple[pa.Table, int]] = field(factory=list)
    """The kept batches of events, each with the latest time of its events."""
    open: pa.Table = field(factory=lambda: joined([]))
    """Earlier requests without an answer."""
    rare: pa.Table = field(factory=lambda: joined([]))
    """Events on which findings depend although the findings do not name them (`excerpt`)."""
    survey: Survey = field(factory=Survey)
    gone_ns: int = BEGINNING
    counted_ns: int = BEGINNING
    """Pulls that were answered before this time are already counted."""
    fresh: int = 0
    """The number of events that were not judged yet."""
    judged_ns: int = BEGINNING
    """The latest time of the judged events."""
    counts: Tally = field(factory=Tally)
    notes: dict[str, int] = field(factory=dict)
    """For each note's text, its highest count; for the note about pulls that may still be answered, the last count."""
    unsure: int = 0
    """The number of findings that stayed unknown although all events around them were kept."""
    found: Latest[str, Found | Finding] = field(factory=Latest)
    """The certain findings, by name."""
    completed: dict[str, Finding] = field(factory=dict)
    """The certain findings, by name, each with its evidence completed to a history."""

    def add(self, table: pa.Table, survey: Survey, history: History, native: Native | None = None) -> None:
        """Add new events, and judge if there are enough new events."""
        self.survey = _folded(merge([self.survey, survey]))
        if not len(table):
            return
        table = fill(table)
        self.rare = self._with_rare(table)
        last_ns = int(integers_of(table, "before_ns").max())
        self.pieces.append((table, last_ns))
        self.fresh += len(table)
        is_much = self.fresh >= min(FRESH_MIN, self.count // 2) or last_ns >= self.judged_ns + FRESH_NS
        if is_much or self.count < FRESH_MIN:
            self.judge(history, native)

    @property
    def count(self) -> int:
        """The number of kept events."""
        return sum(len(table) for table, _last_ns in self.pieces)

    def tables(self) -> Iterator[pa.Table]:
        """Return the kept events that findings depend on."""
        return (fill(table) for table in (self.rare, self.open, *(piece for piece, _ns in self.pieces)) if len(table))

    def judge(self, history: History, native: Native | None = None) -> None:
        """Judge the kept events, and drop the events that are too old."""
        if not self.pieces:
            return
        whole, _gaps = context_and_gaps(history, self.survey, wake_ms=self.wake_ms, late_ms=self.late_ms)
        context = self._since_gone(whole)
        until_ns = max(self._settled_ns(whole), self.counted_ns)
        events = joined([self.open, *(table for table, _last_ns in self.pieces)])
        counted_ns, self.counted_ns = (self.counted_ns, until_ns), until_ns
        rows = judge_window(events, context, native, counted_ns)
        kinds = pa.array([FINDING, BESIDE])
        is_finding = compute.is_in(rows["kind"], value_set=kinds)
        self._note(rows.filter(is_finding), history, counted_ns)
        others = rows.filter(compute.invert(is_finding))
        is_note = compute.equal(others["kind"], "note")
        noted = Counter[str]()
        for row in others.filter(is_note).to_pylist():
            noted[row["text"]] += row["count"]
        self.notes = {text: max(noted[text], self.notes.get(text, 0)) for text in KEPT_NOTES}
        self.notes[NOTE_OPEN] = noted[NOTE_OPEN]
        self.counts.add(others.filter(compute.invert(is_note)))
        self._forget()

    def _note(self, rows: pa.Table, history: History, counted_ns: tuple[int, int]) -> None:
        """Keep new certain findings, completed to histories, and count the findings that stay uncertain."""
        new: list[Finding] = []
        for kind, text in zip(rows["kind"].to_pylist(), rows["text"].to_pylist(), strict=True):
            one: Found | Finding
            one = msgspec.json.decode(text, type=Found) if kind == FINDING else msgspec.json.decode(text, type=Finding)
            finding = one.finding if isinstance(one, Found) else one
            if finding.verdict == "violated" and finding.clause not in OF_ALL:
                (named,) = identified([finding])
                new += [] if named.id in self.found.values else [named]
                self.found.put(named.id, one, FINDINGS_MAX)
            elif finding.verdict == "unknown":
                self.unsure += counted_ns[0] <= finding.window_end_ms * MS < counted_ns[1]
        self.completed |= {one.id: one for one in completed(new, self.tables, self.survey, history)}
        self.completed = {name: one for name, one in self.completed.items() if name in self.found.values}

    def _forget(self) -> None:
        """Drop the oldest events, except requests that wait for their answers."""
        _table, last_ns = self.pieces[-1]
        self.fresh, self.judged_ns = 0, last_ns
        gone = [self.open]
        while len(self.pieces) > 1 and (self.count > EVENTS_MAX or self.pieces[0][1] < last_ns - SPAN_NS):
            table, gone_ns = self.pieces.pop(0)
            self.gone_ns = max(self.gone_ns, gone_ns)
            gone.append(table)
        self.open = self._still_open(fill(joined(gone)), last_ns - OPEN_NS)

    def _still_open(self, table: pa.Table, since_ns: int) -> pa.Table:
        if not len(table):
            return table
        at_hand = (table, *(piece for piece, _last_ns in self.pieces))
        answered = [request_keys(each, np.flatnonzero(rows_where(each, "answer_sent"))) for each in at_hand]
        asks = rows_where(table, "request_received") & have_request(table)
        asks &= np.isin(integers_of(table, "code"), PULL_CODES) & (integers_of(table, "after_ns") >= since_ns)
        keys = request_keys(table, np.arange(len(table)))
        waiting = np.setdiff1d(keys[asks], np.concatenate(answered))
        codes, names = coded(table, "event")
        return taken(table, np.flatnonzero(np.isin(keys, waiting) & are_of(codes, names, REQUEST_EVENTS)))

    def _with_rare(self, table: pa.Table) -> pa.Table:
        codes, names = coded(table, "event")
        wanted = are_of(codes, names, (*OF_SOURCE, *OF_CONNECTION))
        wanted |= rows_where(table, "request_received") & (integers_of(table, "code") == DELETE_TOPIC)
        inside = {name for name, seen in self.survey.observers.sources.items() if seen.inside}
        told = {*coded(self.rare, "source")[1]} if len(self.rare) else set()
        sources, source_names = coded(table, "source")
        for name in WHITE_BOX if inside - told else ():
            rows = first_by_source(table, np.flatnonzero(rows_where(table, name)))
            wanted[[row for row in rows.tolist() if source_names[sources[row]] not in told]] = True
        found = joined([self.rare, taken(table, np.flatnonzero(wanted))])
        return found if len(found) <= RARE_MAX else joined([found.slice(0, RARE_MAX // 4), found.slice(-RARE_MAX // 2)])

    def _since_gone(self, context: Context) -> Context:
        """Returns the context as if the events before the kept ones were missing, except the open requests."""
        if self.gone_ns == BEGINNING:
            return context
        gone = gaps_of([(BEGINNING, self.gone_ns + self.survey.disorder_ns + DISORDER_NS)])

        def holed(holes: Mapping[str, RecordGaps], names: Collection[str]) -> dict[str, RecordGaps]:
            return {name: union((holes[name], gone)) if name in holes else gone for name in {*holes, *names}}

        facts = {
            name: evolve(fact, holes=union((fact.holes, gone)), own_holes=fact.holes)
            for name, fact in context.sources.items()
        }
        brokers = {*context.broker_holes, *context.life_holes}
        return evolve(
            context,
            sources=facts,
            broker_holes=holed(context.broker_holes, brokers),
            life_holes=holed(context.life_holes, brokers),
        )

    def _settled_ns(self, context: Context) -> int:
        """Returns the time before which no further event can arrive, if the sources continue in order."""
        latest_ns = max((seen.last_ns for seen in self.survey.sources.values()), default=0)
        moments = [
            seen.last_ns - seen.disorder_ns - DISORDER_NS
            for seen in self.survey.sources.values()
            if seen.stopped_ns is None and seen.last_ns >= latest_ns - SILENT_NS
        ]
        return min(moments, default=NEVER) - context.wake_ns

    def tally(self) -> Tally:
        """Returns all counts and findings so far, for a result."""
        tally = Tally(sys.maxsize, counts=Counter(self.counts.counts), highest=dict(self.counts.highest))
        for one in self.found.look():
            if isinstance(one, Found):
                tally.found.setdefault(one.group, []).append(one)
        tally.counts.update({("note", 0, text): count for text, count in self.notes.items() if count})
        return tally

    def beside(self) -> list[Finding]:
        """Returns the findings that belong to no queue's pulls or log."""
        return [one for one in self.found.values.values() if isinstance(one, Finding)]


def _folded(survey: Survey) -> Survey:
    """Reduces a survey to constant size, by merging events in order into one run and one span.

    If a batch's sequence numbers follow those of all earlier batches, the batch is compared with the extremes of these
    batches.
    """
    sources = {
        name: msgspec.structs.replace(seen, runs=_joined(seen.runs), spans=[_span_of(seen.spans)])
        for name, seen in survey.sources.items()
    }
    closes = sorted(survey.closes, key=lambda close: close[2])[-CLOSES_MAX:]
    opens = sorted(survey.opens, key=lambda one: one[2])[-CLOSES_MAX:]
    names = {connection_text(source, connection) for source, connection, *_moments in opens}
    seen_ns = {name: moment for name, moment in survey.seen_ns.items() if name in names}
    return msgspec.structs.replace(survey, sources=sources, closes=closes, opens=opens, seen_ns=seen_ns)


def _joined(runs: list[Run]) -> list[Run]:
    """Join adjacent runs of sequence numbers; runs with repeated numbers stay separate."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and run.first == found[-1].last + 1:
            found[-1] = Run(found[-1].first, run.last, found[-1].first_after_ns, run.last_before_ns)
        else:
            found.append(run)
    return found


def _span_of(spans: list[Span]) -> Span:
    first, last, *_moments = zip(*spans, strict=True)
    moments = [
        join(getattr(span, name) for span in spans)
        for join, name in ((min, "after_min_ns"), (max, "after_max_ns"), (min, "before_min_ns"), (max, "before_max_ns"))
    ]
    return Span(min(first), max(last), *moments)


@frozen
class Limits:
    """The thresholds of a judgement."""

    wake_ms: float
    late_ms: float


@frozen(eq=False)
class SoFar:
    """The results for the events so far."""

    tally: Tally
    beside: list[Finding]
    survey: Survey
    completed: dict[str, Finding]
    """Findings by name, each with its evidence completed to a history."""
    left_out: int = 0
    """The number of findings that were dropped before they could be part of a result."""
    unsure: int = 0
    """The number of findings that stayed unknown."""

    @classmethod
    def of(cls, sliding: Sliding) -> SoFar:
        """Returns the results for the events so far."""
        found = sliding.found
        return cls(sliding.tally(), sliding.beside(), sliding.survey, sliding.completed, found.left_out, sliding.unsure)
