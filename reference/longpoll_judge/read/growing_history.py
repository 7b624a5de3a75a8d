"""Finds the complete part of a history that is still being written, so that an unfinished line is not damage.

NDJSON counts up to its last newline. Parquet has its table of contents at its end and is complete once that can be
read. A part of another kind is complete once it has not changed between two looks. `follow` and Spark's `stream` use
this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs
import msgspec
from attrs import define, field

from longpoll_judge.read import files
from longpoll_judge.read.files import Stamp
from longpoll_judge.read.source import History, RowGroups, find, kind_of
from longpoll_spec.history import NDJSON_SUFFIX, PARQUET_SUFFIX, PART_FILES

BLOCK_BYTES: Final = 1 << 16
"""How much of a file's end is read at once in search of its last newline."""


def whole_end(part: Path | str) -> int:
    """The byte after the last newline of a part; 0 where it has none."""
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
    """Every part with its size, and what else tells whether it is what it was."""
    return {part.path: part.stamp for place in directories for part in files.entries(files.absolute(place), PART_FILES)}


@define
class GrowingHistory:
    """Looks at histories again and again, and opens no part again that has not changed.

    Invariant: `stamps` are those of the last look, and `_ends` those of its lines.
    """

    paths: Sequence[Path | str]
    stamps: dict[str, Stamp] = field(factory=dict)
    _ends: dict[str, int] = field(factory=dict)
    """By part of lines: the byte after its last newline."""
    _row_groups: RowGroups = field(factory=dict)

    def has_grown(self) -> bool:
        """Whether a part is longer than at the last look, or another one, or new."""
        return stamps_of(self.paths) != self.stamps

    def look(self) -> History:
        """Return the complete parts; raises `HistoryNotFoundError`."""
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
            if (each.start < ends[each.path] if each.path in ends else self._is_whole(each.path, settled))
        ]
        growing = self.stamps.keys() - ends.keys() - settled
        damages = [damage for damage in history.damages if damage.file not in growing]
        return attrs.evolve(history, splits=splits, damages=damages)

    def _looked_at(self, part: str, size: int) -> int:
        """The complete length of a part of lines. An unreadable part counts whole, and its reader reports the error."""
        try:
            return whole_end(part)
        except FileNotFoundError:
            # It is gone since it was listed: as one that was not listed, so that it is noticed if it comes back.
            del self.stamps[part]
            return 0
        except OSError:
            return size

    def _is_whole(self, part: str, settled: Collection[str]) -> bool:
        """Whether a part that is not read by lines is complete; one with a readable table of contents is."""
        return part in settled or kind_of(part) == PARQUET_SUFFIX
