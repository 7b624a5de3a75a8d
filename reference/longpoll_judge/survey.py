"""What the whole history says about its own evidence: where each source begins and ends, and what is missing.

A survey is taken of each slice and the surveys are merged; merging is associative and commutative, so neither the order
of the files nor their number matters. Leaves out verdicts on requests: `verdict` makes them with a `Context` from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.damage import Damage
from longpoll_judge.result import Gap
from longpoll_judge.schema import coded
from longpoll_judge.source import History
from longpoll_spec.errors import SpecUserError
from longpoll_spec.history import BLACK_BOX, WHITE_BOX
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.policy import policy_named

KNOWN_EVENTS: Final = frozenset((*BLACK_BOX, *WHITE_BOX, *ACTION_NAMES))
QUERY_CONSUMER_OFFSET: Final = 14
"""The request code that asks for a group's committed offset."""
Integers = NDArray[np.int64]
Run = tuple[int, int]
"""Sequence numbers first to last, both included."""


Span = tuple[int, int, int, int]
"""A source's events in one slice: first and last sequence number, least and highest `after_ns`."""
JUMP_NS: Final = 60 * 10**9
"""An observer writes events about in the order of time; one that lies so far back was told by a clock that jumped."""


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
    spans: list[Span] = msgspec.field(default_factory=list)
    """One of each slice."""
    holds: int = 0
    """How often a pull was held."""
    jumps: int = 0
    """How often, within slices, the clock was set back."""


class Survey(msgspec.Struct):
    """What slices show of their sources, connections and damage."""

    event_count: int = 0
    sources: dict[str, SourceSurvey] = msgspec.field(default_factory=dict)
    closes: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    """(source, connection, after_ns, before_ns) of every connection_closed."""
    damages: list[Damage] = msgspec.field(default_factory=list)
    unknown_events: dict[str, int] = msgspec.field(default_factory=dict)
    unplaced_answers: int = 0
    """Answers that name no queue; their requests may."""
    offset_queries: int = 0
    """Requests for a group's committed offset."""


@frozen
class SourceFacts:
    """What the verdict on a request needs to know of its source."""

    last_ns: int
    stopped_ns: int | None
    lossy: bool
    """Events are declared lost, or lines are damaged: a missing event may have happened."""
    gapped: bool
    """Sequence numbers are missing without a declaration."""


UNSEEN: Final = SourceFacts(last_ns=0, stopped_ns=None, lossy=False, gapped=False)
"""Of a name that stands in a dictionary, and in no event."""


@frozen
class Context:
    """What every queue's verdict needs beyond the queue's own events."""

    wake_ns: int
    late_ns: int
    answers_on_stop: bool
    """The policy promises to answer what is held when the broker stops."""
    sources: dict[str, SourceFacts]
    closes: dict[tuple[str, str], Run]
    """By source and connection: [after_ns, before_ns] of its close."""
    lawful: frozenset[str] = frozenset()
    """Sources that declare a law: their logs are judged by it, and by nothing else."""


