"""Judges a history while it is written, until `stops` returns True.

A short history is judged again each time, by the same code as a complete one. The next judgement begins after a pause
of at least the last one's duration, so at most half of the time goes into judging. The sizes and times of the parts
show new events; without Spark, each byte is read once.

A long history, or one with more findings than a result lists, is judged by its new events (`growing`). Each finding is
reported once. On Spark, workers read the new events and a stream brings them. The last result always judges the whole
history, so it is the verdict on everything recorded. The complete parts: `growth`. The output: the command.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from attrs import asdict, define, evolve, field, frozen

from longpoll_judge.contract.result import Finding, Gap, Result
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.read.files import Stamp, absolute
from longpoll_judge.read.growing_history import GONE, GrowingHistory, IncrementalRead, Read, checksum_before, stamps_of
from longpoll_judge.read.source import History
from longpoll_judge.run.excerpt import with_excerpts
from longpoll_judge.run.incremental.listed_findings import Picked, left_to_the_end, not_told
from longpoll_judge.run.incremental.queue_judge import Growing, SoFar
from longpoll_judge.run.incremental.state_file import State, read_state, write_state
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import Engine, EngineName, Look, added_up, judge_on, open_engine
from longpoll_judge.run.spill import open_spill

if TYPE_CHECKING:
    from longpoll_judge.run.spark.engine import SparkEngine

PERIOD_S: Final = 0.5
"""How often there is a look for something new."""
LONG_PERIOD_S: Final = 2.0
"""The same of a long history at most: the more comes at once the less an event costs."""
REST_SHARE: Final = 4
"""A look at a long history begins this number of times later after the last one than that took, within these two."""
KEEP_S: Final = 10.0
"""How often what was judged is put on disk at most, ..."""
KEEP_SHARE: Final = 20
"""... and how many times longer it lasts until the next time than it took."""
TELL_S: Final = 1.0
"""How often it is told where a history stands while what is new has not been judged, ..."""
TELL_SHARE: Final = 4
"""... and how many times longer it lasts until the next time than it took."""
WRITTEN_ANEW: Final = "a part that was written anew, or cut, after it was read"
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
    kept: Path | None = None,
) -> Result:
    """Judge until `stops`, and call `tell` for each judgement; return the last one, for which there is a `look`.

    `progress` holds the input of the last judgement, for other threads. The file `kept` saves the state of a long
    history now and then; the next call continues from there, on either engine.

    `stops(seconds)` waits for that long, or until it is time to stop, and returns whether it is.

    Raises `HistoryNotFoundError`, `HistoryChangedError` if parts change faster than they are judged,
    `SparkUnavailableError`, and `CheckpointError` if the saved state cannot be used.
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

    def counted(result: Result) -> Result:
        """The result, with the number of further findings if none of these is reported one by one."""
        return _with_gaps(result, not_told(result.findings_left_out)) if has_law else result

    has_law = bool(growth.look().laws)
    steps = Steps.begun(limits, None if has_law else kept, engine)
    with open_engine(engine, master, conf) as running:
        if not steps.ends:
            with _reading_once(running) as short:
                result = judged(short)
                tell(counted(result))
                is_long = False
                while not is_long and not stops(max(PERIOD_S, result.seconds)):
                    if growth.has_grown():
                        result = judged(short)
                        tell(counted(result))
                    is_long = (result.events >= WHOLE_EVENTS or result.findings_left_out > 0) and not has_law
                if not is_long:
                    return judged(short, look) if look is not None or growth.has_grown() else result
                steps.picked.seen = {finding.id for finding in result.findings}
        with _arriving(running, growth, steps.ends) as arriving:
            _follow_growing(arriving, steps, tell, stops, progress)
        return judged(running, look)


def _with_gaps(result: Result, gaps: Sequence[Gap]) -> Result:
    more = [{"clause": gap.clause, **asdict(gap)} for gap in gaps]
    return msgspec.structs.replace(result, gaps=[*result.gaps, *more]) if more else result


class Arriving(Protocol):
    """The new events of a growing history, each byte once."""

    growth: GrowingHistory
    ends: dict[str, int]
    """By part, how far it was handed on."""

    def look(self) -> tuple[History, Sequence[Any]]:
        """Return the current state and its new part, in this implementation's terms."""
        ...

    def read(self, new: Any, /) -> Iterator[Read]:
        """The events of what is new, and what could not be read of it, in order and some of them together."""
        ...


@frozen
class Limits:
    """The thresholds of a judgement."""

    wake_ms: float
    late_ms: float

    def named(self) -> dict[str, float]:
        """By the names that results give them."""
        return {"wake_ms": self.wake_ms, "late_ms": self.late_ms}


