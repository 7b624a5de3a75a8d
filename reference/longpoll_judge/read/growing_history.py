"""Reads the new part of a growing history. Each read continues where the previous one ended, so no byte is read twice.

An unfinished line is not damage, because only the part of an NDJSON file up to its last newline is read. A Parquet file
has its index at its end, so the file is complete once the index can be read. A part in any other format is complete if
it has not changed between two checks.

A checksum of a few places in a part shows whether the part has changed since it was read, and costs the same for a part
of any size. A rewritten part normally differs at each of the places, because its events have other timestamps. A change
of a single byte between these places goes undetected.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.read import files
from longpoll_judge.read.files import Stamp
from longpoll_judge.read.schema import Damage
from longpoll_judge.read.source import History, InputSplit, RowGroups, find, kind_of, read_ahead, read_split
from longpoll_spec.history import NDJSON_SUFFIX, PARQUET_SUFFIX, PART_FILES

GONE: Final = -1
"""Stands for the checksum of a deleted part."""
_PLACES: Final = 4
"""The number of places in a part that are compared; the first and the last bytes of the part are among them."""
_PLACE_BYTES: Final = 4_096
"""The number of bytes that are compared at each place."""


def checksum_before(part: str, end: int) -> int:
    """Returns the checksum of an NDJSON part up to a byte, or of a whole part in any other format.

    Returns `GONE` if the part no longer exists.
    """
    found = files.entry(part)
    if found is None:
        return GONE
    if kind_of(part) != NDJSON_SUFFIX:
        end = found.size
    total = zlib.crc32(end.to_bytes(8, "big"))
    with suppress(FileNotFoundError), files.open_file(part) as file:
        for number in range(_PLACES):
            file.seek(max(end - _PLACE_BYTES, 0) * number // (_PLACES - 1))
            total = zlib.crc32(file.read(min(end, _PLACE_BYTES)), total)
        return total
    return GONE


BLOCK_BYTES: Final = 1 << 16
"""The number of bytes that are read at once, backwards from the end of a file, to find its last newline."""


def whole_end(part: Path | str) -> int:
    """Returns the position after the last newline of a part; 0 if the part has no newline."""
    with files.open_file(str(part)) as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(end - BLOCK_BYTES, 0)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def stamps_of(directories: Iterable[Path | str]) -> dict[str, Stamp]:
    """Return every part with its size and the other values that show whether it changed."""
    return {part.path: part.stamp for place in directories for part in files.entries(files.absolute(place), PART_FILES)}


@define
class GrowingHistory:
    """Checks histories repeatedly, without opening unchanged parts again.

    Invariant: `stamps` and the line ends in `_ends` are from the last check.
    """

    paths: Sequence[Path | str]
    stamps: dict[str, Stamp] = field(factory=dict)
    _ends: dict[str, int] = field(factory=dict)
    """For each NDJSON part, the position after its last newline."""
    _row_groups: RowGroups = field(factory=dict)
    rewritten: int = 0
    """How often a part that was read before was found rewritten or shortened. A deleted part does not count."""
    _sums: dict[str, tuple[int, int]] = field(factory=dict)
    """For each complete part, its length and its checksum after its last change."""

    def has_grown(self) -> bool:
        """Return whether a part has grown, was replaced, or is new since the last check."""
        return stamps_of(self.paths) != self.stamps

    def look(self) -> History:
        """Return the history with its complete parts; raises `HistoryNotFoundError`."""
        before, self.stamps = self.stamps, stamps_of(self.paths)
        settled = {part for part, stamp in self.stamps.items() if before.get(part) == stamp}
        history = find(self.paths, self._row_groups)
        ends: dict[str, int] = {}
        for part, stamp in list(self.stamps.items()):
            if kind_of(part) == NDJSON_SUFFIX:
                is_known = part in self._ends and part in settled
                ends[part] = self._ends[part] if is_known else self._looked_at(part, stamp.size)
        self._ends = ends
        splits = [
            msgspec.structs.replace(each, end=min(each.end, ends.get(each.path, each.end)))
            for each in history.splits
            # A Parquet part needs no second check, because it is complete if it can be opened.
            if each.start < ends.get(each.path, 0)
            or (each.path not in ends and (each.path in settled or kind_of(each.path) == PARQUET_SUFFIX))
        ]
        self._compare({split.path: ends.get(split.path, 0) for split in splits}, settled)
        growing = self.stamps.keys() - ends.keys() - settled
        damages = [damage for damage in history.damages if damage.file not in growing]
        return attrs.evolve(history, splits=splits, damages=damages)

    def _compare(self, ends: Mapping[str, int], settled: Collection[str]) -> None:
        """Count the changed parts whose beginnings were rewritten, and update the checksums of all changed parts."""
        for part in (ends.keys() | self._sums.keys()) - (self._sums.keys() & settled):
            if part in self._sums:
                end, known = self._sums[part]
                self.rewritten += checksum_before(part, end) not in {GONE, known}
            if part in ends:
                self._sums[part] = ends[part], checksum_before(part, ends[part])

    def _looked_at(self, part: str, size: int) -> int:
        """Returns the number of bytes up to the last complete line of an NDJSON part.

        An unreadable part counts as complete, because the code that reads it reports the error.
        """
        try:
            return whole_end(part)
        except FileNotFoundError:
            # The part was deleted after it was listed. Forget it, so that it counts as new if it appears again.
            del self.stamps[part]
            return 0
        except OSError:
            return size


TOGETHER_BYTES: Final = 64 << 20
"""The maximum number of bytes of new events that are returned together."""
AHEAD: Final = 2
"""The number of batches that each thread reads ahead."""
Read = tuple[list[pa.Table], list[Damage]]


@define(eq=False)
class IncrementalRead:
    """Reads a growing history. Invariant: all events before `ends` were returned exactly once."""

    growth: GrowingHistory
    threads: int
    ends: dict[str, int] = field(factory=dict)
    """For each part, where the next read begins: at a byte of NDJSON, or at a row group of Parquet."""

    def look(self) -> tuple[History, list[InputSplit]]:
        """Return the current history and the splits that were not read yet; raises `HistoryNotFoundError`."""
        history = self.growth.look()
        new: list[InputSplit] = []
        for part in history.splits:
            start = self.ends.get(part.path, 0)
            if part.end > start:
                new.append(msgspec.structs.replace(part, start=max(part.start, start)))
        return history, new

    def read(self, splits: Sequence[InputSplit]) -> Iterator[Read]:
        """Yield the events and the unreadable data of the splits in order; small batches are merged."""
        tables: list[pa.Table] = []
        damages: list[Damage] = []
        size = 0
        for part, (table, found) in read_ahead(splits, read_split, self.threads, self.threads * AHEAD):
            tables.append(table)
            damages += found
            size += table.nbytes
            self.ends[part.path] = part.end
            if size >= TOGETHER_BYTES:
                yield tables, damages
                tables, damages, size = [], [], 0
        if tables:
            yield tables, damages
