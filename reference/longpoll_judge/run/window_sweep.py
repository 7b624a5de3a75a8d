"""Goes through windows in order of time, and judges what can be judged in each (`window_pulls`).

It holds two windows at a time, the one that it judges and the next one, and the requests that are still open. A pull
that asks for messages of an earlier window is judged with two pieces of the log: its own window's, and that of the
window in which these messages came. Runs of windows can be swept separately, and so can groups of queues
(`spark.queue_groups`). `wide_pulls` judges what they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, frozen

from longpoll_judge.columns.batch import QueueName, joined, make_batch, place_answers, taken
from longpoll_judge.columns.keys import NO_KEYS, Keys
from longpoll_judge.columns.lookup import Integers, are_of
from longpoll_judge.columns.memory import give_back_memory
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import coded
from longpoll_judge.run.queue_verdict import LOG_EVENTS, RESULT_SCHEMA
from longpoll_judge.run.spill import LogFile, open_logs
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.window_pulls import Settled, WindowJudge
from longpoll_judge.run.windows import REACH, WindowPlan

READ: Final = 2
"""Most windows whose messages are asked for that are at hand together, with their neighbours."""

assert REACH == 1, "a sweep holds the window that comes next, and no more"


@frozen(eq=False)
class Swept:
    """The results of a run of windows."""

    rows: pa.Table
    """Of `RESULT_SCHEMA`."""
    rest: pa.Table
    """Events of requests that could not be judged."""
    faulty: frozenset[QueueName]
    """Queues whose log may be at fault."""


@define
class WindowReader:
    """Reads the windows of a plan."""

    plan: WindowPlan
    read: Callable[[int], pa.Table]
    """The events of a split, by its number."""
    unplaced: bool
    """There are answers that name no queue."""
    earliest: int = 0
    """The first window whose log can be read."""

    def events(self, window: int) -> pa.Table:
        """All events of a window, in one chunk."""
        return joined(self.read(number) for number in self.plan.windows[window])

    def placed(self, table: pa.Table) -> pa.Table:
        """The same rows with their answers at the place of their requests, as far as these are in the table."""
        return place_answers(table) if self.unplaced and len(table) else table

    def log(self, window: int) -> pa.Table:
        """The log events of a window."""
        return log_of(self.events(window)) if 0 <= window < len(self.plan.windows) else joined([])

    def keep(self, window: int, log: pa.Table, kept: LogFile) -> None:
        """Keep a log that cannot be read again."""

    def judge(self, first: int, last: int, logs: Iterable[pa.Table], context: Context) -> WindowJudge:
        """Where windows from first to last are judged, given the logs of them and their neighbours."""
        return WindowJudge(joined(logs), partial(self.plan.around, first, last), context, place=self.placed)


@frozen(eq=False)
class Neighbourhood:
    """A window and its neighbours, and the logs of earlier windows as they are asked for."""

    windows: WindowReader
    window: int
    logs: Sequence[pa.Table]
    """Of the window and its neighbours."""
    kept: LogFile
    """Takes the logs of earlier windows, which are read once."""
    context: Context

    def apart(self, first: int, last: int) -> WindowJudge:
        """Where requests of the window are judged that ask for messages of earlier ones, from first to last."""
        earlier = range(max(first - REACH, 0), min(last + REACH + 1, self.window - REACH))
        own = self.window, self.window
        outlook = partial(self.windows.plan.apart, (first, last), own)
        logs = joined([*map(self._log, earlier), *self.logs])
        return WindowJudge(logs, outlook, self.context, place=self.windows.placed)

    def _log(self, window: int) -> pa.Table:
        if self.kept.get(window) is None:
            self.kept.put(window, self.windows.log(window))
        log = self.kept.get(window)
        assert log is not None, "it was put there"
        return log


def log_of(table: pa.Table) -> pa.Table:
    """The log events among some events."""
    codes, names = coded(table, "event")
    return taken(table, np.flatnonzero(are_of(codes, names, LOG_EVENTS)))


def sweep(
    windows: WindowReader, run: tuple[int, int], context: Context, held: Keys, tell: Callable[[Keys], None]
) -> Swept:
    """Judge a run of windows [first, end) without the requests that are `held`; `tell` hears of the others."""
    first, end = run
    tally, rest = Tally(), []
    faulty: set[QueueName] = set()
    with ThreadPoolExecutor(1) as ahead, open_logs() as kept:
        logs = [windows.log(first - 1)]
        table = windows.events(first)
        logs.append(log_of(table))
        for window, log in zip((first - 1, first), logs, strict=True):
            windows.keep(window, log, kept)
        for window in range(first, end):
            coming = ahead.submit(windows.events, window + 1) if window + 1 < end else None
            logs.append(log_of(coming.result()) if coming else windows.log(window + 1))
            windows.keep(window + 1, logs[-1], kept)
            judge = windows.judge(window, window, logs, context)
            faulty |= judge.faulty_logs(windows.plan.doubtful)
            settled = judge.settle(table, held)
            # What comes next is all that is held while that is judged which looks far back.
            del judge, table
            tally.add(settled.rows)
            tell(settled.keys)
            # What is kept for columns to come would lie beside those of other windows, which are others.
            if len(settled.far):
                give_back_memory()
            for again in judge_far(Neighbourhood(windows, window, logs, kept, context), settled.far):
                tally.add(again.rows)
                tell(again.keys)
                # An empty piece of a table would keep all of it.
                rest += [left for left in (again.open, again.far) if len(left)]
                del again
            if len(settled.far):
                give_back_memory()
            table = joined([settled.open, *([coming.result()] if coming else [])])
            del logs[0]
    return Swept(tally.rows(), joined([*rest, table]), frozenset(faulty))


def judge_far(here: Neighbourhood, far: pa.Table) -> Iterator[Settled]:
    """Judge requests that ask for messages of earlier windows, together as long as these lie side by side."""
    if not len(far):
        return
    asked = _asked_windows(here.windows.plan, here.windows.placed(far))
    # What is not judged although its messages are at hand hangs on something else.
    is_near = asked >= here.window - REACH
    if here.windows.earliest:
        is_near |= asked < here.windows.earliest + REACH
    near = taken(far, np.flatnonzero(is_near))
    yield Settled(RESULT_SCHEMA.empty_table(), near.slice(0, 0), near, NO_KEYS)
    left = np.unique(asked[~is_near])
    while len(left):
        together = left[left < left[0] + READ]
        first, last = int(together[0]), int(together[-1])
        mine = taken(far, np.flatnonzero((asked >= first) & (asked <= last)))
        yield here.apart(first, last).settle(mine)
        left = left[len(together) :]


def _asked_windows(plan: WindowPlan, far: pa.Table) -> Integers:
    """Of each row the window in which the message came that its request asks for."""
    found = np.zeros(len(far), dtype=np.int64)
    for name, events in make_batch(far).queues():
        rows = np.arange(len(events))
        asked = events.answer_to(events.request_key, "request_received")
        found[events.table_rows(rows)] = plan.window_of(name, events.integers("offset", asked))
    return found
