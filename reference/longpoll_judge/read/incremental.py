"""Reads the new part of a growing history: from the end of the last look, each byte once.

Several chunks of 8 MiB are read at a time by as many threads, and returned in order. `growing_history` finds the
complete part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.source import History, InputSplit, read_split
from longpoll_judge.read.unreadable import Damage

TOGETHER_BYTES: Final = 64 << 20
"""New events are returned together up to this size, as columns."""
AHEAD: Final = 2
"""Pieces that are read before they are asked for, on each thread."""
Read = tuple[list[pa.Table], list[Damage]]


@define(eq=False)
class IncrementalRead:
    """A history's parts and how far each was read. Invariant: what lies before `ends` was handed on, once."""

    growth: GrowingHistory
    threads: int
    ends: dict[str, int] = field(factory=dict)
    """By part: where the next look begins, a byte of lines or a row group."""

    def look(self) -> tuple[History, list[InputSplit]]:
        """Return the current history and its new part; raises `HistoryNotFoundError`."""
        history = self.growth.look()
        new: list[InputSplit] = []
        for part in history.splits:
            start = self.ends.get(part.path, 0)
            if part.end > start:
                new.append(msgspec.structs.replace(part, start=max(part.start, start)))
        return history, new

    def read(self, splits: Sequence[InputSplit]) -> Iterator[Read]:
        """The events of the splits, and what could not be read, in order and some of them together."""
        tables: list[pa.Table] = []
        damages: list[Damage] = []
        size = 0
        for part, (table, found) in self._read_ahead(splits):
            tables.append(table)
            damages += found
            size += table.nbytes
            self.ends[part.path] = part.end
            if size >= TOGETHER_BYTES:
                yield tables, damages
                tables, damages, size = [], [], 0
        if tables:
            yield tables, damages

    def _read_ahead(self, splits: Sequence[InputSplit]) -> Iterator[tuple[InputSplit, tuple[pa.Table, list[Damage]]]]:
        waiting: deque[tuple[InputSplit, Future[tuple[pa.Table, list[Damage]]]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for part in splits:
                waiting.append((part, pool.submit(read_split, part)))
                if len(waiting) > self.threads * AHEAD:
                    first, coming = waiting.popleft()
                    yield first, coming.result()
            while waiting:
                first, coming = waiting.popleft()
                yield first, coming.result()
