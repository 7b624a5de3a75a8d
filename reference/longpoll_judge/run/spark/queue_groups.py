"""Puts events into groups of queues with one exchange, and judges the pulls of each group window by window.

    events -> queue group and window -> exchange by queue group -> sort by window -> judge

The hash of (broker, topic, queue) gives an event's bucket. A bucket with more than its share of the events is salted:
it becomes several groups, each with a run of windows. A log event next to the border of two runs goes to both groups.
Each group is swept as in one process (`window_sweep`); a request that needs more than its group has is a row again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.keys import NO_KEYS, Keys, request_keys
from longpoll_judge.columns.memory import keep_freed_memory
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import EVENT_SCHEMA, PLAIN_SCHEMA, REQUIRED, fill
from longpoll_judge.run.queue_verdict import LOG_EVENTS, RESULT_SCHEMA
from longpoll_judge.run.window_sweep import EventFile, Swept, WindowReader, log_of, sweep
from longpoll_judge.run.windows import WindowPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from longpoll_judge.run.spark.code_archive import Batches, Work

LEFT: Final = "left"
FAULTY: Final = "faulty"
JUDGED_KEY: Final = "judged_key"
LEFT_KEY: Final = "left_key"
"""Kinds of rows besides those of `RESULT_SCHEMA`: an event of a request that is left, the name of a queue whose log may
be at fault, and the keys of requests that were judged and that are left."""
PULL_COLUMNS: Final = tuple(name for name in PLAIN_SCHEMA.names if name not in ("direction", "lost_count", "actors"))
"""The fields of requests and logs; only the survey reads the others."""
SWEPT: Final = pa.schema(
    [*RESULT_SCHEMA, ("key", pa.int64()), ("event", pa.struct([PLAIN_SCHEMA.field(name) for name in PULL_COLUMNS]))]
)
_KEY_ROWS: Final = 1 << 16


@frozen
class QueueGroups:
    """Groups of queues; a group is a number."""

    windows: int
    salts: tuple[int, ...]
    """By bucket, how many groups it is."""

    @property
    def _firsts(self) -> list[int]:
        """By bucket, its first group."""
        return [0, *accumulate(self.salts)]

    @property
    def count(self) -> int:
        """How many groups there are."""
        return sum(self.salts)

    def run_of(self, group: int) -> tuple[int, int]:
        """The windows [first, end) of a group."""
        firsts = self._firsts
        bucket = int(np.searchsorted(firsts, group, side="right")) - 1
        salts, salt = self.salts[bucket], group - firsts[bucket]
        first, end = (-(-at * self.windows // salts) for at in (salt, salt + 1))
        return first, end

    def keyed(self, events: DataFrame) -> DataFrame:
        """Events that have a `window`, with their `queue_group`, and sorted by group and window within a partition."""
        texts = "coalesce(broker, ''), coalesce(topic, ''), coalesce(queue, -1)"
        bucket = f"CAST(pmod(crc32(concat({texts})), {len(self.salts)}) AS INT)"
        names = [*PULL_COLUMNS, "window"]
        if self.count == len(self.salts):
            keyed = events.selectExpr(*names, f"{bucket} AS queue_group")
        else:
            salts, firsts = (f"array({', '.join(map(str, each))})" for each in (self.salts, self._firsts[:-1]))
            salted = events.selectExpr(*names, f"{bucket} + 1 AS bucket")
            salted = salted.selectExpr(*names, f"{firsts}[bucket - 1] AS first", f"{salts}[bucket - 1] AS salts")
            near = (_salted(at, self.windows) for at in ("window", "window - 1", "window + 1"))
            logs = ", ".join(f"'{name}'" for name in LOG_EVENTS)
            groups = f"CASE WHEN event IN ({logs}) THEN array_distinct(array({', '.join(near)}))"
            groups += f" ELSE array({_salted('window', self.windows)}) END"
            keyed = salted.selectExpr(*names, f"explode({groups}) AS queue_group")
        placed = keyed.selectExpr("*", f"queue_group * {self.windows} + window AS place")
        return placed.repartition("queue_group").sortWithinPartitions("place")


def _salted(window: str, windows: int) -> str:
    """The group of a window, by the first group of its bucket and how many groups that is."""
    at = f"greatest(0, least({windows - 1}, {window}))"
    return f"CAST(first + {at} * salts DIV {windows} AS INT)"


def queue_groups(plan: WindowPlan, parallel: int, *, unplaced: bool) -> QueueGroups:
    """Groups of about equal size, some for each task that runs at once.

    Args:
        plan: The windows, with the size of each queue's log.
        parallel: How many tasks run at once.
        unplaced: Whether some answers name no queue, so that queues can only be separated after requests are joined.
    """
    windows, everywhere = len(plan.windows), np.ones(len(plan.windows), dtype=np.bool_)
    names = list(plan.queues)
    buckets = 1 if unplaced else max(1, min(len(names), 2 * parallel))
    logged = np.zeros(buckets)
    for name in names:
        logged[bucket_of(name, buckets)] += plan.log_count(name, everywhere)
    fair = max(2 * parallel, 1)
    wanted = np.rint(logged / max(logged.sum(), 1) * fair).astype(int)
    return QueueGroups(windows, tuple(np.clip(wanted, 1, max(windows, 1)).tolist()))


def bucket_of(name: QueueName, buckets: int) -> int:
    """The bucket of a queue, as `QueueGroups.keyed` computes it."""
    return zlib.crc32("".join(map(str, name)).encode()) % buckets


@define
class GroupedWindows(WindowReader):
    """The windows of one group, as they come: each can be read once, in order."""

    coming: Iterator[tuple[int, pa.Table]] = field(kw_only=True)
    _next: tuple[int, pa.Table] | None = None

    def events(self, window: int) -> pa.Table:
        """All events of a window of this group."""
        if self._next is None:
            self._next = next(self.coming, None)
        if self._next is None or self._next[0] != window:
            assert self._next is None or self._next[0] > window, "windows are read in order"
            return EVENT_SCHEMA.empty_table()
        table, self._next = self._next[1], None
        return table

    def log(self, window: int) -> pa.Table:
        """The log events of a window of this group."""
        return log_of(self.events(window))

    def keep(self, window: int, log: pa.Table, kept: EventFile) -> None:
        """Keep a log, for pulls of later windows that ask for its messages."""
        kept.put(window, log)


@frozen
class GroupJudge:
    """The work of a task on the sorted events of some groups; returns rows of `SWEPT`."""

    groups: QueueGroups
    plan: WindowPlan
    unplaced: bool
    context: Context
    held: Keys

    def judge(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Judge group after group."""
        keep_freed_memory()
        windows = self.groups.windows
        for group, tables in groupby(_by_place(batches), lambda one: one[0] // windows):
            first, end = self.groups.run_of(group)
            coming = ((place % windows, table) for place, table in tables)
            reader = GroupedWindows(self.plan, _not_read, self.unplaced, max(first - 1, 0), coming=coming)
            keys: list[Keys] = []
            swept = sweep(reader, (first, end), self.context, self.held, keys.append)
            yield from _rows_of(swept, np.concatenate([NO_KEYS, *keys]))


def _not_read(split: int) -> pa.Table:
    raise AssertionError(f"split {split} is not read again")


def group_judge(groups: QueueGroups, plan: WindowPlan, context: Context, held: Keys, *, unplaced: bool) -> Work:
    """The work of a task, see `GroupJudge`."""
    judge = GroupJudge(groups, plan, unplaced, context, held)

    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from judge.judge(batches)

    return work


def _by_place(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """The sorted events of each place, columns of `EVENT_SCHEMA` without those that are null."""
    place, waiting = -1, list[pa.RecordBatch]()
    for batch in batches:
        places = batch.column("place").to_numpy()
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(places)], strict=True):
            if places[start] != place and waiting:
                yield place, _events_of(waiting)
                waiting = []
            place = int(places[start])
            waiting.append(batch.slice(start, end - start))
    if waiting:
        yield place, _events_of(waiting)