def _follow_growing(
    arriving: Arriving,
    steps: Steps,
    tell: Callable[[Result], None],
    stops: Callable[[float], bool],
    progress: Progress | None,
) -> None:
    """Judge what is new until it `stops`."""
    while True:
        begun_s = time.monotonic()
        tell_next_s = begun_s + TELL_S
        history, new = arriving.look()
        are_anew = steps.parts.are_anew(arriving.growth.stamps, arriving.ends)
        steps.growing.doubt(WRITTEN_ANEW, are_anew)
        steps.parts.expect({part.path: part.end for part in history.splits}, arriving.ends)
        for tables, damages in arriving.read(new):
            steps.growing.add(tables, damages, history)
            telling_s = time.monotonic()
            if telling_s >= tell_next_s:
                tell(steps.result(history))
                told_s = time.monotonic()
                tell_next_s = told_s + max(TELL_S, TELL_SHARE * (told_s - telling_s))
                if stops(0.0):
                    steps.keep(is_last=True)
                    return
                steps.keep()
        steps.note(arriving.ends)
        if new or are_anew:
            tell(steps.result(history))
            steps.keep()
        if progress is not None and all(part.end <= arriving.ends.get(part.path, 0) for part in history.splits):
            progress.stamps, progress.looked_s = dict(arriving.growth.stamps), begun_s
        took_s = time.monotonic() - begun_s
        period_s = min(max(PERIOD_S, REST_SHARE * took_s), LONG_PERIOD_S)
        if stops(max(period_s - took_s, 0.0)):
            steps.keep(is_last=True)
            return


@define(eq=False)
class Parts:
    """Notices parts that were rewritten or cut after they were read."""

    known: dict[str, tuple[int, int]] = field(factory=dict)
    """By part how far it was read, and what tells that it is still the same."""
    stamps: dict[str, Stamp] = field(factory=dict)
    """Of each part when it was looked at; who differs is read, who does not is not."""
    expected: dict[str, tuple[int, int]] = field(factory=dict)
    """By part how far it is about to be read, and what tells that it is still the same then."""

    def expect(self, ends: Mapping[str, int], read: Mapping[str, int]) -> None:
        """Before parts are read up to `ends`, of which `read` has what was read before."""
        self.expected = {
            part: (end, checksum_before(part, end)) for part, end in ends.items() if end > read.get(part, 0)
        }

    def note(self, ends: Mapping[str, int]) -> int:
        """Note that the parts up to these ends are as read; return how many were rewritten during the read."""
        new = {part: end for part, end in ends.items() if part not in self.known or self.known[part][0] != end}
        now = {part: (end, checksum_before(part, end)) for part, end in new.items()}
        anew = [part for part, place in now.items() if self._is_other(part, place)]
        self.known |= now
        for part in anew:
            self.expected.pop(part, None)
        return len(anew)

    def _is_other(self, part: str, now: tuple[int, int]) -> bool:
        """Whether a part is not what it was when it was about to be read, or what was read of it before is not."""
        places = filter(None, (self.expected.get(part), self.known.get(part)))
        # Mostly it was expected to be read so far, and is not read once more for that.
        found = ((before, now[1] if end == now[0] else checksum_before(part, end)) for end, before in places)
        return now[1] != GONE and any(then not in {GONE, before} for before, then in found)

    def are_anew(self, stamps: Mapping[str, Stamp], ends: Mapping[str, int]) -> int:
        """How many parts are not what was read of them; one that is gone is not asked for."""
        self.note({part: end for part, end in ends.items() if part not in self.known})
        changed = [part for part, stamp in stamps.items() if part in self.known and self.stamps.get(part) != stamp]
        self.stamps = dict(stamps)
        anew = [
            part for part in changed if checksum_before(part, self.known[part][0]) not in {GONE, self.known[part][1]}
        ]
        for part in anew:
            self.known[part] = self.known[part][0], checksum_before(part, self.known[part][0])
        return len(anew)


