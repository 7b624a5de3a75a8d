"""What the whole history says about its own evidence: where each source begins and ends, and what is missing.

A survey is taken of each slice and the surveys are merged; merging is associative and commutative, so neither the order
of the files nor their number matters. Leaves out verdicts on requests: `verdict` makes them with a `Context` from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from attrs import field, frozen
from numpy.typing import NDArray

from longpoll_judge.attendance import (
    Attendance,
    Deletion,
    add,
    are_own,
    attend,
    attendance_gaps,
    field_gaps,
    stops_silently,
)
from longpoll_judge.damage import Damage
from longpoll_judge.holes import NO_HOLES, Holes, Interval, holes_of
from longpoll_judge.result import Gap
from longpoll_judge.schema import INTEGER_LIMIT, coded
from longpoll_judge.source import History
from longpoll_spec.errors import SpecUserError
from longpoll_spec.history import BLACK_BOX, WHITE_BOX
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.policy import policy_named
from longpoll_spec.tables import with_table

KNOWN_EVENTS: Final = frozenset((*BLACK_BOX, *WHITE_BOX, *ACTION_NAMES))
RARE: Final = frozenset({"connection_closed", "lost", "source_stopped", "blocked", "unblocked"})
"""Events that a survey looks at one by one."""
QUERY_CONSUMER_OFFSET: Final = 14
"""The request code that asks for a group's committed offset."""
Integers = NDArray[np.int64]
MS: Final = 1_000_000
CLOCK_STEP_NS: Final = 1_000 * MS
"""An observer tells of events about in the order of time. One that certainly lies so far before an event with a lower
number was told by a clock that was set back; that long an observer may keep an event before it gives it a number."""
DISORDER_NS: Final = 50 * MS
"""What is missing may lie so far from its neighbours in sequence, and further where the source shows it of others."""


class Run(NamedTuple):
    """Sequence numbers first to last, both included, without a hole."""

    first: int
    last: int
    first_after_ns: int = 0
    """`after_ns` of the event that is the first by number."""
    last_before_ns: int = 0
    """`before_ns` of the last."""


class Span(NamedTuple):
    """A source's events in one slice."""

    first: int
    last: int
    """Sequence numbers."""
    after_min_ns: int
    after_max_ns: int
    before_min_ns: int
    before_max_ns: int


@with_table
class SourceSurvey(msgspec.Struct):
    """What one slice, or all of them, show of one source."""

    runs: list[Run] = msgspec.field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    """The latest `after_ns`: the source was certainly watching until then."""
    stopped_ns: int | None = None
    """`after_ns` of its `source_stopped`."""
    lost_count: int = 0
    """How many events the source says it dropped."""
    losses: list[Interval] = msgspec.field(default_factory=list)
    """When these may have happened, as it says."""
    spans: list[Span] = msgspec.field(default_factory=list)
    """One of each slice."""
    holds: int = 0
    """How often a pull was held."""
    steps: int = 0
    """How often, within slices, the clock was set back."""
    step_ns: int = 0
    """By how much at most, as far as that is certain."""
    disorder_ns: int = 0
    """The longest that an event may have come before one with a lower number, within slices."""
    brokers: set[str] = msgspec.field(default_factory=set)
    """The brokers that its events name."""


class Block(NamedTuple):
    """A direction of a connection was, or was no longer, left unread."""

    source: str
    connection: str
    direction: str
    after_ns: int
    before_ns: int
    sequence: int
    begins: bool


@with_table
class Survey(msgspec.Struct):
    """What slices show of their sources, connections and damage."""

    event_count: int = 0
    sources: dict[str, SourceSurvey] = msgspec.field(default_factory=dict)
    closes: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    """(source, connection, after_ns, before_ns) of every connection_closed."""
    blocks: list[Block] = msgspec.field(default_factory=list)
    damages: list[Damage] = msgspec.field(default_factory=list)
    unknown_events: dict[str, int] = msgspec.field(default_factory=dict)
    unplaced_answers: int = 0
    """Answers that name no queue; their requests may."""
    offset_queries: int = 0
    """Requests for a group's committed offset."""
    attendance: Attendance = msgspec.field(default_factory=Attendance)


