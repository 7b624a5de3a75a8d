"""Judges a growing history as one Structured Streaming query, whose checkpoint a restart continues.

| step | what |
| --- | --- |
| scan `longpoll-new-events` | new input splits: a row for each split and queue group, with its events as columns |
| exchange | by queue group |
| `applyInPandasWithState` | a `Growing` for each group, in Spark's state store |
| `foreachBatch` | the results of all groups so far, for the follower |

The pulls and the log of a queue belong to one group, as in `queue_groups`. One more group judges what belongs to no
single queue. Each row has the survey of its whole split, so all groups know the same sources, gaps and clocks.

A batch is committed once its result was reported, so no finding is lost. The workers need `longpoll`.
"""

from __future__ import annotations

import pickle
import queue
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import attrs
import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from longpoll_judge.columns.batch import decode, encode, joined, queue_numbers, taken
from longpoll_judge.columns.keys import request_keys
from longpoll_judge.columns.lookup import Integers, are_of
from longpoll_judge.contract.result import Finding
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.evidence.observers import DELETE_TOPIC
from longpoll_judge.evidence.survey import Survey, merge, survey_split
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.schema import EVENT_SCHEMA, coded, compute, fill
from longpoll_judge.read.source import History, InputSplit, find, kind_of, read_split
from longpoll_judge.rules.cross_queue import have_request, rows_where
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.excerpt import completed
from longpoll_judge.run.incremental.queue_judge import Growing, SoFar
from longpoll_judge.run.incremental.state import (
    WRITTEN_ANEW,
    Limits,
    Parts,
    State,
    packed,
    stream_checkpoint,
    unpacked,
)
from longpoll_judge.run.queue_verdict import FINDING, LOG_EVENTS, RESULT_SCHEMA, Found, Row, as_table
from longpoll_judge.run.spark.engine import SparkEngine, ddl_of
from longpoll_judge.run.spark.queue_groups import bucket_of
from longpoll_judge.run.spark.session import FAULT_CHARACTERS_MAX, fault_of, unclosed_sockets_ignored, with_settings
from longpoll_spec.history import NDJSON_SUFFIX

SOURCE: Final = "longpoll-new-events"
DIRECTORIES: Final = "directories"
"""The option: JSON, a list of paths."""
GROUPS: Final = 8
"""Number of queue groups. The group with this number judges all queues together. Checkpoints depend on it."""
NEW_EVENTS: Final = pa.schema(
    [
        ("queue_group", pa.int64()),
        ("part", pa.string()),
        *((name, pa.int64()) for name in ("until", "rewritten")),
        *((name, pa.binary()) for name in ("events", "survey", "history")),
    ]
)
"""A row of the scan. `until` is the end of what was read of its part. `rewritten` counts the parts that were rewritten
or cut since the batch before. `history` is a pickled `History` without its splits and damages."""
OUTCOMES: Final = pa.schema([("queue_group", pa.int64()), *RESULT_SCHEMA])
"""A row of the result: those of `RESULT_SCHEMA`, and of the kinds below."""
SURVEY, DOUBT, FAR, BESIDE, UNTOLD, COMPLETED, READ = (
    *("survey", "doubt", "far", "beside", "untold", "completed", "read"),
)
"""Kinds of rows, after the fields of `SoFar`; a finding with its evidence completed; how far a part was read."""
BATCH_BYTES: Final = 64 << 20
"""Approximate size of a batch, in bytes of lines."""
PACKED: Final = 12
"""Assumed bytes of lines for each byte of Parquet or compressed lines."""
TRIGGER: Final = "500 milliseconds"
LOOK_S: Final = 0.2
"""How often a waiting batch checks whether the follower still exists."""
BEGUN_MAX: Final = 20
"""Maximum queries in succession without a result, because no worker started in ten seconds."""
_WORKER: Final = "Python worker"
"""Part of Spark's message if a worker did not start or died. Only then another query helps."""
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": str(GROUPS),
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


# -- the scan ----------------------------------------------------------------------------------------------------------


