"""Judges a history while it is written, again and again, until `stops` says so.

Each judgement is one of everything that is whole by then, by the same code as of a history that is complete, so the
last one is the verdict on what there was. A judgement takes as long as it takes, and the next one begins after as long
again at the earliest, so at most half of the time goes into judging. On Spark a stream tells of new events; without
Spark the sizes of the parts do, and what is whole is read once. Leaves out what is whole (`growth`) and how results
are shown (the command).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, evolve, field

from longpoll_judge.contract.result import Result
from longpoll_judge.read.files import absolute
from longpoll_judge.read.growth import Growth, sizes_of
from longpoll_judge.run.job import Engine, EngineName, Look, judge_on, open_engine
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.spill import open_spill

PERIOD_S: Final = 0.5
"""How often there is a look for something new."""


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
) -> Result:
    """Judge until it `stops`, and `tell` of each judgement; the last one is returned, for which there is a `look`.

    What the last one rests on is noted in `progress`, which others may ask.

    `stops(seconds)` waits for that long, or until it is time to stop, and says whether it is.

    Raises `HistoryNotFoundError` and `SparkUnavailableError`.
    """
    growth = Growth(sorted({absolute(place) for place in paths}))

    def judged(running: Engine, look: Look | None = None) -> Result:
        begun_s = time.monotonic()
        history = growth.look()
        result = judge_on(running, history, wake_ms=wake_ms, late_ms=late_ms, say=lambda _stage: None, look=look)
        if progress is not None:
            progress.sizes, progress.looked_s = dict(growth.sizes), begun_s
        return msgspec.structs.replace(result, engine=engine)

    growth.look()
    with _open(engine, master, conf) as running, _new_events(engine, running, growth) as is_new:
        result = judged(running)
        tell(result)
        while not stops(max(PERIOD_S, result.seconds)):
            if is_new():
                result = judged(running)
                tell(result)
        return judged(running, look) if look is not None or growth.has_grown() else result


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