def _events_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches).combine_chunks()
    names = [name for name in PULL_COLUMNS if name in REQUIRED or table[name].null_count < len(table)]
    return fill(table.select(names), names)


def _rows_of(swept: Swept, keys: Keys) -> Iterator[pa.RecordBatch]:
    yield from _swept_rows(swept.rows)
    faulty = sorted(swept.faulty)
    yield from _swept_rows(_plain_rows(FAULTY, ["\0".join(map(str, name)) for name in faulty]))
    if len(swept.rest):
        left = fill(swept.rest, PULL_COLUMNS).cast(pa.schema([PLAIN_SCHEMA.field(name) for name in PULL_COLUMNS]))
        event = left.combine_chunks().to_struct_array()
        yield from _swept_rows(_plain_rows(LEFT, [""] * len(left)), event=event)
        left_keys = np.unique(request_keys(swept.rest, np.arange(len(swept.rest))))
        yield from _key_rows(LEFT_KEY, left_keys)
    yield from _key_rows(JUDGED_KEY, keys)


def _key_rows(kind: str, keys: Keys) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(keys), _KEY_ROWS):
        some = keys[start : start + _KEY_ROWS]
        yield from _swept_rows(_plain_rows(kind, [""] * len(some)), key=pa.array(some.view(np.int64)))


def _plain_rows(kind: str, texts: Sequence[str]) -> pa.Table:
    """Rows of `RESULT_SCHEMA` of one kind."""
    numbers = pa.array(np.zeros(len(texts), dtype=np.int64))
    ones = pa.array(np.ones(len(texts), dtype=np.int64))
    return pa.table([pa.repeat(kind, len(texts)), numbers, ones, pa.array(texts, pa.string())], RESULT_SCHEMA)


def _swept_rows(rows: pa.Table, **more: Any) -> Iterator[pa.RecordBatch]:
    columns = [rows[name] for name in RESULT_SCHEMA.names]
    columns += [more.get(name, pa.nulls(len(rows), SWEPT.field(name).type)) for name in ("key", "event")]
    yield from pa.table(columns, SWEPT).to_batches()


def left_events(rows: pa.Table) -> pa.Table:
    """The events of requests that are left, among some rows of `SWEPT`."""
    events = rows["event"].combine_chunks()
    events = events.chunk(0) if isinstance(events, pa.ChunkedArray) else events
    return fill(pa.table(events.flatten(), names=list(PULL_COLUMNS)))


def faulty_queues(rows: pa.Table) -> set[QueueName]:
    """The queues whose log may be at fault, among some rows of `SWEPT`."""
    named = (text.split("\0") for text in rows["text"].to_pylist())
    return {(broker, topic, int(queue)) for broker, topic, queue in named}