class NewEvents(DataSourceStreamReader):
    """The new events in some directories. The offset says by part how far it was read, with a checksum of that."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._growth = GrowingHistory(list(directories))
        self._parts = Parts()
        self._rewritten = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offset of an unread history."""
        return {"parts": {}, "rewritten": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch, by part."""
        history = self._growth.look()
        ends = {part: end for part, (end, _sum) in self._parts.known.items()}
        self._rewritten += self._parts.are_anew(self._growth.stamps, ends)
        count = Counter(part.path for part in history.splits)
        size = 0
        for part in history.splits:
            start = max(part.start, ends.get(part.path, 0))
            if part.end <= start:
                continue
            is_lines = kind_of(part.path) == NDJSON_SUFFIX
            size += part.end - start if is_lines else PACKED * self._growth.stamps[part.path].size // count[part.path]
            ends[part.path] = part.end
            if size >= BATCH_BYTES:
                break
        self._rewritten += self._parts.note(ends)
        return {"parts": dict(self._parts.known), "rewritten": self._rewritten}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The new splits; a restarted query continues from `end`."""
        self._parts.known = {part: (until, known) for part, (until, known) in end["parts"].items()}
        self._rewritten = end["rewritten"]
        history = find(self._growth.paths)
        splits = [between for part in history.splits for between in _between(part, start["parts"], end["parts"])]
        known = pickle.dumps(attrs.evolve(history, splits=[], damages=[]))
        rewritten = end["rewritten"] - start["rewritten"]
        new: list[InputSplit | None] = [*splits] or [None] * bool(rewritten)
        return [InputPartition((part, known, rewritten)) for part in new]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The events of a split, a row of `NEW_EVENTS` for each group."""
        part, known, rewritten = cast("tuple[InputSplit | None, bytes, int]", partition.value)
        table, damages = (EVENT_SCHEMA.empty_table(), []) if part is None else read_split(part)
        survey = msgspec.msgpack.encode(survey_split(table, damages))
        path, until = ("", 0) if part is None else (part.path, part.end)
        for group, events in in_groups(table):
            row = [group, path, until, rewritten, encode(events), survey, known]
            yield pa.RecordBatch.from_arrays(
                [pa.array([value], column.type) for value, column in zip(row, NEW_EVENTS, strict=True)],
                schema=NEW_EVENTS,
            )


def _between(part: InputSplit, start: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[InputSplit]:
    """The part of the split between two offsets, unless it is empty."""
    first, last = max(part.start, start.get(part.path, (0,))[0]), min(part.end, end.get(part.path, (0,))[0])
    if first < last:
        yield msgspec.structs.replace(part, start=first, end=last)


def in_groups(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The events of each group: requests and logs of its queues, and the events that concern every queue.

    An answer goes to its queue's group and to its request's, because these may differ. It goes to every group if its
    request is not in the table, or there for several groups.
    """
    groups = _groups_of(table)
    codes, kinds = coded(table, "event")
    is_answer = rows_where(table, "answer_sent")
    is_common = ~are_of(codes, kinds, (*REQUEST_EVENTS, *LOG_EVENTS))
    is_common |= rows_where(table, "request_received") & (table["code"].to_numpy() == DELETE_TOPIC)
    asking = np.full(len(table), GROUPS, dtype=np.int64)
    asking[is_answer] = _asking_groups(table, groups, np.flatnonzero(is_answer))
    is_common |= is_answer & (asking == GROUPS)
    for group in range(GROUPS):
        yield group, taken(table, np.flatnonzero((groups == group) | (asking == group) | is_common))
    yield GROUPS, table


def _asking_groups(table: pa.Table, groups: Integers, answers: Integers) -> Integers:
    """The group of each answer's request; `GROUPS` if the table has no such request, or several."""
    asked = np.flatnonzero(rows_where(table, "request_received") & have_request(table))
    keys, number = np.unique(request_keys(table, asked), return_inverse=True)
    least, most = (np.full(len(keys) + 1, none, dtype=np.int64) for none in (GROUPS, -1))
    np.minimum.at(least, number, groups[asked])
    np.maximum.at(most, number, groups[asked])
    wanted = request_keys(table, answers)
    at = np.searchsorted(keys, wanted)
    at[np.append(keys, 0)[at] != wanted] = len(keys)
    return np.where(least == most, least, GROUPS)[at]


def _groups_of(table: pa.Table) -> Integers:
    """The group of each event's queue."""
    numbers, rows = queue_numbers(table)
    names = table.select(["broker", "topic", "queue"]).take(pa.array(rows)).to_pylist()
    groups: Integers = np.array([bucket_of((*name.values(),), GROUPS) for name in names], dtype=np.int64)[numbers]
    return groups


def _without_others(table: pa.Table, group: int, pending: pa.Table) -> pa.Table:
    """The events without answers in other groups' queues, unless this group has their requests."""
    answers = np.flatnonzero(rows_where(table, "answer_sent") & (_groups_of(table) != group))
    asked = [request_keys(each, np.flatnonzero(rows_where(each, "request_received"))) for each in (pending, table)]
    others = answers[~np.isin(request_keys(table, answers), np.concatenate(asked))]
    return taken(table, np.setdiff1d(np.arange(len(table)), others))


class NewEventSource(DataSource):
    """`readStream.format(SOURCE)`, with the option `DIRECTORIES`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return SOURCE

    def schema(self) -> str:
        """The columns of a row."""
        return ddl_of(NEW_EVENTS)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """A reader of the new events."""
        return NewEvents(msgspec.json.decode(self.options[DIRECTORIES], type=list[str]))


# -- the state of a group ----------------------------------------------------------------------------------------------


def judge_group(
    group: int, content: bytes | None, rows: Sequence[Mapping[str, Any]], limits: Limits
) -> tuple[bytes, pa.Table]:
    """Judge the new rows of a group of queues.

    Args:
        group: Its number.
        content: Its state, or None at first.
        rows: Those of `NEW_EVENTS`, in any order.
        limits: The thresholds, for a new state.

    Returns its state, and rows of `RESULT_SCHEMA` and the further kinds.
    """
    state = State(Growing(limits.wake_ms, limits.late_ms)) if content is None else unpacked(content)
    growing = state.growing
    growing.part = "pulls" if group < GROUPS else "sends"
    history: History = pickle.loads(rows[0]["history"])  # noqa: S301 - the driver's own bytes
    surveys = [msgspec.msgpack.decode(row["survey"], type=Survey) for row in rows]
    events = fill(joined(decode(row["events"]) for row in rows))
    if group < GROUPS:
        events = _without_others(events, group, growing.pending)
    else:
        growing.doubt(WRITTEN_ANEW, rows[0]["rewritten"])
    growing.add(events, merge(surveys), history)
    so_far = growing.so_far(history)
    known = {finding.id: finding for finding in state.shown}
    listed = {name_of(one): one for one in _findings_of(so_far.rows)} | {name_of(one): one for one in so_far.beside}
    fresh = [msgspec.structs.replace(one, id=name) for name, one in listed.items() if name not in known]
    known |= {one.id: one for one in completed(fresh, growing.tables, growing.survey, history)}
    state.shown = [known[name] for name in listed]
    more: list[Row] = [(DOUBT, 0, count, why) for why, count in so_far.doubts.items()]
    more += [(FAR, 0, so_far.far_count, ""), (UNTOLD, 0, so_far.untold, "")]
    more += [(BESIDE, 0, 1, _text(finding)) for finding in so_far.beside]
    more += [(COMPLETED, 0, 1, _text(finding)) for finding in state.shown]
    if group == GROUPS:
        more.append((SURVEY, 0, 1, _text(growing.survey)))
        more += [(READ, 0, row["until"], row["part"]) for row in rows]
    return packed(state), pa.concat_tables([so_far.rows, as_table(more)])


def name_of(finding: Finding) -> str:
    """A name that does not change when the finding's evidence is completed."""
    return f"{finding.clause} {zlib.crc32(msgspec.json.encode(finding.evidence)):x}"


def _findings_of(rows: pa.Table) -> Iterator[Finding]:
    for text in rows.filter(compute.equal(rows["kind"], FINDING))["text"].to_pylist():
        yield msgspec.json.decode(text, type=Found).finding


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _grouped(limits: Limits) -> Callable[..., Iterator[Any]]:
    """The function of `applyInPandasWithState`."""

    def judge(key: tuple[int], frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        rows = [row for frame in frames for row in frame.to_dict("records")]
        content = bytes(state.get[0]) if state.exists else None
        content, found = judge_group(int(key[0]), content, rows, limits)
        state.update((content,))
        yield found.add_column(0, OUTCOMES.field(0), pa.repeat(key[0], len(found)).cast(pa.int64())).to_pandas()

    return judge


# -- the query ---------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Batch:
    """The results of all groups after one batch."""

    so_far: SoFar
    completed: dict[str, Finding]
    """By `name_of`, findings with completed evidence."""
    ends: dict[str, int]
    """By part, how far this batch read it."""
    is_told: threading.Event = field(factory=threading.Event)
    """Set by the follower once it has reported this."""

    def complete(self, findings: Sequence[Finding]) -> list[Finding]:
        """The findings, each with its completed evidence."""
        made = [(finding, self.completed.get(name_of(finding), finding)) for finding in findings]
        return [msgspec.structs.replace(full, id=one.id, why=one.why, follows=one.follows) for one, full in made]


def batch_of(rows: pa.Table) -> Batch:
    """The results in some rows of `OUTCOMES`, of all groups."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for row in rows.filter(compute.is_in(rows["kind"], value_set=pa.array(_MORE))).to_pylist():
        kinds.setdefault(row["kind"], []).append((row["count"], row["text"]))
    doubts: Counter[str] = Counter()
    for count, why in kinds.get(DOUBT, []):
        doubts[why] += count
    ((_one, survey),) = kinds[SURVEY]
    told = [msgspec.json.decode(text, type=Finding) for _one, text in kinds.get(COMPLETED, [])]
    so_far = SoFar(
        rows=rows.filter(compute.invert(compute.is_in(rows["kind"], value_set=pa.array(_MORE)))),
        survey=msgspec.json.decode(survey, type=Survey),
        doubts=doubts,
        far_count=sum(count for count, _text in kinds[FAR]),
        beside=[msgspec.json.decode(text, type=Finding) for _one, text in kinds.get(BESIDE, [])],
        untold=sum(count for count, _text in kinds[UNTOLD]),
    )
    return Batch(so_far, {one.id: one for one in told}, {part: end for end, part in kinds[READ] if part})


_MORE: Final = [SURVEY, DOUBT, FAR, BESIDE, UNTOLD, COMPLETED, READ]


@define(eq=False)
class StreamJudge:
    """The batches of a query, one at a time. A query that ends is started again and continues from its checkpoint."""

    engine: SparkEngine
    growth: GrowingHistory
    limits: Limits
    checkpoint: Path
    ends: dict[str, int] = field(factory=dict)
    """By part, how far it was judged."""
    begun: int = 0
    """How many queries were begun since a batch was taken."""
    _query: StreamingQuery | None = None
    _waiting: queue.SimpleQueue[Batch] = field(factory=queue.SimpleQueue)
    _closed: threading.Event = field(factory=threading.Event)

    def outcomes(self) -> DataFrame:
        """Rows of `OUTCOMES`: after each batch, those of every group."""
        paths = msgspec.json.encode(list(map(str, self.growth.paths))).decode()
        events = self.engine.session.readStream.format(SOURCE).option(DIRECTORIES, paths).load()
        return events.groupBy("queue_group").applyInPandasWithState(
            _grouped(self.limits), ddl_of(OUTCOMES), "content binary", "update", GroupStateTimeout.NoTimeout
        )

    def begin(self) -> None:
        """Begin a query, or continue it; raises `SparkUnavailableError`."""
        self.begun += 1
        try:
            writer = (
                self.outcomes().writeStream.outputMode("update").foreachBatch(self.take).trigger(processingTime=TRIGGER)
            )
            with with_settings(self.engine.session, _SETTINGS):
                self._query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        except (PySparkException, Py4JJavaError) as error:
            raise self._ended(error) from error

    def take(self, batch: DataFrame, _number: int) -> None:
        """Take a batch, on Spark's thread; returns once it was reported, and raises if it never will be."""
        with unclosed_sockets_ignored():
            rows = batch.toArrow()
        if not len(rows):
            return
        ready = batch_of(rows)
        self._waiting.put(ready)
        while not ready.is_told.wait(LOOK_S):
            if self._closed.is_set():
                raise SparkUnavailableError("the follower ended")

    def _ended(self, error: object) -> SparkUnavailableError:
        why = fault_of(error)[:FAULT_CHARACTERS_MAX]
        remedy = f"if it ends again, remove {self.checkpoint}, and all of the history is judged again"
        return SparkUnavailableError(f"the stream of new events ended: {why}; {remedy}")

    def close(self) -> None:
        """End the query; what was not reported comes again after a restart."""
        self._closed.set()
        if self._query is not None:
            self._query.stop()

    def look(self) -> Batch | None:
        """The next batch, if there is one.

        Raises `SparkUnavailableError` if a query fails, except if only a worker failed; then another query begins.
        """
        assert self._query is not None, "the query must be begun first"
        # Asked first: what a query has brought it brought before it ended.
        is_active = self._query.isActive
        try:
            batch = self._waiting.get_nowait()
        except queue.Empty:
            if not is_active:
                error = self._query.exception()
                if self.begun >= BEGUN_MAX or _WORKER not in str(error):
                    raise self._ended(error) from None
                self.begin()
            return None
        self.begun = 0
        self.ends |= batch.ends
        return batch


@contextmanager
def stream_judge(
    engine: SparkEngine, growth: GrowingHistory, limits: Limits, directory: Path | None
) -> Iterator[StreamJudge]:
    """The query, which ends with the block; with a `directory`, the next one continues it."""
    engine.session.dataSource.register(NewEventSource)
    with TemporaryDirectory(prefix="longpoll-stream-") as temporary:
        checkpoint = Path(temporary) if directory is None else stream_checkpoint(directory)
        found = StreamJudge(engine, growth, limits, checkpoint)
        try:
            found.begin()
            yield found
        finally:
            found.close()
