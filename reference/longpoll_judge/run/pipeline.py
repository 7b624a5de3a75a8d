"""Judges a history: finds it, surveys it, judges its queues and adds up the results. The engine is `local` or `spark`.

`show.report` and the command show the result.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs
import msgspec
import pyarrow as pa
from attrs import define

from longpoll_judge.conformance import judge_conformance
from longpoll_judge.contract.causes import Cause, alone, finding_order, identified, told_once
from longpoll_judge.contract.clause import NOTE_REFUSED, are_many_refused, moment_text
from longpoll_judge.contract.result import (
    ANSWERED_BY_DEADLINE,
    COMMIT_IS_TOLD,
    COMMIT_NEVER_REGRESSES,
    FOLLOWS_THE_LAW,
    HOLD_LIMIT_KEPT,
    MESSAGE_IS_DELIVERED,
    NO_LOST_WAKEUP,
    OFFSETS_IN_ORDER,
    PROPERTIES,
    SEND_IS_KEPT,
    VISIBLE_IS_MONOTONE,
    Finding,
    Gap,
    Rate,
    Result,
    Share,
    overall,
)
from longpoll_judge.evidence.generations import RESTART_NS
from longpoll_judge.evidence.source_survey import gaps_of
from longpoll_judge.evidence.survey import Context, OwnProperty, Survey, context_and_gaps, merge
from longpoll_judge.kernel.case import PULLS
from longpoll_judge.kernel.commits import COMMITS, OFFSETS
from longpoll_judge.kernel.hold_limit import judge_holds
from longpoll_judge.kernel.pops import POP_WAKES, POPS
from longpoll_judge.kernel.promptness import percentiles
from longpoll_judge.kernel.rows import BESIDE, ENDED, LEFT_OUT, LEFT_OUT_BESIDE, Found
from longpoll_judge.kernel.sends import SENDS
from longpoll_judge.kernel.user_properties import name_of
from longpoll_judge.kernel.verdict import NOTE_PROPERTIES
from longpoll_judge.read.source import History, InputSplit, find
from longpoll_judge.run.excerpt import with_excerpts
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.tally import FINDINGS_MAX, Tally

EngineName = Literal["spark", "local"]
WAKE_MS: Final = 100.0
LATE_MS: Final = 50.0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Reading(Protocol):
    """A history that an engine reads."""

    def surveys(self) -> Iterable[Survey]:
        """Returns the survey of every split, in order. Call this first, and only once."""
        ...

    def tables(self) -> Iterator[pa.Table]:
        """Returns the events of every split, with all columns of `EVENT_SCHEMA`."""
        ...

    def verdicts(self, context: Context) -> Iterable[pa.Table]:
        """Returns the result rows of every window (`kernel.rows`), in any order."""
        ...


class Engine(Protocol):
    """An engine that reads splits and judges windows, in this process or on Spark."""

    def read(self, splits: Sequence[InputSplit]) -> AbstractContextManager[Reading]:
        """Read the splits; cached data is released at the end of the block."""
        ...


def judge(
    paths: Iterable[Path | str] | History,
    *,
    engine: EngineName = "spark",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
    wake_ms: float = WAKE_MS,
    late_ms: float = LATE_MS,
    properties: Sequence[OwnProperty] = (),
    say: Callable[[str], None] = lambda _text: None,
) -> Result:
    """Judge the histories under the paths as one history. `run.spark.frames` judges the events of a DataFrame.

    Args:
        paths: Directories, or URIs such as `s3a://bucket/history`; or a history that was already found.
        engine: `spark`, or `local` for this process alone.
        master: A Spark master, or `sc://HOST:PORT`; see `longpoll_judge.run.spark.session.open_cluster`.
        conf: Further settings of Spark.
        session: The caller's own Spark session, which stays open.
        wake_ms: How long after a message became visible a held pull may be answered.
        late_ms: How long after its deadline a pull may be answered.
        properties: The caller's additional properties (`longpoll_judge.kernel.user_properties`).
        say: Called with the name of each stage.

    Raises `HistoryNotFoundError` and `SparkUnavailableError`.
    """
    history = paths if isinstance(paths, History) else find(paths)
    say("starting Spark" if engine == "spark" else "reading the history")
    begun = time.monotonic()
    with open_engine(engine, master, conf, session) as running:
        start_seconds = time.monotonic() - begun
        result = judge_on(running, history, wake_ms=wake_ms, late_ms=late_ms, say=say, properties=properties)
    return msgspec.structs.replace(result, engine=engine, start_seconds=round(start_seconds, 3))


@contextmanager
def open_engine(
    engine: EngineName,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
) -> Iterator[Engine]:
    """Open the named engine for a block; raises `SparkUnavailableError`."""
    if engine == "local":
        yield LocalEngine(threads=os.cpu_count() or 1)
        return
    from longpoll_judge.run.spark import engine as spark  # noqa: PLC0415 - Spark takes a second to import

    with spark.open_engine(master, conf, session) as running:
        yield running


def judge_on(
    engine: Engine,
    history: History,
    *,
    wake_ms: float,
    late_ms: float,
    say: Callable[[str], None],
    properties: Sequence[OwnProperty] = (),
) -> Result:
    """Judge a history on an engine that is already running."""
    begun = time.monotonic()
    say(f"surveying {len(history.splits)} splits")
    with engine.read(history.splits) as reading:
        survey = merge(reading.surveys())
        context, gaps = context_and_gaps(history, survey, wake_ms=wake_ms, late_ms=late_ms)
        context = attrs.evolve(context, own=tuple(properties))
        say(f"judging {survey.event_count} events")
        tally = Tally()
        for rows in reading.verdicts(context):
            tally.add(rows)
        counts = _counts_of(survey, history) | {name_of(own): 0 for own in properties}
        others = Others(judged=counts, findings=beside_of(tally))
        gaps += _judge_beside(history, survey, context, others)
        asked = [finding for finding in others.findings if context.asks(finding.clause)]
        others.findings = [finding for finding in asked if finding.verdict != "observed"]
        others.observed = [finding for finding in asked if finding.verdict == "observed"]
        added_up = _add_up(tally, others, gaps)
        observed, _beyond = listed(others.observed)
        named = msgspec.structs.replace(
            added_up, findings=identified(added_up.findings), observations=identified(observed)
        )
        result = with_excerpts(named, reading.tables, survey, history)
        return msgspec.structs.replace(
            result,
            notes=[*restart_notes(context), *result.notes],
            events=survey.event_count,
            seconds=round(time.monotonic() - begun, 3),
            thresholds={"wake_ms": wake_ms, "late_ms": late_ms},
        )


RESTARTS_TOLD: Final = 5
"""The maximum number of restarts that get a note each. If there are more, all share one note."""


def between(start_ns: int, end_ns: int) -> str:
    """Format two Unix times in ns as an interval in UTC."""
    return f"between {moment_text(start_ns)} and {moment_text(end_ns)}"


def restart_notes(context: Context) -> list[dict[str, Any]]:
    """Returns a note for each interval in which outside observers show that a broker may have been restarted.

    If there are more than `RESTARTS_TOLD` restarts, they share one note, because a broker whose only client connects
    rarely has no connection most of the time. The notes do not change the verdict, but explain why the judge tolerates
    the loss of data that a kill may cause.
    """
    # Join intervals that are less than `RESTART_NS` apart, because clients' failed connection attempts divide a
    # restart.
    times = sorted(
        (start_ns, end_ns - RESTART_NS, broker or "without a name")
        for broker, gaps in context.restarts.items()
        for start_ns, end_ns in gaps_of((start_ns, end_ns + RESTART_NS) for start_ns, end_ns in gaps)
    )
    notes = [
        Gap("restart", broker, 1, f"the broker {broker} restarted, or had no client, {between(start_ns, end_ns)}")
        for start_ns, end_ns, broker in times[:RESTARTS_TOLD]
    ]
    if more := times[RESTARTS_TOLD:]:
        why = f"{len(more)} more restarts, or times without a client, {between(more[0][0], more[-1][1])}"
        notes.append(Gap("restart", "", len(more), why))
    return [{"clause": note.clause, **attrs.asdict(note)} for note in notes]


Pick = Callable[[list[Finding]], tuple[list[Finding], int]]
"""A function that returns the listed findings in order, and the number of unlisted findings."""


def added_up(
    tally: Tally, gaps: list[Gap], survey: Survey, history: History, *, beside: Iterable[Finding], pick: Pick
) -> Result:
    """Returns the result from the rows of all queues and from `beside`, the findings that belong to no queue's rows."""
    others = Others(judged=_counts_of(survey, history), findings=list(beside))
    return _add_up(tally, others, gaps, pick)


