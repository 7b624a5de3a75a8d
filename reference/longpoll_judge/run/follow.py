"""Judges a history while it is written, until `stops` says so.

A short history is judged anew each time, by the same code as one that is complete. A judgement takes as long as it
takes, and the next one begins after as long again at the earliest, so at most half of the time goes into judging. On
Spark a stream tells of new events; without Spark the sizes of the parts do, and what is whole is read once.

Without Spark a long history is judged by what is new in it (`growing`), to tell of findings. The last result is that of
a judgement of the whole, so it is always the verdict on what there was. Leaves out what is whole (`growth`) and how
results are shown (the command).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, evolve, field, frozen

from longpoll_judge.contract.result import Finding, Gap, Result
from longpoll_judge.read.files import absolute
from longpoll_judge.read.growth import Growth, sizes_of
from longpoll_judge.read.source import History
from longpoll_judge.read.tail import Tail
from longpoll_judge.run.excerpt import with_excerpts
from longpoll_judge.run.growing.kept import State, read_state, write_state
from longpoll_judge.run.growing.queues import Growing, SoFar
from longpoll_judge.run.job import Engine, EngineName, Look, added_up, judge_on, open_engine
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.spill import open_spill

PERIOD_S: Final = 0.5
"""How often there is a look for something new."""
LONG_PERIOD_S: Final = 1.0
"""The same of a long history: the more comes at once the less an event costs."""
KEEP_S: Final = 10.0
"""How often what was judged is put on disk at most, ..."""
KEEP_SHARE: Final = 20
"""... and how many times longer it lasts until the next time than it took."""
TELL_S: Final = 1.0
"""How often it is told where a history stands that was there before."""
WHOLE_EVENTS: Final = 200_000
"""A history with fewer events is judged anew each time."""


@define(eq=False)
class Progress:
    """How far a history has been judged, noted by who follows it and asked from other threads."""

    paths: Sequence[Path | str]
    sizes: Mapping[str, int] = field(factory=dict)
    """Of every part at the look that was judged last, in bytes."""
    looked_s: float = field(factory=time.monotonic)
    """When that look was, by the monotonic clock."""

    def behind(self, now_s: float) -> tuple[float, int]:
        """How long something may have waited to be judged, in seconds, and how many bytes wait; 0 where none do."""
        sizes = sizes_of(self.paths)
        if sizes == self.sizes:
            return 0.0, 0
        return max(now_s - self.looked_s, 0.0), max(sum(sizes.values()) - sum(self.sizes.values()), 0)


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
    """Judge until it `stops`, and `tell` of each judgement; the last one is returned, for which there is a `look`.

    What the last one rests on is noted in `progress`, which others may ask. A file `kept` takes, now and then, what was
    judged of a long history without Spark, and the next call goes on from there.

    `stops(seconds)` waits for that long, or until it is time to stop, and says whether it is.

    Raises `HistoryNotFoundError`, `SparkUnavailableError`, and `CheckpointError` where what was kept cannot be used.
    """
    growth = Growth(sorted({absolute(place) for place in paths}))
    limits = Limits(wake_ms, late_ms)

    def judged(running: Engine, look: Look | None = None) -> Result:
        begun_s = time.monotonic()
        history = growth.look()
        say, wake_ms, late_ms = (lambda _stage: None), limits.wake_ms, limits.late_ms
        result = judge_on(running, history, wake_ms=wake_ms, late_ms=late_ms, say=say, look=look)
        if progress is not None:
            progress.sizes, progress.looked_s = dict(growth.sizes), begun_s
        return msgspec.structs.replace(result, engine=engine)

    has_law = bool(growth.look().laws)
    steps = Steps.begun(limits, kept if engine == "local" and not has_law else None)
    if steps.ends:
        _follow_growing(growth, steps, tell, stops, progress)
        with open_engine(engine, master, conf) as running:
            return judged(running, look)
    with _open(engine, master, conf) as running, _new_events(engine, running, growth) as is_new:
        result = judged(running)
        tell(result)
        is_long = False
        while not is_long and not stops(max(PERIOD_S, result.seconds)):
            if is_new():
                result = judged(running)
                tell(result)
            is_long = engine == "local" and result.events >= WHOLE_EVENTS and not has_law
        if not is_long:
            return judged(running, look) if look is not None or growth.has_grown() else result
    _follow_growing(growth, steps, tell, stops, progress)
    with open_engine(engine, master, conf) as running:
        return judged(running, look)


@frozen
class Limits:
    """The thresholds of a judgement."""

    wake_ms: float
    late_ms: float

    def named(self) -> dict[str, float]:
        """By the names that results give them."""
        return {"wake_ms": self.wake_ms, "late_ms": self.late_ms}


def _follow_growing(
    growth: Growth,
    steps: Steps,
    tell: Callable[[Result], None],
    stops: Callable[[float], bool],
    progress: Progress | None,
) -> None:
    """Judge what is new until it `stops`."""
    tail = Tail(growth, threads=os.cpu_count() or 1, ends=steps.ends)
    while True:
        begun_s = told_s = time.monotonic()
        history, new = tail.look()
        for tables, damages in tail.read(new):
            steps.growing.add(tables, damages, history)
            if time.monotonic() - told_s >= TELL_S:
                tell(steps.result(history))
                told_s = time.monotonic()
                if stops(0.0):
                    steps.keep(is_last=True)
                    return
                steps.keep()
        if new:
            tell(steps.result(history))
            steps.keep()
        if progress is not None:
            progress.sizes, progress.looked_s = dict(growth.sizes), begun_s
        if stops(max(LONG_PERIOD_S - (time.monotonic() - begun_s), 0.0)):
            steps.keep(is_last=True)
            return


@define(eq=False)
class Steps:
    """Makes results of what has come so far, and keeps it.

    Invariant: what is kept was told before, so nothing is lost that a result showed and a later one does not.
    """

    growing: Growing
    limits: Limits
    kept: Path | None = None
    """Where what was judged is kept; None for nowhere."""
    ends: dict[str, int] = field(factory=dict)
    """By part, how far it was read."""
    keep_next_s: float = 0.0
    """When, by the monotonic clock, it is kept again."""
    begun_s: float = field(factory=time.monotonic)
    shown: dict[tuple[str, str], Finding] = field(factory=dict)
    """By name and sentence, findings whose evidence is a history by itself."""

    @classmethod
    def begun(cls, limits: Limits, kept: Path | None) -> Steps:
        """From where a file of what was judged leaves off, or from the beginning; raises `CheckpointError`."""
        growing = Growing(limits.wake_ms, limits.late_ms)
        found = read_state(kept, growing) if kept is not None else None
        if found is None:
            return cls(growing, limits, kept)
        shown = {(finding.id, finding.why): finding for finding in found.shown}
        return cls(found.growing, limits, kept, ends=found.ends, shown=shown)

    def keep(self, *, is_last: bool = False) -> None:
        """Put on disk what was judged, if it is time; raises OSError."""
        begun_s = time.monotonic()
        if self.kept is None or (begun_s < self.keep_next_s and not is_last):
            return
        write_state(self.kept, State(self.growing, self.ends, list(self.shown.values())))
        now_s = time.monotonic()
        self.keep_next_s = now_s + max(KEEP_S, KEEP_SHARE * (now_s - begun_s))

    def result(self, history: History) -> Result:
        """The judgement of what has come."""
        so_far = self.growing.so_far(history)
        survey = self.growing.survey
        gaps = so_far.gaps + self._gaps(so_far, history)
        found = self.growing.beside.found.values()
        result = added_up(so_far.rows, gaps, survey, history, found)
        result = msgspec.structs.replace(
            result,
            findings=self._with_evidence(result, history),
            events=survey.event_count,
            seconds=round(time.monotonic() - self.begun_s, 3),
            engine="local",
            thresholds=self.limits.named(),
        )
        self.begun_s = time.monotonic()
        return result

    def _gaps(self, so_far: SoFar, history: History) -> list[Gap]:
        """What only a judgement of the whole can tell, or has not been judged yet."""
        survey = self.growing.survey
        later = {
            **self.growing.doubts,
            "events of requests that ask for messages from before what is at hand": so_far.far_count,
            "questions for committed offsets, and commits": survey.offset_queries + survey.offset_updates,
            "limits that sources promise": len(history.hold_limits),
        }
        return [
            Gap("not judged", "", count, f"{what}: judging the whole history tells, at the end")
            for what, count in later.items()
            if count
        ]

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
def _open(engine: EngineName, master: str | None, conf: Mapping[str, str] | None) -> Iterator[Engine]:
    """The engine; without Spark one that reads what is whole once, as text takes longer to read than to judge."""
    with open_engine(engine, master, conf) as running:
        if not isinstance(running, LocalEngine):
            yield running
            return
        with open_spill() as kept:
            yield evolve(running, kept=kept)


@contextmanager
def _new_events(engine: EngineName, running: Engine, growth: Growth) -> Iterator[Callable[[], bool]]:
    """A question that is answered yes when there is something new."""
    if engine == "local":
        yield growth.has_grown
        return
    from longpoll_judge.run.spark.engine import SparkEngine  # noqa: PLC0415 - the same
    from longpoll_judge.run.spark.news import new_events  # noqa: PLC0415 - Spark takes a second to import

    assert isinstance(running, SparkEngine), "the engine that was asked for"
    with new_events(running, growth.paths) as is_new:
        yield is_new
