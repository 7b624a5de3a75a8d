"""Judges a history while it is written, until `stops` returns True.

A short history is judged again each time, by the same code as a complete one. The next judgement begins after a pause
of at least the last one's duration, so at most half of the time goes into judging. The sizes and times of the parts
show new events; without Spark, each byte is read once.

A long history, or one with more findings than a result lists, is judged by its new events (`growing`). Each finding is
reported once. On Spark, a Structured Streaming query judges them (`spark.stream`). The last result always judges the
whole history, so it is the verdict on everything recorded. The complete parts: `growth`. The output: the command.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from attrs import asdict, define, evolve, field

from longpoll_judge.columns.batch import joined
from longpoll_judge.contract.result import Finding, Gap, Result
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.evidence.survey import context_and_gaps, survey_split
from longpoll_judge.read.files import Stamp, absolute
from longpoll_judge.read.growing_history import GrowingHistory, IncrementalRead, stamps_of
from longpoll_judge.read.schema import Damage, fill
from longpoll_judge.read.source import History
from longpoll_judge.run.excerpt import completed
from longpoll_judge.run.incremental.queue_judge import Growing, SoFar
from longpoll_judge.run.incremental.state import WRITTEN_ANEW, Limits, Parts, is_begun
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import Engine, EngineName, Look, added_up, judge_on, open_engine
from longpoll_judge.run.tally import Picked, left_to_the_end, not_told
from longpoll_judge.run.window_sweep import open_spill

if TYPE_CHECKING:
    from longpoll_judge.run.spark.stream import StreamJudge

    Streaming = Callable[[GrowingHistory, Limits, Path | None], AbstractContextManager[StreamJudge]]

PERIOD_S: Final = 0.5
"""How often there is a look for something new."""
LONG_PERIOD_S: Final = 2.0
"""The same of a long history at most: the more comes at once the less an event costs."""
REST_SHARE: Final = 4
"""A look at a long history begins this number of times later after the last one than that took, within these two."""
TELL_S: Final = 1.0
"""How often it is told where a history stands while what is new has not been judged, ..."""
TELL_SHARE: Final = 4
"""... and how many times longer it lasts until the next time than it took."""
TRIES: Final = 5
"""How often a history is judged of which parts change meanwhile."""
WHOLE_EVENTS: Final = 200_000
"""A history with fewer events is judged again each time."""


@define(eq=False)
class Progress:
    """How far a history has been judged, noted by who follows it and asked from other threads."""

    paths: Sequence[Path | str]
    stamps: Mapping[str, Stamp] = field(factory=dict)
    """Of every part at the look that was judged last."""
    looked_s: float = field(factory=time.monotonic)
    """When that look was, by the monotonic clock."""

    def behind(self, now_s: float) -> tuple[float, int]:
        """How long something may have waited to be judged, in seconds, and how many bytes wait; 0 where none do."""
        stamps = stamps_of(self.paths)
        if stamps == self.stamps:
            return 0.0, 0
        now, then = (sum(stamp.size for stamp in each.values()) for each in (stamps, self.stamps))
        return max(now_s - self.looked_s, 0.0), max(now - then, 0)


def follow(
    paths: Iterable[Path | str],
    *,
    engine: EngineName,
    master: str | None,
    conf: Mapping[str, str] | None = None,
    wake_ms: float,
    late_ms: float,
    tell: Callable[[Result], None],
    stops: Callable[[float], bool],
    look: Look | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    whole_events: int = WHOLE_EVENTS,
) -> Result:
    """Judge until `stops`, and call `tell` for each judgement; return the last one, for which there is a `look`.

    `progress` holds the input of the last judgement, for other threads. On Spark, the query of a long history has its
    checkpoint in the directory `checkpoint`, and the next call continues from there. A history with fewer events than
    `whole_events` is judged again each time.

    `stops(seconds)` waits for that long, or until it is time to stop, and returns whether it is.

    Raises `HistoryNotFoundError`, `HistoryChangedError` if parts change faster than they are judged, and
    `SparkUnavailableError`, also if the query cannot use its checkpoint.
    """
    growth = GrowingHistory(sorted({absolute(place) for place in paths}))
    limits = Limits(wake_ms, late_ms)

    def judged(running: Engine, look: Look | None = None, tries: int = TRIES) -> Result:
        begun_s = time.monotonic()
        history = growth.look()
        say, wake_ms, late_ms = (lambda _stage: None), limits.wake_ms, limits.late_ms
        try:
            result = judge_on(running, history, wake_ms=wake_ms, late_ms=late_ms, say=say, look=look)
        except HistoryChangedError:
            if tries == 1:
                raise
            return judged(running, look, tries - 1)
        if progress is not None:
            progress.stamps, progress.looked_s = dict(growth.stamps), begun_s
        return msgspec.structs.replace(result, engine=engine)

    has_law = bool(growth.look().laws)
    checkpoint = None if has_law else checkpoint
    steps = Steps.begun(limits, engine)
    with open_engine(engine, master, conf) as running:
        streaming = _streaming(running)
        if streaming is None or not is_begun(checkpoint):
            with _reading_once(running) as short:
                result = judged(short)
                tell(_counted(result) if has_law else result)
                is_long = False
                while not is_long and not stops(max(PERIOD_S, result.seconds)):
                    if growth.has_grown():
                        result = judged(short)
                        tell(_counted(result) if has_law else result)
                    is_long = (result.events >= whole_events or result.findings_left_out > 0) and not has_law
                if not is_long:
                    return judged(short, look) if look is not None or growth.has_grown() else result
                steps.listing.picked.seen = {finding.id for finding in result.findings}
        if streaming is None:
            _follow_growing(growth, steps, tell, stops, progress)
        else:
            with streaming(growth, limits, checkpoint) as judging:
                _follow_stream(judging, steps.listing, tell, stops, progress)
        return judged(running, look)


def _counted(result: Result) -> Result:
    """The result, with the number of further findings as none of these is reported one by one."""
    return _with_gaps(result, not_told(result.findings_left_out))


def _with_gaps(result: Result, gaps: Sequence[Gap]) -> Result:
    more = [{"clause": gap.clause, **asdict(gap)} for gap in gaps]
    return msgspec.structs.replace(result, gaps=[*result.gaps, *more]) if more else result


def _follow_growing(
    growth: GrowingHistory,
    steps: Steps,
    tell: Callable[[Result], None],
    stops: Callable[[float], bool],
    progress: Progress | None,
) -> None:
    """Judge what is new until it `stops`."""
    arriving = IncrementalRead(growth, threads=os.cpu_count() or 1, ends={})
    while True:
        begun_s = time.monotonic()
        tell_next_s = begun_s + TELL_S
        history, new = arriving.look()
        are_anew = steps.parts.are_anew(growth.stamps, arriving.ends)
        steps.growing.doubt(WRITTEN_ANEW, are_anew)
        steps.parts.expect({part.path: part.end for part in history.splits}, arriving.ends)
        for tables, damages in arriving.read(new):
            steps.add(tables, damages, history)
            telling_s = time.monotonic()
            if telling_s >= tell_next_s:
                tell(steps.result(history))
                told_s = time.monotonic()
                tell_next_s = told_s + max(TELL_S, TELL_SHARE * (told_s - telling_s))
                if stops(0.0):
                    return
        steps.note(arriving.ends)
        if new or are_anew:
            tell(steps.result(history))
        if progress is not None and all(part.end <= arriving.ends.get(part.path, 0) for part in history.splits):
            progress.stamps, progress.looked_s = dict(growth.stamps), begun_s
        took_s = time.monotonic() - begun_s
        period_s = min(max(PERIOD_S, REST_SHARE * took_s), LONG_PERIOD_S)
        if stops(max(period_s - took_s, 0.0)):
            return


def _follow_stream(
    judging: StreamJudge,
    listing: Listing,
    tell: Callable[[Result], None],
    stops: Callable[[float], bool],
    progress: Progress | None,
) -> None:
    """Report what a stream judges until it `stops`."""
    while True:
        looked_s, history, batch = time.monotonic(), judging.growth.look(), judging.look()
        if batch is not None:
            tell(listing.result(batch.so_far, history, batch.complete))
            batch.is_told.set()
        if progress is not None and all(part.end <= judging.ends.get(part.path, 0) for part in history.splits):
            progress.stamps, progress.looked_s = dict(judging.growth.stamps), looked_s
        if stops(PERIOD_S):
            return


Complete = Callable[[list[Finding]], list[Finding]]
"""Returns findings with the evidence of each made a history."""


@define(eq=False)
class Listing:
    """Makes results of the events so far."""

    limits: Limits
    engine: EngineName = "local"
    """The engine that judges, as named in results."""
    picked: Picked = field(factory=Picked)
    shown: dict[tuple[str, str], Finding] = field(factory=dict)
    """By name and sentence, findings whose evidence is a history by itself."""
    begun_s: float = field(factory=time.monotonic)

    def result(self, so_far: SoFar, history: History, complete: Complete) -> Result:
        """The judgement of what has come; what is new in it is listed, or counted as not told."""
        survey = so_far.survey
        limits = {"wake_ms": self.limits.wake_ms, "late_ms": self.limits.late_ms}
        _context, gaps = context_and_gaps(history, survey, **limits)
        gaps += left_to_the_end(
            {
                **so_far.doubts,
                "events of requests that ask for messages from before what is at hand": so_far.far_count,
                "questions for committed offsets, and commits": survey.offset_queries + survey.offset_updates,
            }
        )
        result = added_up(so_far.rows, gaps, survey, history, beside=so_far.beside, pick=self.picked.pick)
        result = _with_gaps(result, not_told(so_far.untold + self.picked.untold))
        fresh = [finding for finding in result.findings if (finding.id, finding.why) not in self.shown]
        self.shown |= {(finding.id, finding.why): finding for finding in complete(fresh)}
        self.shown = {name: self.shown[name] for name in [(each.id, each.why) for each in result.findings]}
        result = msgspec.structs.replace(
            result,
            findings=list(self.shown.values()),
            events=survey.event_count,
            seconds=round(time.monotonic() - self.begun_s, 3),
            engine=self.engine,
            thresholds=limits,
        )
        self.begun_s = time.monotonic()
        return result


@define(eq=False)
class Steps:
    """Judges new events in this process."""

    growing: Growing
    listing: Listing
    parts: Parts = field(factory=Parts)

    @classmethod
    def begun(cls, limits: Limits, engine: EngineName = "local") -> Steps:
        """From the beginning of a history."""
        return cls(Growing(limits.wake_ms, limits.late_ms), Listing(limits, engine))

    def add(self, tables: Sequence[pa.Table], damages: Sequence[Damage], history: History) -> None:
        """Judge what is new."""
        table = joined(tables)
        self.growing.add(table, survey_split(fill(table), list(damages)), history)

    def note(self, ends: Mapping[str, int]) -> None:
        """Note that parts were read up to these ends; a part that was rewritten meanwhile is a doubt."""
        self.growing.doubt(WRITTEN_ANEW, self.parts.note(ends))

    def result(self, history: History) -> Result:
        """See `Listing.result`."""
        growing = self.growing
        complete = partial(completed, tables=growing.tables, survey=growing.survey, history=history)
        return self.listing.result(growing.so_far(history), history, complete)


@contextmanager
def _reading_once(running: Engine) -> Iterator[Engine]:
    """The engine; without Spark one that reads what is whole once, as text takes longer to read than to judge."""
    if not isinstance(running, LocalEngine):
        yield running
        return
    with open_spill() as kept:
        yield evolve(running, kept=kept)


def _streaming(running: Engine) -> Streaming | None:
    """What judges by a stream of Spark's; None on Spark Connect, whose server calls back elsewhere."""
    if isinstance(running, LocalEngine):
        return None
    from longpoll_judge.run.spark.engine import SparkEngine  # noqa: PLC0415 - Spark takes a second to import
    from longpoll_judge.run.spark.session import is_remote  # noqa: PLC0415 - the same
    from longpoll_judge.run.spark.stream import stream_judge  # noqa: PLC0415 - the same

    assert isinstance(running, SparkEngine), "there are two engines"
    return None if is_remote(running.session) else partial(stream_judge, running)
