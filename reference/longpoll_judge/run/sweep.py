"""Goes through stretches in order of time, and judges what can be judged in each.

Two stretches are held at a time, the one that is judged and the one after it, and what is still open from before. Runs
of stretches can be swept apart from each other; what they leave is put together (`rest`). Leaves out what is judged in
a stretch (`home`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
from attrs import define, frozen

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.exchange import joined, taken
from longpoll_judge.columns.keys import Keys
from longpoll_judge.columns.placing import place_answers
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import coded, fill
from longpoll_judge.run.home import Home
from longpoll_judge.run.plan import REACH, Plan
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.verdict import LOG_EVENTS

assert REACH == 1, "a sweep holds the stretch that comes next, and no more"


@frozen(eq=False)
class Swept:
    """What a run of stretches comes to."""

    rows: pa.Table
    """Of `RESULT_SCHEMA`."""
    rest: pa.Table
    """Events of requests that could not be judged."""
    faulty: frozenset[QueueName]
    """Queues whose log may be at fault."""


@define
class Stretches:
    """Reads the stretches of a plan."""

    plan: Plan
    read: Callable[[int], pa.Table]
    """The events of a slice, by its number."""
    unplaced: bool
    """There are answers that name no queue."""

    def events(self, stretch: int) -> pa.Table:
        """All events of a stretch, in one chunk."""
        return self.together(self.read(number) for number in self.plan.stretches[stretch])

    def together(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Some events in one table of one chunk, their answers placed."""
        table = joined(tables)
        return joined([place_answers(fill(table))]) if self.unplaced and len(table) else table

    def log(self, stretch: int) -> pa.Table:
        """The log events of a stretch."""
        return log_of(self.events(stretch)) if 0 <= stretch < len(self.plan.stretches) else joined([])

    def home(self, first: int, last: int, logs: Iterable[pa.Table], context: Context) -> Home:
        """Where stretches from first to last are judged, given the logs of them and their neighbours."""
        return Home(joined(logs), partial(self.plan.home, first, last), context)


def log_of(table: pa.Table) -> pa.Table:
    """The log events among some events."""
    codes, names = coded(table, "event")
    is_log = np.array([name in LOG_EVENTS for name in names], dtype=np.bool_)[codes]
    return taken(table, np.flatnonzero(is_log))


def sweep(
    stretches: Stretches, run: tuple[int, int], context: Context, held: Keys, tell: Callable[[Keys], None]
) -> Swept:
    """Judge a run of stretches [first, end) without the requests that are `held`; `tell` hears of the others."""
    first, end = run
    tally, rest = Tally(), []
    faulty: set[QueueName] = set()
    with ThreadPoolExecutor(1) as ahead:
        logs = [stretches.log(first - 1)]
        table = stretches.events(first)
        logs.append(log_of(table))
        for stretch in range(first, end):
            coming = ahead.submit(stretches.events, stretch + 1) if stretch + 1 < end else None
            logs.append(log_of(coming.result()) if coming else stretches.log(stretch + 1))
            home = stretches.home(stretch, stretch, logs, context)
            faulty |= home.faulty_logs(stretches.plan.doubtful)
            settled = home.settle(table, held)
            tally.add(settled.rows)
            tell(settled.keys)
            rest.append(settled.far)
            table = stretches.together([settled.open, *([coming.result()] if coming else [])])
            del logs[0]
    return Swept(tally.rows(), stretches.together([*rest, table]), frozenset(faulty))