SURVEY_COLUMNS: Final = (
    *("event", "after_ns", "before_ns", "source", "sequence", "queue", "code", "connection", "lost_count"),
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
    source_codes, source_names = coded(table, "source")
    sequence, after_ns = table["sequence"].to_numpy(), table["after_ns"].to_numpy()
    is_hold = _are(codes, names, {"hold"})
    for code in np.flatnonzero(np.bincount(source_codes)).tolist():
        name = source_names[code]
        mine = source_codes == code if len(source_names) > 1 else slice(None)
        survey.sources[name] = _survey_source(sequence[mine], after_ns[mine])
        survey.sources[name].holds = int(np.count_nonzero(is_hold[mine]))
    is_rare = _are(codes, names, {"connection_closed", "lost", "source_stopped"})
    fields = ["event", "source", "connection", "after_ns", "before_ns", "lost_count"]
    for row in table.select(fields).take(pa.array(np.flatnonzero(is_rare))).to_pylist():
        seen = survey.sources[row["source"]]
        if row["event"] == "lost":
            seen.lost_count += max(row["lost_count"], 1)
        elif row["event"] == "source_stopped":
            seen.stopped_ns = row["after_ns"]
        else:
            survey.closes.append((row["source"], row["connection"], row["after_ns"], row["before_ns"]))
    is_answer = _are(codes, names, {"answer_sent"})
    survey.unplaced_answers = int(np.count_nonzero(is_answer & (table["queue"].to_numpy() < 0)))
    is_request = _are(codes, names, {"request_received"})
    survey.offset_queries = int(np.count_nonzero(is_request & (table["code"].to_numpy() == QUERY_CONSUMER_OFFSET)))
    return survey


def _are(codes: NDArray[np.int32], names: list[str], wanted: set[str]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.array([name in wanted for name in names], dtype=np.bool_)[codes]
    return found


def _survey_source(sequence: Integers, after_ns: Integers) -> SourceSurvey:
    first_ns, last_ns = int(after_ns.min()), int(after_ns.max())
    numbers = np.sort(sequence)
    seen = SourceSurvey(runs=_runs(numbers), first_ns=first_ns, last_ns=last_ns)
    seen.spans = [(int(numbers[0]), int(numbers[-1]), first_ns, last_ns)]
    if last_ns - first_ns > JUMP_NS:
        in_order = after_ns[np.argsort(sequence, kind="stable")]
        back = np.maximum.accumulate(in_order) - in_order > JUMP_NS
        seen.jumps = int(np.count_nonzero(back & ~np.append(False, back[:-1])))
    return seen


def jump_count(seen: SourceSurvey) -> int:
    """How often the source's clock was set back, within slices and from one to those that follow it."""
    ended = sorted(seen.spans, key=lambda span: span[1])
    highest_ns = list(accumulate((span[3] for span in ended), max))
    last_sequences = [span[1] for span in ended]
    jumps = seen.jumps
    for first_sequence, _last, lowest_ns, _highest in seen.spans:
        before = bisect_left(last_sequences, first_sequence)
        jumps += before > 0 and highest_ns[before - 1] - lowest_ns > JUMP_NS
    return jumps


def _runs(sequence: Integers) -> list[Run]:
    """The sorted numbers as runs; a number that stands twice begins a run of its own."""
    breaks = np.flatnonzero(np.diff(sequence) != 1) + 1
    firsts = sequence[np.concatenate(([0], breaks))].tolist()
    lasts = sequence[np.concatenate((breaks - 1, [len(sequence) - 1]))].tolist()
    return list(zip(firsts, lasts, strict=True))


def merge(surveys: Iterable[Survey]) -> Survey:
    """The survey of all the slices together."""
    whole = Survey()
    unknown: Counter[str] = Counter()
    for part in surveys:
        whole.event_count += part.event_count
        whole.closes += part.closes
        whole.damages += part.damages
        whole.unplaced_answers += part.unplaced_answers
        whole.offset_queries += part.offset_queries
        unknown.update(part.unknown_events)
        for name, seen in part.sources.items():
            known = whole.sources.get(name)
            whole.sources[name] = seen if known is None else _merge_source(known, seen)
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
        spans=one.spans + other.spans,
        holds=one.holds + other.holds,
        jumps=one.jumps + other.jumps,
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
    for first, last in sorted(runs):
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
    lines_damaged = bool(survey.damages)
    facts = {}
    for name, seen in sorted(survey.sources.items()):
        faults = sequence_faults(seen.runs)
        facts[name] = SourceFacts(
            last_ns=seen.last_ns,
            stopped_ns=seen.stopped_ns,
            lossy=lines_damaged or seen.lost_count > 0,
            gapped=faults.missing_count > 0,
        )
        gaps += _source_gaps(name, seen, faults, declared=name in history.declared_sources or bool(history.damages))
    for name, count in sorted(survey.unknown_events.items()):
        gaps.append(Gap("unknown event", name, count, f"{count} events named {name!r}, which this judge does not know"))
    if not survey.event_count:
        gaps.append(Gap("empty", "", 0, "there are no events to judge"))
    context = Context(
        wake_ns=round(wake_ms * 1_000_000),
        late_ns=round(late_ms * 1_000_000),
        answers_on_stop=_answers_on_stop(history.policies),
        sources=facts,
        closes={(source, connection): (after, before) for source, connection, after, before in sorted(survey.closes)},
        lawful=frozenset(history.laws),
    )
    return context, gaps


def _damage_text(damage: Damage) -> str:
    place = f" at byte {damage.position}" if damage.position >= 0 else ""
    return f"{damage.file}{place}: {damage.reason}"


def _source_gaps(name: str, seen: SourceSurvey, faults: SequenceFaults, *, declared: bool) -> list[Gap]:
    gaps = []
    if not declared:
        gaps.append(Gap("undeclared source", name, 1, f"source {name!r} is not in meta.json: its clock is unknown"))
    if seen.lost_count:
        gaps.append(Gap("lost", name, seen.lost_count, f"source {name!r} says that it lost {seen.lost_count} events"))
    jumps = jump_count(seen)
    if jumps:
        text = f"the clock of source {name!r} was set back by more than {JUMP_NS // 10**9} s {jumps} times"
        gaps.append(Gap("clock jump", name, jumps, text))
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