@define
class Others:
    """The results that are not about a single queue."""

    judged: dict[str, int]
    """For each property, the number of judged events."""
    findings: list[Finding] = attrs.field(factory=list)
    observed: list[Finding] = attrs.field(factory=list)
    steps: Share | None = None
    """The number of judged steps of declared specifications."""


def beside_of(tally: Tally) -> list[Finding]:
    """Returns the findings of kind `beside`, which belong to no queue's pulls or log."""
    return [msgspec.json.decode(text, type=Finding) for kind, _bucket, text in tally.counts if kind == BESIDE]


def _judge_beside(history: History, survey: Survey, context: Context, others: Others) -> list[Gap]:
    """Judge declared specifications and promised hold limits, which only few histories have; returns the gaps."""
    gaps: list[Gap] = []
    if history.laws:
        found, unknown_laws, others.steps = judge_conformance(history, context)
        others.judged[FOLLOWS_THE_LAW] = others.steps.judged
        others.findings += found
        gaps += unknown_laws
    others.findings += judge_holds(history, survey, context)
    return gaps


def _counts_of(survey: Survey, history: History) -> dict[str, int]:
    """Returns, for each property of whole logs or sources, the number of events to which it applied."""
    limited = [seen.holds for name, seen in survey.sources.items() if name in history.hold_limits]
    logged = survey.observers.acknowledged + survey.observers.appended
    return {
        OFFSETS_IN_ORDER: logged,
        VISIBLE_IS_MONOTONE: survey.observers.moved,
        HOLD_LIMIT_KEPT: sum(limited),
        MESSAGE_IS_DELIVERED: survey.observers.identified,
        COMMIT_IS_TOLD: survey.offset_updates,
    }


