"""The engine on Spark: slices are spread over workers, their pieces are shuffled by bucket, queues are judged by Arrow.

A row of the shuffle is a piece of some thousand events, so the columns of an event never pass through the JVM one by
one. Leaves out what is judged (`verdict`), pieces (`exchange`) and the session (`session`). Parts must lie where every
worker can read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import pyarrow as pa
from attrs import define, field, frozen
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from longpoll_judge.exchange import (
    LOG,
    SHARDS,
    WHOLE,
    Piece,
    decode,
    encode,
    joined,
    requests_of,
    split,
    unit_count,
)
from longpoll_judge.local import read_and_survey
from longpoll_judge.placing import place_answers
from longpoll_judge.schema import fill
from longpoll_judge.session import open_session, unclosed_sockets_ignored
from longpoll_judge.source import Slice
from longpoll_judge.survey import Context, Survey
from longpoll_judge.verdict import RESULT_SCHEMA, judge_shared

_SHUFFLE_PARTITIONS_MIN: Final = 16
_SQL_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint"}
PIECE_COLUMNS: Final = "bucket bigint, shard bigint, events bigint, content binary"
"""How pieces travel: a row a piece, its events as an Arrow stream, which Spark need not look into."""
_PIECE_SCHEMA: Final = pa.schema(
    [("bucket", pa.int64()), ("shard", pa.int64()), ("events", pa.int64()), ("content", pa.binary())]
)
SURVEY_BUCKET: Final = -1
"""Stands in the one row a slice whose content is a `SliceSurvey`."""
UNIT_EVENTS_MIN: Final = 65_536
UNIT_EVENTS_MAX: Final = 4_000_000
"""A bucket is shared out when it has more events than each core would have of all of them, within these bounds."""
Batches = Iterable[pa.RecordBatch]


class SliceSurvey(msgspec.Struct, frozen=True):
    """The survey of a slice, and how many events of it are in each bucket."""

    survey: Survey
    buckets: dict[int, int]


def _row(bucket: int, shard: int, events: int, content: bytes) -> pa.RecordBatch:
    values = ([bucket], [shard], [events], [content])
    arrays = [pa.array(value, column.type) for value, column in zip(values, _PIECE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_PIECE_SCHEMA)


def _reader(slices: Sequence[Slice]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """What a worker does with the numbers of its slices: it gives their pieces, and one survey row a slice."""

    def read_all(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table, survey = read_and_survey(slices[number])
                buckets: Counter[int] = Counter()
                for piece in split(table):
                    buckets[piece.bucket] += piece.events
                    yield _row(piece.bucket, piece.shard, piece.events, encode(piece.table))
                content = msgspec.json.encode(SliceSurvey(survey, dict(buckets)))
                yield _row(SURVEY_BUCKET, WHOLE, 0, content)

    return read_all


def _pieces(rows: pa.Table) -> Iterator[Piece]:
    """The pieces of some rows."""
    for batch in rows.to_batches():
        numbers = zip(*(batch.column(name).to_pylist() for name in ("bucket", "shard", "events")), strict=True)
        for (bucket, shard, events), content in zip(numbers, batch.column("content"), strict=True):
            yield Piece(bucket, shard, events, decode(content.as_buffer()))


def _ddl(schema: pa.Schema) -> str:
    """An Arrow schema in Spark's words."""
    return ", ".join(f"`{column.name}` {_SQL_TYPES[column.type]}" for column in schema)