@frozen
class SourceFacts:
    """What the verdict on a request needs to know of its source."""

    last_ns: int
    stopped_ns: int | None
    holes: Holes = NO_HOLES
    """When something may have happened that it does not tell."""
    is_steady: bool = True
    """Its clock was not seen to be set back."""


UNSEEN: Final = SourceFacts(last_ns=0, stopped_ns=None)
"""Of a name that stands in a dictionary, and in no event."""


@frozen
class Context:
    """What every queue's verdict needs beyond the queue's own events."""

    wake_ns: int
    late_ns: int
    answers_on_stop: bool
    """The policy promises to answer what is held when the broker stops."""
    sources: dict[str, SourceFacts]
    closes: dict[tuple[str, str], Interval]
    """By source and connection: [after_ns, before_ns] of its close."""
    inside: frozenset[str] = frozenset()
    """Sources that stood inside their broker."""
    is_own: bool = False
    """Every policy that the history names is one of this project's own design."""
    stops_silently: bool = False
    """Every policy that it names leaves held pulls unanswered when the broker stops."""
    deletions: tuple[Deletion, ...] = ()
    lawful: frozenset[str] = frozenset()
    """Sources that declare a law: their logs are judged by it, and by nothing else."""
    broker_holes: dict[str, Holes] = field(factory=dict)
    """By broker: when something may have happened to its queues that no source tells."""
    unsteady_brokers: frozenset[str] = frozenset()
    """Brokers of which a source tells whose clock was set back."""
    blocked: dict[tuple[str, str], Holes] = field(factory=dict)
    """By source and connection: when one of its directions was not read."""

    def log_holes(self, broker: str) -> Holes:
        """When something may have happened to the queues of a broker that is not in the record."""
        return self.broker_holes.get(broker, NO_HOLES)

    def holes(self, source: str) -> Holes:
        """When something may have happened that a source does not tell."""
        return self.sources.get(source, UNSEEN).holes


SURVEY_COLUMNS: Final = (
    *("event", "after_ns", "before_ns", "source", "sequence", "broker", "topic", "queue", "code"),
    *("connection", "lost_count", "direction"),
)
"""What a survey looks at."""


def survey_slice(table: pa.Table, damages: list[Damage]) -> Survey:
    """The survey of one slice's events."""
    survey = Survey(event_count=len(table), damages=damages)
    if not len(table):
        return survey
    codes, names = coded(table, "event")
    counts = np.bincount(codes, minlength=len(names))
    survey.unknown_events = {name: int(counts[n]) for n, name in enumerate(names) if name not in KNOWN_EVENTS}
    survey.unknown_events = {name: count for name, count in survey.unknown_events.items() if count}
    survey.attendance = attend(table)
    source_codes, source_names = coded(table, "source")
    brokers, broker_names = coded(table, "broker")
    sequence, after_ns, before_ns = (table[name].to_numpy() for name in ("sequence", "after_ns", "before_ns"))
    is_hold = _are(codes, names, {"hold"})
    for code in np.flatnonzero(np.bincount(source_codes)).tolist():
        mine = source_codes == code if len(source_names) > 1 else slice(None)
        seen = _survey_source(sequence[mine], after_ns[mine], before_ns[mine])
        seen.holds = int(np.count_nonzero(is_hold[mine]))
        seen.brokers = {broker_names[number] for number in np.flatnonzero(np.bincount(brokers[mine])).tolist()} - {""}
        survey.sources[source_names[code]] = seen
    _survey_rare(survey, table, _are(codes, names, RARE))
    is_answer = _are(codes, names, {"answer_sent"})
    survey.unplaced_answers = int(np.count_nonzero(is_answer & (table["queue"].to_numpy() < 0)))
    is_request = _are(codes, names, {"request_received"})
    survey.offset_queries = int(np.count_nonzero(is_request & (table["code"].to_numpy() == QUERY_CONSUMER_OFFSET)))
    return survey