def _add_up(tally: Tally, others: Others, gaps: list[Gap], pick: Pick | None = None) -> Result:
    """Returns the result from the rows of all windows and the results that belong to no window."""
    counts: Counter[tuple[str, str]] = Counter()
    buckets: dict[str, Counter[int]] = {"wake": Counter(), "late": Counter()}
    for (kind, bucket, text), count in tally.counts.items():
        if kind in buckets:
            buckets[kind][bucket] += count
        else:
            counts[kind, text] += count
    found = {group: sorted(each, key=attrgetter("order")) for group, each in tally.found.items()}
    by_queue = (Cause(one.finding, one.keys) for group in found.values() for one in group)
    findings, left_out = (pick or listed)(told_once([*by_queue, *alone(others.findings)]))
    left_out += sum(count for (kind, _text), count in counts.items() if kind in {LEFT_OUT, LEFT_OUT_BESIDE})
    notes = sorted((text, count) for (kind, text), count in counts.items() if kind == "note")
    for what in (PULLS, POPS, SENDS, OFFSETS):
        refused, asked = counts["refused", what], counts["asked", what]
        if are_many_refused(refused, asked):
            notes.append((NOTE_REFUSED.format(asked, what), refused))
    busy = {text: count for (kind, text), count in counts.items() if kind == "busy"}
    starved = sum(count for text, count in busy.items() if count > counts["served", text])
    if starved:
        notes.append(("pulls found the broker busy, more than were read of the same group and queue", starved))
    limits = [Gap("not judged", "", count, f"{count} {text}") for text, count in notes if text == NOTE_PROPERTIES]
    gaps = gaps + [Gap("not judged", "", count, f"{count} {text}") for text, count in notes if text != NOTE_PROPERTIES]
    missing = sorted((text, count) for (kind, text), count in counts.items() if kind == "missing" and count)
    gaps += [Gap("field missing", text, count, f"{count} events: {text}") for text, count in missing]
    gaps += [Gap("not judged", "", 0, text) for text in sorted(text for kind, text in counts if kind == ENDED)]
    shares = {PULLS: Share(counts["judged", PULLS], counts[PULLS, ""])}
    shares |= {name: Share(counts["share", name], counts["share_of", name]) for name in (SENDS, COMMITS)}
    if counts["share_of", POPS]:
        shares[POPS] = Share(counts["share", POPS], counts["share_of", POPS])
    shares |= {"steps": others.steps} if others.steps is not None else {}
    judged = {
        name: counts["judged", name] + others.judged.get(name, 0)
        for name in {**dict.fromkeys(PROPERTIES), **others.judged}
    }
    told = shares[COMMITS].judged
    for name, count in ((SEND_IS_KEPT, shares[SENDS].judged), (COMMIT_NEVER_REGRESSES, told), (COMMIT_IS_TOLD, told)):
        judged[name] += count
    is_told = any(gap.kind in {"empty", "unknown law"} for gap in gaps)
    counted = shares["pulls"].judged, counts["share", POPS], shares["commits"].judged, judged[FOLLOWS_THE_LAW]
    if not (is_told or any(counted)):
        text = "no pull, no pop, no query of a committed offset and no step of a specification could be judged"
        gaps.append(Gap("nothing judged", "", 0, text))
    return Result(
        verdict=overall(findings, gaps),
        events=0,
        queues=sum(count > 0 for (kind, _text), count in counts.items() if kind == "queue"),
        requests=counts[PULLS, ""],
        seconds=0.0,
        start_seconds=0.0,
        engine="",
        findings=findings,
        findings_left_out=left_out,
        gaps=[{"clause": gap.clause, **attrs.asdict(gap)} for gap in gaps],
        notes=[{"clause": gap.clause, **attrs.asdict(gap)} for gap in limits],
        latency={
            "wake_ms": percentiles(buckets["wake"], tally.highest.get("wake_max", 0)),
            "late_ms": percentiles(buckets["late"], tally.highest.get("late_max", 0)),
        },
        thresholds={},
        shares=shares,
        judged=judged,
        rates={
            NO_LOST_WAKEUP: _rate(NO_LOST_WAKEUP, buckets["wake"], found, counts),
            ANSWERED_BY_DEADLINE: _rate(ANSWERED_BY_DEADLINE, buckets["late"], found, counts),
        }
        | ({POP_WAKES: _pop_rate(counts)} if counts["share_of", POPS] else {}),
    )