@define(eq=False)
class Steps:
    """Makes results of the events so far, and saves the state.

    Invariant: a result is reported before its state is saved, so no finding is lost.
    """

    growing: Growing
    limits: Limits
    kept: Path | None = None
    """Where what was judged is kept; None for nowhere."""
    engine: EngineName = "local"
    """The engine that reads, as named in results."""
    ends: dict[str, int] = field(factory=dict)
    """By part, how far it was read."""
    keep_next_s: float = 0.0
    """When, by the monotonic clock, it is kept again."""
    begun_s: float = field(factory=time.monotonic)
    shown: dict[tuple[str, str], Finding] = field(factory=dict)
    """By name and sentence, findings whose evidence is a history by itself."""
    picked: Picked = field(factory=Picked)
    parts: Parts = field(factory=Parts)

    @classmethod
    def begun(cls, limits: Limits, kept: Path | None, engine: EngineName = "local") -> Steps:
        """From where a file of what was judged leaves off, or from the beginning; raises `CheckpointError`."""
        growing = Growing(limits.wake_ms, limits.late_ms)
        found = read_state(kept, growing) if kept is not None else None
        if found is None:
            return cls(growing, limits, kept, engine)
        shown = {(finding.id, finding.why): finding for finding in found.shown}
        picked = Picked(found.seen, found.untold)
        ends, parts = {part: end for part, (end, _sum) in found.ends.items()}, Parts(found.ends)
        return cls(found.growing, limits, kept, engine, ends=ends, shown=shown, picked=picked, parts=parts)

    def note(self, ends: Mapping[str, int]) -> None:
        """Note that parts were read up to these ends; a part that was rewritten meanwhile is a doubt."""
        self.growing.doubt(WRITTEN_ANEW, self.parts.note(ends))

    def keep(self, *, is_last: bool = False) -> None:
        """Put on disk what was judged, if it is time; raises OSError."""
        begun_s = time.monotonic()
        if self.kept is None or (begun_s < self.keep_next_s and not is_last):
            return
        shown = list(self.shown.values())
        # As they were when they were read: what is written anew meanwhile is found out by who goes on from here.
        self.note(self.ends)
        ends = {part: self.parts.known[part] for part in self.ends}
        write_state(self.kept, State(self.growing, ends, shown, self.picked.seen, self.untold))
        now_s = time.monotonic()
        self.keep_next_s = now_s + max(KEEP_S, KEEP_SHARE * (now_s - begun_s))

    @property
    def untold(self) -> int:
        """How many violations no result has listed."""
        return self.growing.untold + self.picked.untold

    def result(self, history: History) -> Result:
        """The judgement of what has come; what is new in it is listed, or counted as not told."""
        so_far = self.growing.so_far(history)
        survey = self.growing.survey
        gaps = so_far.gaps + self._gaps(so_far)
        found = self.growing.beside.findings()
        result = added_up(so_far.rows, gaps, survey, history, beside=found, pick=self.picked.pick)
        result = _with_gaps(result, not_told(self.untold))
        result = msgspec.structs.replace(
            result,
            findings=self._with_evidence(result, history),
            events=survey.event_count,
            seconds=round(time.monotonic() - self.begun_s, 3),
            engine=self.engine,
            thresholds=self.limits.named(),
        )
        self.begun_s = time.monotonic()
        return result

    def _gaps(self, so_far: SoFar) -> list[Gap]:
        """Questions that only a judgement of the whole can decide, or that are not judged yet."""
        survey = self.growing.survey
        later = {
            **self.growing.doubts,
            "events of requests that ask for messages from before what is at hand": so_far.far_count,
            "questions for committed offsets, and commits": survey.offset_queries + survey.offset_updates,
        }
        return left_to_the_end(later)

    def _with_evidence(self, result: Result, history: History) -> list[Finding]:
        """The findings, each with the evidence that it had when it was new."""
        fresh = [finding for finding in result.findings if (finding.id, finding.why) not in self.shown]
        made = with_excerpts(
            msgspec.structs.replace(result, findings=fresh), self.growing.tables, self.growing.survey, history
        )
        self.shown |= {(finding.id, finding.why): finding for finding in made.findings}
        self.shown = {name: self.shown[name] for name in [(each.id, each.why) for each in result.findings]}
        return list(self.shown.values())


@contextmanager
def _reading_once(running: Engine) -> Iterator[Engine]:
    """The engine; without Spark one that reads what is whole once, as text takes longer to read than to judge."""
    if not isinstance(running, LocalEngine):
        yield running
        return
    with open_spill() as kept:
        yield evolve(running, kept=kept)


@contextmanager
def _arriving(running: Engine, growth: GrowingHistory, ends: dict[str, int]) -> Iterator[Arriving]:
    """The new events from the judged end of each part; on Spark a stream brings them."""
    streaming = _streaming(running)
    if streaming is None:
        yield IncrementalRead(growth, threads=os.cpu_count() or 1, ends=ends)
        return
    from longpoll_judge.run.spark.event_stream import arriving_events  # noqa: PLC0415 - Spark takes a second to import

    with arriving_events(streaming, growth, ends) as arriving:
        yield arriving


def _streaming(running: Engine) -> SparkEngine | None:
    """The engine if its stream brings what is new: what a server of Spark Connect calls back, it calls elsewhere."""
    if isinstance(running, LocalEngine):
        return None
    from longpoll_judge.run.spark.cluster import is_remote  # noqa: PLC0415 - Spark takes a second to import
    from longpoll_judge.run.spark.engine import SparkEngine  # noqa: PLC0415 - the same

    assert isinstance(running, SparkEngine), "there are two engines"
    return None if is_remote(running.session) else running
