"""Slices that cost much to read, kept on disk between being looked over and being judged.

One temporary file takes them one behind the other. Leaves out how events become bytes (`exchange`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO

import pyarrow as pa
from attrs import define, field

from longpoll_judge.exchange import decode, encode
from longpoll_judge.schema import fill


@define
class Spill:
    """Slices on disk by number."""

    _file: BinaryIO
    _places: dict[int, tuple[int, int]] = field(factory=dict)
    """Where each begins, and its length."""
    _end: int = field(default=0)

    def put(self, number: int, table: pa.Table) -> None:
        """Keep the events of a slice."""
        content = encode(table)
        self._file.seek(self._end)
        self._file.write(content)
        self._places[number] = (self._end, len(content))
        self._end += len(content)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def get(self, number: int) -> pa.Table:
        """The events of a slice, with all columns."""
        start, length = self._places[number]
        self._file.seek(start)
        return fill(decode(self._file.read(length)))


@contextmanager
def open_spill() -> Iterator[Spill]:
    """A spill whose file goes with the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file:
        yield Spill(file)