def _rate(
    name: str, measured: Counter[int], found: Mapping[str, Sequence[Found]], counts: Counter[tuple[str, str]]
) -> Rate:
    """Returns how often a property about time was certainly violated, also unlisted, and how often it was checked."""
    title = f"{name} violated "
    violated = sum(len(group) for text, group in found.items() if text.startswith(title))
    violated += sum(count for (kind, text), count in counts.items() if kind == LEFT_OUT and text.startswith(title))
    return Rate(violated, max(violated, measured.total() + counts["missed", name]))


def _pop_rate(counts: Mapping[tuple[str, str], int]) -> Rate:
    """Returns how often a pop was certainly not woken in time, out of all pops that a message should have woken."""
    violated = counts["unwoken", ""]
    return Rate(violated, max(violated, counts["woken", ""]))


def listed(findings: Iterable[Finding]) -> tuple[list[Finding], int]:
    """Returns the earliest findings of each queue, property and verdict, in order, and the number of other findings."""
    kept: list[Finding] = []
    counts: Counter[tuple[object, ...]] = Counter()
    left_out = 0
    for finding in sorted(findings, key=finding_order):
        group = finding.property, finding.verdict, finding.topic, finding.queue
        counts[group] += 1
        if counts[group] <= FINDINGS_MAX:
            kept.append(finding)
        else:
            left_out += 1 + sum(each.count for each in finding.follows)
    return kept, left_out
