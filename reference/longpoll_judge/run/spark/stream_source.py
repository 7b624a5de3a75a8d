"""A Python data source for streams: the new events of growing histories, a row per input split.

The follower keeps how far it read, with what it judged, in one file. So a query starts at the follower's position, and
its own checkpoint is not used. `read.growing_history` decides which lines are complete; `event_stream` takes the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from longpoll_judge.columns.batch import encode
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.source import InputSplit, find, kind_of, read_split
from longpoll_spec.history import NDJSON_SUFFIX

NAME: Final = "longpoll-new-events"
DIRECTORIES: Final = "directories"
ENDS: Final = "ends"
"""The options: JSON, a list of paths, and by part how far it was judged before."""
COLUMNS: Final = "number bigint, part string, until bigint, events binary, damages binary"
_SCHEMA: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("part", pa.string()),
        ("until", pa.int64()),
        ("events", pa.binary()),
        ("damages", pa.binary()),
    ]
)
BATCH_BYTES: Final = 64 << 20
"""About what is read at once, in bytes of lines: what is behind comes in several batches."""
PACKED: Final = 12
"""How many bytes of lines one of Parquet or of compressed lines may stand for."""


class NewEvents(DataSourceStreamReader):
    """The new events in some directories from given ends on, as rows of `COLUMNS`, ordered by `number` in a batch."""

    def __init__(self, directories: Sequence[str], ends: Mapping[str, int]) -> None:
        self._growth = GrowingHistory(list(directories))
        self._first = dict(ends)
        self._ends = dict(ends)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """By part how far it was judged before."""
        return self._first

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """By part how far the next batch reads."""
        history = self._growth.look()
        count = Counter(part.path for part in history.splits)
        size = 0
        for part in history.splits:
            start = max(part.start, self._ends.get(part.path, 0))
            if part.end <= start:
                continue
            is_lines = kind_of(part.path) == NDJSON_SUFFIX
            size += part.end - start if is_lines else PACKED * self._growth.stamps[part.path].size // count[part.path]
            self._ends[part.path] = part.end
            if size >= BATCH_BYTES:
                break
        return dict(self._ends)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The splits of what is new."""
        self._ends = dict(end)
        found = [_between(part, start, end) for part in find(self._growth.paths).splits]
        return [InputPartition(numbered) for numbered in enumerate(each for each in found if each is not None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The events of a split, and what could not be read of it."""
        number, part = cast("tuple[int, InputSplit]", partition.value)
        table, damages = read_split(part)
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "number": number,
                    "part": part.path,
                    "until": part.end,
                    "events": encode(table),
                    "damages": msgspec.msgpack.encode(damages),
                }
            ],
            _SCHEMA,
        )


def _between(part: InputSplit, start: dict[str, int], end: dict[str, int]) -> InputSplit | None:
    """The part of the split between two offsets; None if it is empty."""
    first, last = max(part.start, start.get(part.path, 0)), min(part.end, end.get(part.path, 0))
    return msgspec.structs.replace(part, start=first, end=last) if first < last else None


class NewEventSource(DataSource):
    """`readStream.format(NAME)`, with the options `DIRECTORIES` and `ENDS`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def schema(self) -> str:
        """The columns of a split."""
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """The reader of what is new."""
        directories = msgspec.json.decode(self.options[DIRECTORIES], type=list[str])
        return NewEvents(directories, msgspec.json.decode(self.options[ENDS], type=dict[str, int]))
