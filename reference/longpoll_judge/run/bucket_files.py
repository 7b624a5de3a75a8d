"""Writes a history that is too large for one window to local files, one for each bucket (`buckets`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from tempfile import TemporaryFile
from typing import BinaryIO

import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.keys import KeyFile, open_keys
from longpoll_judge.columns.lookup import Integers
from longpoll_judge.columns.memory import give_back_memory
from longpoll_judge.columns.tables import QueueName, joined
from longpoll_judge.evidence.survey import Context
from longpoll_judge.run.buckets import are_in, connection_ends, in_buckets, judge_bucket, placed_keys, visitors_of
from longpoll_judge.run.parts import Piece, borders_of, open_parts, read_pieces, sample_of, write_piece


@define
class Buckets:
    """The events of a history on disk, grouped into buckets of whole queues."""

    _weights: dict[QueueName, int]
    """The number of events of each queue, as far as the history was surveyed."""
    _most: int
    """The maximum number of events of a bucket. A bucket with a single queue may have more."""
    _part_events: int
    """The approximate number of events in each part of a bucket that is too large."""
    _file: BinaryIO
    _keys: KeyFile
    _places: dict[QueueName, int] = field(factory=dict)
    _sizes: list[int] = field(factory=lambda: [0])
    _pieces: list[list[Piece]] = field(init=False)
    _samples: list[list[Integers]] = field(init=False)
    _guests: list[list[pa.Table]] = field(init=False)
    _ends: list[pa.Table] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Assign the queues, largest first, each to the bucket with the fewest events or to a new bucket."""
        for name in sorted(self._weights, key=lambda name: (-self._weights[name], name)):
            if 0 < min(self._sizes) > self._most - self._weights[name]:
                self._sizes.append(0)
            self._place(name, self.count)
        self._pieces = [[] for _ in range(self.count)]
        self._samples = [[] for _ in range(self.count)]
        self._guests = [[] for _ in range(self.count)]

    @property
    def count(self) -> int:
        """The number of buckets."""
        return len(self._sizes)

    def _place(self, name: QueueName, _buckets: int) -> int:
        """Return the bucket of a queue; a new queue is assigned to the smallest bucket."""
        if name not in self._places:
            least = self._sizes.index(min(self._sizes))
            self._places[name] = least
            self._sizes[least] += self._weights.get(name, 1)
        return self._places[name]

    def put(self, table: pa.Table) -> None:
        """Add events to the files of their buckets."""
        self._keys.put(placed_keys(table, partial(self._place, _buckets=self.count)))
        self._ends.append(connection_ends(table))
        for bucket, events, is_own in in_buckets(table, self.count, self._place):
            if not is_own:
                self._guests[bucket].append(events)
            elif len(events):
                self._pieces[bucket].append(write_piece(self._file, events))
                self._samples[bucket].append(sample_of(events, self._part_events))

    def _events(self, bucket: int) -> Iterator[pa.Table]:
        return read_pieces(self._file, self._pieces[bucket])

    def verdicts(self, context: Context) -> Iterator[pa.Table]:
        """Yield the result rows of each bucket. Call this method after all events were added."""
        shared = self._keys.shared()
        for bucket in range(self.count) if len(shared) else ():
            # Read the bucket piece by piece if it is too large for one window.
            tables = self._events(bucket)
            for table in tables if self._is_cut(bucket) else [joined(tables)]:
                for other, events in visitors_of(table, bucket, shared):
                    self._guests[other].append(events)
        ends = connection_ends(joined(self._ends), is_whole=True)
        give_back_memory()
        for bucket in range(self.count):
            tables = chain(self._events(bucket), self._guests[bucket])
            are_own = partial(are_in, bucket=bucket, buckets=self.count, place=self._place)
            # Do not cut the bucket if a user property needs whole queues, or if a pop must be judged with all events of
            # its messages.
            if not self._is_cut(bucket) or context.own or context.asks_pops:
                yield judge_bucket(tables, ends, context, are_own)
                continue
            with open_parts(borders_of(self._samples[bucket], self._part_events), are_own) as parts:
                for table in tables:
                    parts.put(table)
                yield from (part.judge(context, are_own) for part in parts.windows(ends, context))

    def _is_cut(self, bucket: int) -> bool:
        return len(borders_of(self._samples[bucket], self._part_events)) > 1


@contextmanager
def open_buckets(weights: dict[QueueName, int], most: int, window_events: int) -> Iterator[Buckets]:
    """Open buckets whose files are deleted at the end of the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file, open_keys() as keys:
        yield Buckets(weights, most, window_events, file, keys)