def _are(codes: NDArray[np.int32], names: list[str], wanted: Collection[str]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.array([name in wanted for name in names], dtype=np.bool_)[codes]
    return found


def _survey_rare(survey: Survey, table: pa.Table, is_rare: NDArray[np.bool_]) -> None:
    """Note what few events tell, one by one."""
    fields = ("event", "source", "connection", "after_ns", "before_ns", "sequence", "lost_count", "direction")
    names = [name for name in fields if name in table.column_names]
    for row in table.select(names).take(pa.array(np.flatnonzero(is_rare))).to_pylist():
        seen, interval = survey.sources[row["source"]], (row["after_ns"], row["before_ns"])
        if row["event"] == "lost":
            seen.lost_count += max(row["lost_count"], 1)
            seen.losses.append(interval)
        elif row["event"] == "source_stopped":
            seen.stopped_ns = row["after_ns"]
        elif row["event"] == "connection_closed":
            survey.closes.append((row["source"], row["connection"], *interval))
        else:
            begins = row["event"] == "blocked"
            direction = row.get("direction", "")
            block = Block(row["source"], row["connection"], direction, *interval, row["sequence"], begins)
            survey.blocks.append(block)


def _survey_source(sequence: Integers, after_ns: Integers, before_ns: Integers) -> SourceSurvey:
    if (sequence[1:] < sequence[:-1]).any():
        order = np.argsort(sequence, kind="stable")
        sequence, after_ns, before_ns = sequence[order], after_ns[order], before_ns[order]
    latest_ns = np.maximum.accumulate(after_ns)
    seen = SourceSurvey(
        runs=_runs(sequence, after_ns, before_ns), first_ns=int(after_ns.min()), last_ns=int(latest_ns[-1])
    )
    before_min_ns, before_max_ns = int(before_ns.min()), int(before_ns.max())
    ends = int(sequence[0]), int(sequence[-1])
    seen.spans = [Span(*ends, seen.first_ns, seen.last_ns, before_min_ns, before_max_ns)]
    if len(sequence) > 1:
        back_ns = latest_ns[:-1] - before_ns[1:]
        is_back = back_ns > CLOCK_STEP_NS
        if is_back.any():
            seen.steps = int(np.count_nonzero(is_back & ~np.append(False, is_back[:-1])))
            seen.step_ns = int(back_ns.max())
        seen.disorder_ns = max(int((np.maximum.accumulate(before_ns)[:-1] - after_ns[1:]).max()), 0)
    return seen


def whole_of(seen: SourceSurvey) -> SourceSurvey:
    """The survey of a source with the steps and the disorder from slice to slice added to those within slices."""
    ended = sorted(seen.spans, key=lambda span: span.last)
    latest_ns = list(accumulate((span.after_max_ns for span in ended), max))
    last_before_ns = list(accumulate((span.before_max_ns for span in ended), max))
    lasts = [span.last for span in ended]
    steps, step_ns, disorder_ns = seen.steps, seen.step_ns, seen.disorder_ns
    for span in seen.spans:
        before = bisect_left(lasts, span.first)
        if before > 0:
            back_ns = latest_ns[before - 1] - span.before_min_ns
            steps += back_ns > CLOCK_STEP_NS
            step_ns = max(step_ns, back_ns if back_ns > CLOCK_STEP_NS else 0)
            disorder_ns = max(disorder_ns, last_before_ns[before - 1] - span.after_min_ns)
    return msgspec.structs.replace(seen, steps=steps, step_ns=step_ns, disorder_ns=disorder_ns)


def _runs(sequence: Integers, after_ns: Integers, before_ns: Integers) -> list[Run]:
    """The sorted numbers as runs; a number that stands twice begins a run of its own."""
    breaks = np.flatnonzero(np.diff(sequence) != 1) + 1
    firsts, lasts = np.concatenate(([0], breaks)), np.concatenate((breaks - 1, [len(sequence) - 1]))
    columns = (sequence[firsts], sequence[lasts], after_ns[firsts], before_ns[lasts])
    return [Run(*numbers) for numbers in zip(*(column.tolist() for column in columns), strict=True)]


def merge(surveys: Iterable[Survey]) -> Survey:
    """The survey of all the slices together."""
    whole = Survey()
    unknown: Counter[str] = Counter()
    for part in surveys:
        whole.event_count += part.event_count
        whole.closes += part.closes
        whole.blocks += part.blocks
        whole.damages += part.damages
        whole.unplaced_answers += part.unplaced_answers
        whole.offset_queries += part.offset_queries
        add(whole.attendance, part.attendance)
        unknown.update(part.unknown_events)
        for name, seen in part.sources.items():
            known = whole.sources.get(name)
            whole.sources[name] = seen if known is None else _merge_source(known, seen)
    whole.sources = {name: whole_of(seen) for name, seen in whole.sources.items()}
    whole.unknown_events = dict(unknown)
    return whole


def _merge_source(one: SourceSurvey, other: SourceSurvey) -> SourceSurvey:
    stops = [survey.stopped_ns for survey in (one, other) if survey.stopped_ns is not None]
    return SourceSurvey(
        runs=one.runs + other.runs,
        first_ns=min(one.first_ns, other.first_ns),
        last_ns=max(one.last_ns, other.last_ns),
        stopped_ns=max(stops) if stops else None,
        lost_count=one.lost_count + other.lost_count,
        losses=one.losses + other.losses,
        spans=one.spans + other.spans,
        holds=one.holds + other.holds,
        steps=one.steps + other.steps,
        step_ns=max(one.step_ns, other.step_ns),
        disorder_ns=max(one.disorder_ns, other.disorder_ns),
        brokers=one.brokers | other.brokers,
    )


@frozen
class SequenceFaults:
    """What is wrong with a source's sequence numbers."""

    missing_count: int
    first_missing: int
    repeated_count: int


def sequence_faults(runs: Iterable[Run]) -> SequenceFaults:
    """Compare the numbers seen with 0, 1, 2, ... up to the highest."""
    expected, missing, first_missing, repeated = 0, 0, -1, 0
    for first, last, *_moments in sorted(runs):
        if first > expected:
            missing += first - expected
            first_missing = expected if first_missing < 0 else first_missing
        repeated += max(0, min(last + 1, expected) - first)
        expected = max(expected, last + 1)
    return SequenceFaults(missing, first_missing, repeated)


def context_and_gaps(history: History, survey: Survey, *, wake_ms: float, late_ms: float) -> tuple[Context, list[Gap]]:
    """What the verdicts need, and the evidence that is missing."""
    damages = sorted(history.damages + survey.damages)
    gaps = [Gap("damage", damage.file, damage.count, _damage_text(damage)) for damage in damages]
    facts = {}
    for name, seen in sorted(survey.sources.items()):
        faults = sequence_faults(seen.runs)
        facts[name] = SourceFacts(
            last_ns=seen.last_ns,
            stopped_ns=seen.stopped_ns,
            holes=holes_of(_holes(seen)),
            is_steady=not seen.steps,
        )
        gaps += _source_gaps(name, seen, faults, declared=name in history.declared_sources or bool(history.damages))
    for name, count in sorted(survey.unknown_events.items()):
        gaps.append(Gap("unknown event", name, count, f"{count} events named {name!r}, which this judge does not know"))
    gaps += field_gaps(survey.attendance, history.laws)
    policies = history.policies - {policy for policy, _law in history.laws.values()}
    gaps += attendance_gaps(survey.attendance, history, policies)
    if not survey.event_count:
        gaps.append(Gap("empty", "", 0, "there are no events to judge"))
    context = Context(
        wake_ns=round(wake_ms * 1_000_000),
        late_ns=round(late_ms * 1_000_000),
        answers_on_stop=_answers_on_stop(history.policies),
        sources=facts,
        closes={(source, connection): (after, before) for source, connection, after, before in sorted(survey.closes)},
        inside=frozenset(name for name, seen in survey.attendance.sources.items() if seen.inside),
        is_own=are_own(history.policies),
        stops_silently=stops_silently(history.policies),
        deletions=tuple(sorted(survey.attendance.deletions)),
        lawful=frozenset(history.laws),
        broker_holes=_broker_holes(survey, facts),
        unsteady_brokers=frozenset(
            broker for name, seen in survey.sources.items() if seen.steps for broker in seen.brokers
        ),
        blocked=_blocked(survey.blocks),
    )
    return context, gaps


def _holes(seen: SourceSurvey) -> Iterator[Interval]:
    """When a source may have missed something: as it says itself, as its numbers show, and after its end."""
    slack_ns = seen.disorder_ns + DISORDER_NS
    for after_ns, before_ns in seen.losses:
        yield after_ns - slack_ns, before_ns + slack_ns
    runs = sorted(seen.runs)
    if runs[0].first > 0:
        yield -INTEGER_LIMIT, runs[0].first_after_ns + slack_ns
    last = runs[0]
    for run in runs[1:]:
        if run.first > last.last + 1:
            yield last.last_before_ns - slack_ns, max(run.first_after_ns, last.last_before_ns) + slack_ns
        last = max(last, run, key=lambda one: one.last)
    if seen.stopped_ns is None:
        yield last.last_before_ns - slack_ns, INTEGER_LIMIT


def _broker_holes(survey: Survey, facts: dict[str, SourceFacts]) -> dict[str, Holes]:
    """When something may have happened to a broker's queues that none of its sources tells.

    A source that names no broker may be one of any. What a source without an end missed ends where the next one of the
    same broker begins: that is the next life of its observer.
    """
    found = {}
    for broker in {broker for seen in survey.sources.values() for broker in seen.brokers}:
        mine = {name: seen for name, seen in survey.sources.items() if broker in seen.brokers or not seen.brokers}
        intervals: list[Interval] = []
        for name, seen in mine.items():
            starts = [other.first_ns for other in mine.values() if other.first_ns > seen.last_ns]
            until_ns = min(starts, default=INTEGER_LIMIT)
            holes = facts[name].holes
            ends = zip(holes.starts.tolist(), holes.ends.tolist(), strict=True)
            intervals += [(start, max(min(end, until_ns), start)) for start, end in ends]
        found[broker] = holes_of(intervals)
    return found


def _blocked(blocks: Iterable[Block]) -> dict[tuple[str, str], Holes]:
    """When a direction of each connection was not read; one of which no end is told is not read to the end."""
    open_ns: dict[tuple[str, str, str], int] = {}
    found: dict[tuple[str, str], list[Interval]] = {}
    for block in sorted(blocks, key=lambda one: (one.source, one.sequence)):
        key = (block.source, block.connection, block.direction)
        if block.begins:
            open_ns.setdefault(key, block.after_ns)
        else:
            start_ns = open_ns.pop(key, -INTEGER_LIMIT)
            found.setdefault(key[:2], []).append((start_ns, block.before_ns))
    for key, start_ns in open_ns.items():
        found.setdefault(key[:2], []).append((start_ns, INTEGER_LIMIT))
    return {key: holes_of(intervals) for key, intervals in found.items()}


def _damage_text(damage: Damage) -> str:
    place = f" at byte {damage.position}" if damage.position >= 0 else ""
    return f"{damage.file}{place}: {damage.reason}"


def _source_gaps(name: str, seen: SourceSurvey, faults: SequenceFaults, *, declared: bool) -> list[Gap]:
    gaps = []
    if not declared:
        gaps.append(Gap("undeclared source", name, 1, f"source {name!r} is not in meta.json: its clock is unknown"))
    if seen.lost_count:
        gaps.append(Gap("lost", name, seen.lost_count, f"source {name!r} says that it lost {seen.lost_count} events"))
    if seen.steps:
        how_far = f"by up to {seen.step_ns / 10**9:.1f} s"
        text = f"the clock of source {name!r} was set back, {how_far}: nothing is certain that rests on its moments"
        gaps.append(Gap("clock jump", name, seen.steps, text))
    if faults.missing_count:
        text = f"source {name!r} misses {faults.missing_count} events, the first is sequence {faults.first_missing}"
        gaps.append(Gap("sequence gap", name, faults.missing_count, text))
    if faults.repeated_count:
        text = f"source {name!r} has {faults.repeated_count} sequence numbers more than once"
        gaps.append(Gap("sequence repeated", name, faults.repeated_count, text))
    return gaps


def _answers_on_stop(policies: Iterable[str]) -> bool:
    """Whether every policy named by the meta files is known to answer on stop."""
    known = []
    for text in policies:
        try:
            policy = policy_named(text)
        except SpecUserError:
            return False
        known.append(policy.on_stop == "answer")
    return bool(known) and all(known)