@define
class SparkReading:
    """Pieces of a history, kept by Spark between the survey and the verdicts (in memory, else on disk)."""

    _pieces: DataFrame
    _parallel: int
    _buckets: Counter[int] = field(factory=Counter)
    """How many events each bucket has."""

    def surveys(self) -> Iterator[Survey]:
        """See `job.Reading.surveys`."""
        with unclosed_sockets_ignored():
            rows = self._pieces.filter(F.col("bucket") == SURVEY_BUCKET).select("content").collect()
        for row in rows:
            found = msgspec.json.decode(row["content"], type=SliceSurvey)
            self._buckets.update(found.buckets)
            yield found.survey

    def verdicts(self, context: Context, *, unplaced: bool) -> pa.Table:
        """See `job.Reading.verdicts`."""

        def judge_unit(rows: pa.Table) -> pa.Table:
            unit, units = rows["unit"][0].as_py(), rows["units"][0].as_py()
            pieces = list(_pieces(rows))
            log = joined(piece.table for piece in pieces if piece.shard == LOG)
            share = joined(requests_of(piece, unit, units) for piece in pieces if piece.shard != LOG)
            return judge_shared(log, [share], context, tells_logs=unit == 0)

        pieces = self._pieces.filter(F.col("bucket") != SURVEY_BUCKET)
        if unplaced:
            pieces = place_all(pieces)
        with unclosed_sockets_ignored():
            shared = _shared_out(pieces, F.coalesce(_units(self._units_by_bucket()), F.lit(1)))
            return shared.groupBy("bucket", "unit").applyInArrow(judge_unit, _ddl(RESULT_SCHEMA)).toArrow()

    def _units_by_bucket(self) -> dict[int, int]:
        fair = self._buckets.total() // self._parallel
        unit_events = min(max(fair, UNIT_EVENTS_MIN), UNIT_EVENTS_MAX)
        return {bucket: unit_count(events, unit_events) for bucket, events in self._buckets.items()}


def _units(by_bucket: dict[int, int]) -> Column:
    """Each row's number of units; null where its bucket is not known."""
    items = [F.lit(number) for bucket, units in by_bucket.items() for number in (bucket, units)]
    return F.element_at(F.create_map(*items), F.col("bucket")) if items else F.lit(None).cast("int")


def _shared_out(pieces: DataFrame, units: Column) -> DataFrame:
    """Every piece once for each unit that needs it."""
    counted = pieces.withColumn("units", units)
    everywhere = F.sequence(F.lit(0), F.col("units") - 1)
    mine = F.array(F.pmod("shard", "units").cast("int"))
    return counted.withColumn("unit", F.explode(F.when(F.col("shard") < 0, everywhere).otherwise(mine)))


@frozen
class SparkEngine:
    """Reads slices and judges queues as Spark jobs."""

    session: SparkSession

    @contextmanager
    def read(self, slices: Sequence[Slice]) -> Iterator[SparkReading]:
        """See `job.Engine.read`."""
        numbers = self.session.range(0, len(slices), 1, max(len(slices), 1))
        pieces = numbers.mapInArrow(_reader(slices), PIECE_COLUMNS).persist(StorageLevel.MEMORY_AND_DISK)
        yield SparkReading(pieces, self.session.sparkContext.defaultParallelism)
        pieces.unpersist()  # not after a failure: Spark may be busy or gone then, and ends with its session anyway


def place_all(pieces: DataFrame) -> DataFrame:
    """Give answers that name no queue those of their requests: both have the same share (as the other engine does)."""

    def place(rows: pa.Table) -> pa.Table:
        unit = rows["unit"][0].as_py()
        placed = place_answers(fill(joined(requests_of(piece, unit, SHARDS) for piece in _pieces(rows))))
        return _rows(split(placed))

    is_log = F.col("shard") == LOG
    shared = _shared_out(pieces.filter(~is_log), F.lit(SHARDS))
    return shared.groupBy("unit").applyInArrow(place, PIECE_COLUMNS).union(pieces.filter(is_log))


def _rows(pieces: Iterable[Piece]) -> pa.Table:
    rows = [_row(piece.bucket, piece.shard, piece.events, encode(piece.table)) for piece in pieces]
    return pa.Table.from_batches(rows, _PIECE_SCHEMA)


@contextmanager
def open_engine(master: str | None = None) -> Iterator[SparkEngine]:
    """An engine on a session of its own."""
    with open_session(master) as session:
        parallel = session.sparkContext.defaultParallelism
        session.conf.set("spark.sql.shuffle.partitions", str(max(_SHUFFLE_PARTITIONS_MIN, 4 * parallel)))
        yield SparkEngine(session)
