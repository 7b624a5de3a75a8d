"""Surveys one input split, and summarises each queue's log in it.

It reads a third of the columns. The summary shows which part of a log can matter to a request, and whether a log can be
judged window by window (`windows`). Requests are judged in `window_pulls`.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from longpoll_judge.columns.batch import queue_numbers
from longpoll_judge.columns.lookup import Booleans, Integers, are_of, order_by
from longpoll_judge.columns.queue_log import BEGINNING, NEVER
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.evidence.survey import SURVEY_COLUMNS, Survey, survey_split
from longpoll_judge.read.schema import DEFAULTS, Damage, coded
from longpoll_judge.read.source import InputSplit, read_split
from longpoll_judge.run.queue_verdict import LOG_EVENTS
from longpoll_spec.tables import with_table

_LOG_COLUMNS: Final = (
    *("event", "after_ns", "before_ns", "source", "broker", "topic", "queue", "queue_offset", "visible_end"),
)
OVERVIEW_COLUMNS: Final = tuple(dict.fromkeys((*_LOG_COLUMNS, *SURVEY_COLUMNS)))
"""The columns that are read of a split before judging."""


@with_table
class LogSpan(msgspec.Struct, frozen=True, array_like=True):
    """One split's view of one queue's log through one source. Without values the least is `NEVER`, the highest -1."""

    broker: str
    topic: str
    queue: int
    source: str
    count: int
    append_count: int
    append_min: int
    append_max: int
    known_min: int
    """Offsets of appended and of acknowledged messages, without negative ones."""
    known_max: int
    acknowledged_max: int
    visible_min: int
    """Visible ends."""
    visible_max: int
    visible_early: int
    """The highest visible end reported before its last message was appended, as the split shows it."""
    after_min_ns: int
    after_max_ns: int
    before_min_ns: int
    before_max_ns: int
    rises: bool
    """In order of time every append takes the next offset, every acknowledgement and every visible end a higher one."""


Extent = tuple[int, int, int, int]
"""How many events a split has, the least and the highest `after_ns`, and a sum of the numbers that were looked at."""
_SUMMED: Final = ("after_ns", "queue_offset", "visible_end", "code")
"""Columns of numbers in which no two splits are alike; few, since they are added up twice."""
_WEIGHTS: Final = np.array([0x9E3779B97F4A7C15 * (2 * place + 1) % 2**64 for place in range(len(_SUMMED))], np.uint64)
"""Odd ones, so that what moves from one column to another shows."""


@with_table
class Overview(msgspec.Struct, frozen=True):
    """The summary of one split."""

    survey: Survey
    spans: list[LogSpan]
    first_ns: int
    """The least `after_ns`; `NEVER` of an empty split."""
    last_ns: int
    """The highest `after_ns`; `BEGINNING` of an empty split."""
    numbers_sum: int
    """Distinguishes these events from others with the same timestamps."""

    @property
    def extent(self) -> Extent:
        """How many events there are, from when to when, and what tells them from others."""
        return self.survey.event_count, self.first_ns, self.last_ns, self.numbers_sum


def overview_of(part: InputSplit) -> Overview:
    """Look over a split."""
    return overview_of_table(*read_split(part, OVERVIEW_COLUMNS))


def read_again(part: InputSplit, extent: Extent) -> pa.Table:
    """The events of a split that was looked over and had this extent, perhaps without columns that none of them uses.

    Raises `HistoryChangedError` where others are there now: what is known of the evidence would not hold of these.
    """
    table, _damages = read_split(part, sparse=True)
    if _extent(table) != extent:
        raise HistoryChangedError(f"{part.path} changed during the judgement; judge again")
    return table


def overview_of_table(table: pa.Table, damages: list[Damage]) -> Overview:
    """Look over the events of a split."""
    _count, first_ns, last_ns, numbers_sum = _extent(table)
    return Overview(survey_split(table, damages), log_spans(table), first_ns, last_ns, numbers_sum)


def _extent(table: pa.Table) -> Extent:
    after_ns = table["after_ns"].to_numpy()
    sums = np.array([_sum_of(table, name) for name in _SUMMED], np.uint64)
    return (
        len(table),
        int(after_ns.min(initial=NEVER)),
        int(after_ns.max(initial=BEGINNING)),
        int((sums * _WEIGHTS).sum()),
    )


def _sum_of(table: pa.Table, name: str) -> int:
    """The sum of a column of numbers, as of ones without a sign and of 64 bits."""
    if name not in table.column_names:
        return int(DEFAULTS[name]) * len(table) % 2**64
    return int(table[name].to_numpy().view(np.uint64).sum())


def log_spans(table: pa.Table) -> list[LogSpan]:
    """The numbers of every queue's log, apart for each source."""
    codes, names = coded(table, "event")
    is_log = are_of(codes, names, LOG_EVENTS)
    if not is_log.any():
        return []
    log = table.select(_LOG_COLUMNS).take(pa.array(np.flatnonzero(is_log)))
    queue, _rows = queue_numbers(log)
    sources, source_names = coded(log, "source")
    key = queue.astype(np.int64) * len(source_names) + sources
    codes, order = codes[is_log], order_by(key, log["after_ns"].to_numpy())
    if (order[1:] < order[:-1]).any():
        # Parts that are written here have a queue's events together and in order already.
        log, key, codes = log.take(pa.array(order)), key[order], codes[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    appended, acknowledged, moved, seen = (
        codes == (names.index(kind) if kind in names else -1)
        for kind in ("append", "message_acknowledged", "make_visible", "message_seen")
    )
    offset, end = log["queue_offset"].to_numpy(), log["visible_end"].to_numpy()
    is_known = (appended | acknowledged | seen) & (offset >= 0)
    after_ns, before_ns = log["after_ns"].to_numpy(), log["before_ns"].to_numpy()

    def least(values: Integers) -> list[int]:
        found: list[int] = np.minimum.reduceat(values, starts).tolist()
        return found

    def most(values: Integers) -> list[int]:
        found: list[int] = np.maximum.reduceat(values, starts).tolist()
        return found

    counts = np.diff(np.append(starts, len(key))).tolist()
    appends = np.add.reduceat(appended.astype(np.int64), starts).tolist()
    columns = (
        *(least(np.where(appended, offset, NEVER)), most(np.where(appended, offset, BEGINNING))),
        *(least(np.where(is_known, offset, NEVER)), most(np.where(is_known, offset, -1))),
        most(np.where(acknowledged, offset, -1)),
        *(least(np.where(moved, end, NEVER)), most(np.where(moved, end, BEGINNING))),
        most(np.where(_are_early(key, (after_ns, before_ns), appended, moved, (offset, end)), end, BEGINNING)),
        *(least(after_ns), most(after_ns), least(before_ns), most(before_ns)),
    )
    falls = (
        _falls(key, offset, appended, strictly=True)
        | _falls(key, offset, acknowledged, strictly=True)
        | _falls(key, offset, seen, strictly=False)
        | _falls(key, end, moved, strictly=False)
    )
    rises = np.add.reduceat(falls.astype(np.int64), starts) == 0
    firsts = log.select(["broker", "topic", "queue", "source"]).take(pa.array(starts)).to_pylist()
    return [
        msgspec.convert((*first.values(), count, append_count, *numbers), LogSpan)
        for first, count, append_count, *numbers in zip(firsts, counts, appends, *columns, rises.tolist(), strict=True)
    ]


def _are_early(
    key: Integers,
    moments: tuple[Integers, Integers],
    appended: Booleans,
    moved: Booleans,
    values: tuple[Integers, Integers],
) -> Booleans:
    """Which visible ends lie past what was appended by then, in rows of several logs.

    Args:
        key: Which log each row is of.
        moments: Its `after_ns` and `before_ns`.
        appended: Whether it is an append.
        moved: Whether it tells a visible end.
        values: The offsets and the visible ends.
    """
    (after_ns, before_ns), (offset, end) = moments, values
    # An append may have been done when it began, an end may have been told as late as it ended.
    for moment_ns in (after_ns, np.where(moved, before_ns, after_ns)):
        order = order_by(key, moment_ns) if moment_ns is after_ns else np.lexsort((moved, moment_ns, key))
        group, is_append = key[order], appended[order]
        last = np.maximum.accumulate(np.where(is_append, np.arange(len(order)), -1))
        has_any = (last >= 0) & (group[last] == group)
        reached = np.where(has_any, offset[order][last] + 1, BEGINNING)
        found = np.zeros(len(key), dtype=np.bool_)
        found[order] = moved[order] & (end[order] > reached)
        if not found.any():
            # In the order of what is told first, which is at hand, there is none as a rule.
            break
    return found


def _falls(key: Integers, values: Integers, rows: Booleans, *, strictly: bool) -> Booleans:
    """Which of the rows have a lower value than the one before of the same key; or the same, if they must rise."""
    places = np.flatnonzero(rows)
    rise = np.diff(values[places])
    falls = np.zeros(len(key), dtype=np.bool_)
    falls[places[1:]] = (np.diff(key[places]) == 0) & (rise < (1 if strictly else 0))
    return falls
