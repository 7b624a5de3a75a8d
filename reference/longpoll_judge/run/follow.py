"""Judges a history while it is written, until `stops` returns True.

A short history is judged as a whole each time, by the same code as a complete history. The next judgement begins after
a pause that is at least as long as the last judgement, so judging takes at most half of the time. A long history, or a
history with more findings than a result lists, is judged by its last events (`sliding`), in this process or as a
Structured Streaming query (`spark.stream`). Each finding is reported once. The last result is always a judgement of the
whole history, so it is the verdict on all recorded events. `read.growing_history` finds the complete parts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import asdict, define, field

from longpoll_judge.columns.tables import joined
from longpoll_judge.contract.result import Gap, Result
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.evidence.survey import context_and_gaps, survey_split
from longpoll_judge.read.files import Stamp, absolute
from longpoll_judge.read.growing_history import GrowingHistory, IncrementalRead, stamps_of
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import History
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import Engine, EngineName, added_up, judge_on, open_engine, restart_notes
from longpoll_judge.run.sliding import CHECKPOINT, Limits, Sliding, SoFar
from longpoll_judge.run.tally import Picked, left_to_the_end, not_told

if TYPE_CHECKING:
    from longpoll_judge.run.spark.stream import StreamJudge

    Streaming = Callable[[GrowingHistory, Limits, Path | None], AbstractContextManager[StreamJudge]]

PERIOD_S: Final = 0.5
"""The time between two checks for new events, in seconds."""
LONG_PERIOD_S: Final = 2.0
"""The longest time between two checks of a long history, in seconds. This time exceeds `PERIOD_S`, because large
batches cost less per event."""
REST_SHARE: Final = 4
"""The pause after a check of a long history is the check's duration times this, between `PERIOD_S` and `LONG_PERIOD_S`.
"""
TRIES: Final = 5
"""The maximum number of attempts to judge a history whose parts change while it is judged."""
WHOLE_EVENTS: Final = 200_000
"""A history with fewer events is judged as a whole each time."""
UNSURE: Final = "requests and messages about which the last events leave a doubt"


@define(eq=False)
class Progress:
    """How far a history has been judged. The thread that follows the history writes it, and other threads read it."""

    paths: Sequence[Path | str]
    stamps: Mapping[str, Stamp] = field(factory=dict)
    """The stamp of every part at the check that found the last judged events."""
    looked_s: float = field(factory=time.monotonic)
    """When the follower last checked for new events, in seconds of the monotonic clock."""

    def behind(self, now_s: float) -> tuple[float, int]:
        """Return the longest time that unjudged events may have waited, in seconds, and their size in bytes.

        The time is 0 if there are no unjudged events.
        """
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
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    whole_events: int = WHOLE_EVENTS,
) -> Result:
    """Judge until `stops` returns True, and call `tell` with each result; return the last result.

    `progress` shows other threads which input was judged last. On Spark, the query of a long history keeps its
    checkpoint in the directory `checkpoint`, from which the next call continues. A history with fewer events than
    `whole_events` is judged again as a whole each time.

    `stops(seconds)` waits for `seconds`, or until it is time to stop, and returns whether to stop.

    Raises `HistoryNotFoundError`, `HistoryChangedError` if parts change faster than they are judged, and
    `SparkUnavailableError`.
    """
    growth = GrowingHistory(sorted({absolute(place) for place in paths}))
    limits = Limits(wake_ms, late_ms)

    def judged(running: Engine, tries: int = TRIES) -> Result:
        begun_s = time.monotonic()
        history = growth.look()
        say, wake_ms, late_ms = (lambda _stage: None), limits.wake_ms, limits.late_ms
        try:
            result = judge_on(running, history, wake_ms=wake_ms, late_ms=late_ms, say=say)
        except HistoryChangedError:
            if tries == 1:
                raise
            return judged(running, tries - 1)
        if progress is not None:
            progress.stamps, progress.looked_s = dict(growth.stamps), begun_s
        return msgspec.structs.replace(result, engine=engine)

    has_law = bool(growth.look().laws)
    checkpoint = None if has_law else checkpoint
    listing = Listing(limits, engine)
    with open_engine(engine, master, conf) as running:
        streaming = _streaming(running)
        if streaming is None or not is_begun(checkpoint):
            result = judged(running)
            tell(_counted(result) if has_law else result)
            is_long = False
            while not is_long and not stops(max(PERIOD_S, result.seconds)):
                if growth.has_grown():
                    result = judged(running)
                    tell(_counted(result) if has_law else result)
                is_long = (result.events >= whole_events or result.findings_left_out > 0) and not has_law
            if not is_long:
                return judged(running) if growth.has_grown() else result
            listing.picked.seen = {finding.id for finding in result.findings}
        # Forget rewritten parts, because the judgement of the whole history at the end reads every part again.
        growth.rewritten = 0
        if streaming is None:
            _follow_growing(growth, listing, tell, stops, progress)
        else:
            with streaming(growth, limits, checkpoint) as judging:
                _follow_stream(judging, listing, tell, stops, progress)
        return judged(running)


def _counted(result: Result) -> Result:
    """Returns the result with a gap that counts the unlisted findings, because they are not reported one by one."""
    return _with_gaps(result, not_told(result.findings_left_out))


def _with_gaps(result: Result, gaps: Sequence[Gap]) -> Result:
    more = [{"clause": gap.clause, **asdict(gap)} for gap in gaps]
    return msgspec.structs.replace(result, gaps=[*result.gaps, *more]) if more else result


def _follow_growing(
    growth: GrowingHistory,
    listing: Listing,
    tell: Callable[[Result], None],
    stops: Callable[[float], bool],
    progress: Progress | None,
) -> None:
    """Judge new events until `stops`. After a part was rewritten, judge the whole history again."""
    arriving = IncrementalRead(growth, threads=os.cpu_count() or 1)
    sliding = Sliding(listing.limits.wake_ms, listing.limits.late_ms)
    while True:
        begun_s = time.monotonic()
        history, new = arriving.look()
        if growth.rewritten:
            growth.rewritten, arriving.ends, sliding = 0, {}, Sliding(sliding.wake_ms, sliding.late_ms)
            continue
        for tables, damages in arriving.read(new):
            table = joined(tables)
            sliding.add(table, survey_split(fill(table), list(damages)), history)
            if stops(0.0):
                return
        if new:
            tell(listing.result(SoFar.of(sliding), history))
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
    """Report the results of a stream until `stops`.

    After a part was rewritten, the stream judges the whole history again.
    """
    while True:
        # If this batch has already read the rewritten part, the next check detects the rewriting.
        looked_s, batch, history = time.monotonic(), judging.look(), judging.growth.look()
        if judging.growth.rewritten:
            judging.growth.rewritten = 0
            judging.begin_again()
            continue
        if batch is not None:
            tell(listing.result(batch.so_far, history))
            batch.is_told.set()
        if progress is not None and all(part.end <= judging.ends.get(part.path, 0) for part in history.splits):
            progress.stamps, progress.looked_s = dict(judging.growth.stamps), looked_s
        if stops(PERIOD_S):
            return


@define(eq=False)
class Listing:
    """Makes results of the events so far, each with the findings to list."""

    limits: Limits
    engine: EngineName = "local"
    """The name of the engine in results."""
    picked: Picked = field(factory=Picked)
    begun_s: float = field(factory=time.monotonic)

    def result(self, so_far: SoFar, history: History) -> Result:
        """Judge the events so far. New findings are listed; findings beyond the limit are only counted."""
        survey = so_far.survey
        limits = {"wake_ms": self.limits.wake_ms, "late_ms": self.limits.late_ms}
        context, gaps = context_and_gaps(history, survey, **limits)
        limited = sum(survey.sources[name].holds for name in history.hold_limits if name in survey.sources)
        gaps += left_to_the_end({"holds of sources that promise a limit": limited, UNSURE: so_far.unsure})
        result = added_up(so_far.tally, gaps, survey, history, beside=so_far.beside, pick=self.picked.pick)
        result = _with_gaps(result, not_told(so_far.left_out + self.picked.untold))
        made = [(one, so_far.completed.get(one.id, one)) for one in result.findings]
        result = msgspec.structs.replace(
            result,
            findings=[msgspec.structs.replace(full, id=one.id, why=one.why, follows=one.follows) for one, full in made],
            notes=[*restart_notes(context), *result.notes],
            events=survey.event_count,
            seconds=round(time.monotonic() - self.begun_s, 3),
            engine=self.engine,
            thresholds=limits,
        )
        self.begun_s = time.monotonic()
        return result


def is_begun(directory: Path | None) -> bool:
    """Return whether a Spark query with this checkpoint directory has judged a batch."""
    return directory is not None and any((directory / CHECKPOINT / "commits").glob("[0-9]*"))


def _streaming(running: Engine) -> Streaming | None:
    """Returns the stream judge of an engine; None on Spark Connect, whose server runs callbacks in another process."""
    if isinstance(running, LocalEngine):
        return None
    from longpoll_judge.run.spark.engine import SparkEngine  # noqa: PLC0415 - Spark takes a second to import
    from longpoll_judge.run.spark.session import is_remote  # noqa: PLC0415 - the same
    from longpoll_judge.run.spark.stream import stream_judge  # noqa: PLC0415 - the same

    assert isinstance(running, SparkEngine), "there are two engines"
    return None if is_remote(running.session) else partial(stream_judge, running)
