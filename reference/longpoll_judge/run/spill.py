"""Keeps events on disk that are dear to read: splits from the survey until they are judged, and logs of windows.

A temporary file holds them one after the other. `columns.batch` makes bytes of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.batch import compacted, decode, encode
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import InputSplit
from longpoll_judge.run.overview import Overview

IN_MEMORY_EVENTS: Final = 10_000
"""So many events wait in memory, since to write and read a few costs as much as to judge them."""


@define
class Spill:
    """Splits on disk, or the first of them in memory, and what was seen when they were looked over."""

    _file: BinaryIO
    _kept: dict[tuple[bytes, int], tuple[int, int, Overview]] = field(factory=dict)
    """By key and mark where each begins, its length, and what was seen."""
    _end: int = 0
    _tables: dict[tuple[bytes, int], pa.Table] = field(factory=dict)
    """Those that are in memory."""

    def put(self, part: InputSplit, table: pa.Table, overview: Overview, mark: int = 0) -> None:
        """Keep the events of a split; its `mark` distinguishes it from a later split of the same place."""
        key = key_of(part), mark
        if len(table) + sum(map(len, self._tables.values())) <= IN_MEMORY_EVENTS:
            self._tables[key] = fill(compacted(table, 1))
            self._kept[key] = (self._end, 0, overview)
            return
        content = encode(table)
        self._file.seek(self._end)
        self._file.write(content)
        self._kept[key] = (self._end, len(content), overview)
        self._end += len(content)

    def overview(self, part: InputSplit, mark: int = 0) -> Overview | None:
        """The overview of a split; None if it is not kept."""
        kept = self._kept.get((key_of(part), mark))
        return None if kept is None else kept[2]

    def get(self, part: InputSplit, mark: int = 0) -> pa.Table | None:
        """The events of a split, with all columns; None of one that is not kept."""
        key = key_of(part), mark
        kept = self._kept.get(key)
        if kept is None or key in self._tables:
            return self._tables.get(key)
        start, length, _overview = kept
        self._file.seek(start)
        return fill(decode(self._file.read(length)))


@define
class LogFile:
    """The logs of some windows on disk."""

    _file: BinaryIO
    _kept: dict[int, tuple[int, int]] = field(factory=dict)
    """By window where each begins, and its length."""
    _end: int = 0

    def put(self, window: int, log: pa.Table) -> None:
        """Keep a log."""
        content = encode(log)
        self._file.seek(self._end)
        self._file.write(content)
        self._kept[window] = self._end, len(content)
        self._end += len(content)

    def get(self, window: int) -> pa.Table | None:
        """A log with the columns that it uses; None if it is not kept."""
        if window not in self._kept:
            return None
        start, length = self._kept[window]
        self._file.seek(start)
        return decode(self._file.read(length))


@contextmanager
def open_logs() -> Iterator[LogFile]:
    """A file of logs that goes with the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file:
        yield LogFile(file)


def key_of(part: InputSplit) -> bytes:
    """Equal for equal splits."""
    return msgspec.msgpack.encode(part, order="deterministic")


@contextmanager
def open_spill() -> Iterator[Spill]:
    """A spill whose file goes with the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file:
        yield Spill(file)
