"""Pieces that wait on disk between being read and being judged, so that memory does not grow with the history.

One temporary file takes all pieces one behind the other; what is kept in memory is where each lies. Leaves out what a
piece is (`exchange`).
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.exchange import LOG, Piece, decode, encode, joined, may_share, requests_of, split


@frozen
class _Place:
    """Where a piece lies in the file."""

    shard: int
    events: int
    start: int
    length: int


@define
class Spill:
    """Pieces on disk by bucket, in the order in which they came."""

    _file: BinaryIO
    _places: dict[int, list[_Place]] = field(factory=dict)
    _end: int = field(default=0)
    _mapped: mmap.mmap | None = field(default=None)
    """The file as memory; what was read from it keeps it alive."""

    def put(self, table: pa.Table) -> None:
        """Split the events of a slice and write its pieces."""
        for piece in split(table):
            self.put_piece(piece)

    def put_piece(self, piece: Piece) -> None:
        """Write one piece."""
        content = encode(piece.table)
        self._file.write(content)
        place = _Place(piece.shard, piece.events, self._end, len(content))
        self._places.setdefault(piece.bucket, []).append(place)
        self._end += len(content)

    def buckets(self) -> dict[int, int]:
        """How many events each bucket has."""
        return {bucket: sum(place.events for place in places) for bucket, places in sorted(self._places.items())}

    def log(self, bucket: int) -> pa.Table:
        """The log events of a bucket."""
        return joined(self._read(bucket, place).table for place in self._places[bucket] if place.shard == LOG)

    def requests(self, bucket: int, unit: int, units: int) -> pa.Table:
        """One of several shares of a bucket's requests."""
        places = [place for place in self._places[bucket] if may_share(place.shard, unit, units)]
        return joined(requests_of(self._read(bucket, place), unit, units) for place in places)

    def _read(self, bucket: int, place: _Place) -> Piece:
        if self._mapped is None or len(self._mapped) < self._end:
            self._file.flush()
            self._mapped = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_READ)
        content = pa.py_buffer(self._mapped).slice(place.start, place.length)
        return Piece(bucket, place.shard, place.events, decode(content))


@contextmanager
def open_spill() -> Iterator[Spill]:
    """A spill whose file goes with the block."""
    with tempfile.TemporaryFile(prefix="longpoll-judge-") as file:
        yield Spill(file)
