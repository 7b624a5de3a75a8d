"""Events of whole queues as numpy columns in one canonical order: the unit that is judged at once.

The order is: queue by queue, in each by time, then by source and sequence; so nothing depends on the order in which
events arrive. A row is a place in this order. Events of other queues that share a request with one of these come along
as visitors: they come after the others, and are found only by their request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import Booleans, Integers, are_of, order_by
from longpoll_judge.columns.tables import QueueName, break_ties, queue_names, queue_numbers, rearranged
from longpoll_judge.read.schema import (
    DEFAULTS,
    are_named,
    coded,
    coded_texts,
    event_dict,
    has_column,
    integers_of,
    lists_of,
    spread,
)

_NO_ROWS: Final = np.empty(0, dtype=np.int64)
_SPARSE: Final = 8
"""Request keys are renumbered when there are more than this many for each event."""


@define(eq=False, slots=False)
class Window:
    """Events in canonical order."""

    table: pa.Table
    """Its first rows are the events, in canonical order; the others visit."""
    count: int
    """How many events there are."""
    queue: Integers
    """By event, the number of its queue."""
    all_queues: NDArray[Any]
    """The same of the visitors too."""
    names: list[QueueName]
    """By number, the queues."""
    _columns: dict[str, Any] = field(factory=dict)
    _negative: dict[tuple[str, str], bool] = field(factory=dict)
    _repeated: dict[str, bool] = field(factory=dict)

    def __len__(self) -> int:
        return self.count

    @cached_property
    def _first(self) -> Integers:
        """By request key; -1 everywhere but during `look_up`."""
        return np.full(int(self.request_key.max(initial=-1)) + 1, -1, dtype=np.int64)

    def column(self, name: str) -> Any:
        """A column of numbers or flags, by place in the table."""
        if name not in self._columns:
            is_there = has_column(self.table, name)
            # Flags alone have nulls, and no default.
            is_flag = DEFAULTS.get(name, 0) is None
            column = (
                self.table[name].fill_null(False) if is_there and is_flag else self.table[name] if is_there else None
            )
            self._columns[name] = (
                np.broadcast_to(False if is_flag else DEFAULTS[name], len(self.table))
                if column is None
                else column.to_numpy()
            )
        return self._columns[name]

    def names_of(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A column of names as numbers, by place in the table, and the names."""
        if name not in self._columns:
            self._columns[name] = coded(self.table, name)
        found: tuple[NDArray[np.int32], list[str]] = self._columns[name]
        return found

    @cached_property
    def _lists(self) -> tuple[Integers, Integers]:
        """Bounds and values of the messages of every answer, by place in the table."""
        return lists_of(self.table, "offsets")

    @cached_property
    def any_key(self) -> Integers:
        """Request numbers by place in the table, equal for equal (source, request); -1 for none."""
        sources, source_names = self.names_of("source")
        requests, request_names = coded_texts(self.table, "request")
        key = requests.astype(np.int64)
        has_request = are_named(request_names)[key] if len(key) else np.zeros(0, dtype=np.bool_)
        if len(source_names) > 1:
            key = key * len(source_names) + sources
        if len(request_names) * len(source_names) > _SPARSE * len(key):
            key = np.unique(key, return_inverse=True)[1]
        return np.where(has_request, key, -1)

    @cached_property
    def request_key(self) -> Integers:
        """Request numbers by row: equal for equal (queue, source, request), -1 for an event without a request."""
        key = self.any_key[: self.count].copy()
        count = int(self.any_key.max(initial=-1)) + 1
        # Nearly all have one queue: those of several get further numbers, one a queue.
        some = np.full(count + 1, -1, dtype=np.int64)
        some[key] = self.queue
        is_split = np.zeros(count + 1, dtype=np.bool_)
        is_split[key[some[key] != self.queue]] = True
        is_split[-1] = False
        (split,) = np.nonzero(is_split[key])
        if len(split):
            pairs = np.stack((key[split], self.queue[split]))
            key[split] = count + np.unique(pairs, axis=1, return_inverse=True)[1]
        return key

    @cached_property
    def _event_rows(self) -> dict[str, Integers]:
        codes, names = self.names_of("event")
        codes = codes[: self.count]
        return {name: np.flatnonzero(codes == code) for code, name in enumerate(names)}

    def rows(self, event: str) -> Integers:
        """The rows of this event, ascending in time within each queue."""
        return self._event_rows.get(event, _NO_ROWS)

    def rows_of_queue(self, event: str, queue: int) -> Integers:
        """The rows of an event in one queue."""
        rows = self.rows(event)
        return rows[slice(*np.searchsorted(self.queue[rows], (queue, queue + 1)))]

    def are_of(self, events: Iterable[str]) -> Booleans:
        """Which rows are of one of these events."""
        found = np.zeros(len(self), dtype=np.bool_)
        for event in events:
            found[self.rows(event)] = True
        return found

    def has_negative(self, event: str, name: str) -> bool:
        """Whether such an event may have a negative number in this column, as where it tells none."""
        known = self._negative.get((event, name))
        if known is None:
            known = self._negative[event, name] = bool((self.integers(name, self.rows(event)) < 0).any())
        return known

    def has_repeated(self, event: str) -> bool:
        """Whether two such events of one queue have the same request."""
        known = self._repeated.get(event)
        if known is None:
            keys = self.request_key[self.rows(event)]
            keys = keys[keys >= 0]
            is_there = np.zeros(len(self._first), dtype=np.bool_)
            is_there[keys] = True
            known = self._repeated[event] = int(np.count_nonzero(is_there)) < len(keys)
        return known

    def look_up(self, wanted: Integers, key: Integers, value: Integers) -> Integers:
        """For every wanted request key the first of the values whose key it is, -1 where there is none."""
        self._first[key[::-1]] = value[::-1]
        found = np.where(wanted >= 0, self._first[wanted], -1) if len(self._first) else np.full(len(wanted), -1)
        self._first[key] = -1
        return found

    def integers(self, name: str, rows: Integers) -> Integers:
        """A column of integers, of these rows."""
        values: Integers = self.column(name)[rows]
        return values

    def flags(self, name: str, rows: Integers) -> Booleans:
        """A column of flags, of these rows; False if it is missing."""
        values: Booleans = self.column(name)[rows]
        return values

    def are_told(self, name: str, rows: Integers) -> Booleans:
        """Of which of these rows a column of flags tells anything."""
        if not has_column(self.table, name):
            return np.zeros(len(rows), dtype=np.bool_)
        told: Booleans = self.table[name].is_valid().to_numpy()[rows]
        return told

    def codes(self, name: str, rows: Integers) -> tuple[NDArray[np.int32], list[str]]:
        """A column of names as numbers, of these rows, and the names."""
        codes, names = self.names_of(name)
        return codes[rows], names

    def are(self, name: str, rows: Integers, wanted: Container[str]) -> Booleans:
        """Of which of these rows a name is one of these."""
        return are_of(*self.codes(name, rows), wanted)

    def text(self, name: str, row: int) -> str:
        """A name of one row."""
        codes, names = self.names_of(name)
        text: str = names[codes[row]]
        return text

    def bodies(self, rows: Integers) -> tuple[Integers, Integers]:
        """The messages of these answers, one behind the other: of each which of the rows it is of, and its offset."""
        bounds, values = self._lists
        owner, places = spread(bounds, rows)
        return owner, values[places]

    def answer_to(self, keys: Integers, event: str) -> Integers:
        """For each request key the first row of this event that has it, -1 where none has."""
        rows = self.rows(event)
        rows = rows[self.request_key[rows] >= 0]
        return self.look_up(keys, self.request_key[rows], rows)

    def firsts(self, rows: Integers, event: str) -> Integers:
        """For each of these rows of an event, all with a request, the first of them that has the same request."""
        if not self.has_repeated(event):
            return rows
        keys = self.request_key[rows]
        return self.look_up(keys, keys, rows)

    def _places(self, event: str) -> Integers:
        """The places of this event in the table, visitors included, if it has a request."""
        codes, names = self.names_of("event")
        return np.flatnonzero((codes == (names.index(event) if event in names else -1)) & (self.any_key >= 0))

    def _have(self, rows: Integers, keys: Integers) -> Booleans:
        """Which rows have a request among those with these keys."""
        found = np.zeros(int(self.any_key.max(initial=-1)) + 2, dtype=np.bool_)
        found[keys] = True
        found[-1] = False
        return found[self.any_key[rows]]

    def is_told_anywhere(self, rows: Integers, event: str, queue_min: int = -1) -> Booleans:
        """Whether the request of each of these rows has such an event in any queue.

        Only events whose number is at least `queue_min` count; -1 means an event without a queue.
        """
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        places = self._places(event)
        return self._have(rows, self.any_key[places[self.column("queue")[places] >= queue_min]])

    def is_asked_in_several(self, rows: Integers) -> Booleans:
        """Whether requests of several queues bear the identifier of each of these rows."""
        queue, _rows = queue_numbers(self.table)
        places = self._places("request_received")
        pairs = np.unique(np.stack((self.any_key[places], queue[places].astype(np.int64))), axis=1)[0]
        return self._have(rows, pairs[1:][pairs[1:] == pairs[:-1]])

    @cached_property
    def again(self) -> Integers:
        """The keys of requests that were received several times, in whatever queue (`any_key`)."""
        return np.flatnonzero(np.bincount(self.any_key[self._places("request_received")]) > 1)

    def is_asked_again(self, rows: Integers) -> Booleans:
        """Whether several requests, in any queue, bear the identifier of each of these rows."""
        return self._have(rows, self.again)

    def evidence(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """The events of these rows as the history tells them (times on the common clock)."""
        places = pa.array(sorted(set(rows)), pa.int64())
        return [event_dict(row) for row in self.table.take(places).to_pylist()]


def make_window(table: pa.Table, is_native: Booleans | None = None) -> Window:
    """The events of some queues; those that are not native are visitors."""
    table = table.unify_dictionaries().combine_chunks()
    queue, firsts = queue_numbers(table)
    after_ns = integers_of(table, "after_ns")
    names = queue_names(table, firsts)
    rows = np.arange(len(table)) if is_native is None else np.flatnonzero(is_native)
    order = rows[order_by(queue[rows], after_ns[rows])]
    queue_sorted, after_sorted = queue[order], after_ns[order]
    is_same = (queue_sorted[1:] == queue_sorted[:-1]) & (after_sorted[1:] == after_sorted[:-1])
    if is_same.any():
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        order[tied] = break_ties(table, queue, order[tied])
    every = order if is_native is None else np.append(order, np.flatnonzero(~is_native))
    return Window(rearranged(table, every), len(order), queue_sorted.astype(np.int64), queue[every], names)
