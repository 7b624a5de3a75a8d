"""A window: the events of whole queues as numpy columns, which the kernel judges at once.

The events are sorted by queue, then by time, then by source and sequence, so no result depends on the order in which
events arrive. A row is a position in this canonical order. The table also has visitors: copied events of other queues
that share a request with the window's own events. Visitors come after the window's own events, and are found only by
their request.
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
"""Request keys are renumbered if there are more than this many possible keys for each event."""


@define(eq=False, slots=False)
class Window:
    """Events in canonical order."""

    table: pa.Table
    """The window's events in canonical order, followed by the visitors."""
    count: int
    """The number of the window's events, without visitors."""
    queue: Integers
    """The number of the queue of each event."""
    all_queues: NDArray[Any]
    """The number of the queue of each row, visitors included."""
    names: list[QueueName]
    """The name of each queue, by queue number."""
    _columns: dict[str, Any] = field(factory=dict)
    _negative: dict[tuple[str, str], bool] = field(factory=dict)
    _repeated: dict[str, bool] = field(factory=dict)

    def __len__(self) -> int:
        return self.count

    @cached_property
    def _first(self) -> Integers:
        """An array for `look_up`, with an element for each request key; all elements are -1 between its calls."""
        return np.full(int(self.request_key.max(initial=-1)) + 1, -1, dtype=np.int64)

    def column(self, name: str) -> Any:
        """Returns a column of numbers or flags, by row of the table."""
        if name not in self._columns:
            is_there = has_column(self.table, name)
            # Only columns of flags have nulls and no default.
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
        """Returns a pair for a column of names: the code of each row's name, and the list of names by code."""
        if name not in self._columns:
            self._columns[name] = coded(self.table, name)
        found: tuple[NDArray[np.int32], list[str]] = self._columns[name]
        return found

    @cached_property
    def any_key(self) -> Integers:
        """For each row, visitors included, a number that is equal for equal (source, request); -1 without a request."""
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
        """For each row, a number that is equal for equal (queue, source, request); -1 if the event has no request."""
        key = self.any_key[: self.count].copy()
        count = int(self.any_key.max(initial=-1)) + 1
        # Nearly every request names one queue. A request that names several queues gets a number for each queue.
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
        """Returns the rows of events with this name, ascending in time within each queue."""
        return self._event_rows.get(event, _NO_ROWS)

    def rows_of_queue(self, event: str, queue: int) -> Integers:
        """Returns the rows of events with this name in one queue."""
        rows = self.rows(event)
        return rows[slice(*np.searchsorted(self.queue[rows], (queue, queue + 1)))]

    def are_of(self, events: Iterable[str]) -> Booleans:
        """Returns a mask of the rows with one of these event names."""
        found = np.zeros(len(self), dtype=np.bool_)
        for event in events:
            found[self.rows(event)] = True
        return found

    def has_negative(self, event: str, name: str) -> bool:
        """Whether events with this name may lack this field, because the column has a negative number."""
        known = self._negative.get((event, name))
        if known is None:
            known = self._negative[event, name] = bool((self.integers(name, self.rows(event)) < 0).any())
        return known

    def has_repeated(self, event: str) -> bool:
        """Whether two events with this name in one queue have the same request."""
        known = self._repeated.get(event)
        if known is None:
            keys = self.request_key[self.rows(event)]
            keys = keys[keys >= 0]
            is_there = np.zeros(len(self._first), dtype=np.bool_)
            is_there[keys] = True
            known = self._repeated[event] = int(np.count_nonzero(is_there)) < len(keys)
        return known

    def look_up(self, wanted: Integers, key: Integers, value: Integers) -> Integers:
        """Returns, for each wanted request key, the first `value` at which `key` has this key; -1 if there is none."""
        self._first[key[::-1]] = value[::-1]
        found = np.where(wanted >= 0, self._first[wanted], -1) if len(self._first) else np.full(len(wanted), -1)
        self._first[key] = -1
        return found

    def integers(self, name: str, rows: Integers) -> Integers:
        """Returns the values of an integer column in these rows."""
        values: Integers = self.column(name)[rows]
        return values

    def flags(self, name: str, rows: Integers) -> Booleans:
        """Returns the values of a column of flags in these rows; False if the column is missing."""
        values: Booleans = self.column(name)[rows]
        return values

    def are_told(self, name: str, rows: Integers) -> Booleans:
        """Returns in which of these rows a column of flags has a value."""
        if not has_column(self.table, name):
            return np.zeros(len(rows), dtype=np.bool_)
        told: Booleans = self.table[name].is_valid().to_numpy()[rows]
        return told

    def codes(self, name: str, rows: Integers) -> tuple[NDArray[np.int32], list[str]]:
        """Returns the codes of a column of names in these rows, and the names."""
        codes, names = self.names_of(name)
        return codes[rows], names

    def are(self, name: str, rows: Integers, wanted: Container[str]) -> Booleans:
        """Returns in which of these rows the name in this column is one of `wanted`."""
        return are_of(*self.codes(name, rows), wanted)

    def text(self, name: str, row: int) -> str:
        """Returns the name in this column of one row."""
        codes, names = self.names_of(name)
        text: str = names[codes[row]]
        return text

    def bodies(self, rows: Integers) -> tuple[Integers, Integers]:
        """Returns the messages of these answers, concatenated: the index of each message's answer, and its offset."""
        bounds, values = lists_of(self.table, "offsets")
        owner, places = spread(bounds, rows)
        return owner, values[places]

    def answer_to(self, keys: Integers, event: str) -> Integers:
        """Returns for each request key the first row of an event with this name; -1 if there is no such row."""
        rows = self.rows(event)
        rows = rows[self.request_key[rows] >= 0]
        return self.look_up(keys, self.request_key[rows], rows)

    def firsts(self, rows: Integers, event: str) -> Integers:
        """Returns, for each row, the first event with this name and the row's request. Each row must have a request."""
        if not self.has_repeated(event):
            return rows
        keys = self.request_key[rows]
        return self.look_up(keys, keys, rows)

    def _places(self, event: str) -> Integers:
        """Returns the rows of the table, visitors included, of events with this name that have a request."""
        codes, names = self.names_of("event")
        return np.flatnonzero((codes == (names.index(event) if event in names else -1)) & (self.any_key >= 0))

    def _have(self, rows: Integers, keys: Integers) -> Booleans:
        found = np.zeros(int(self.any_key.max(initial=-1)) + 2, dtype=np.bool_)
        found[keys] = True
        found[-1] = False
        return found[self.any_key[rows]]

    def is_told_anywhere(self, rows: Integers, event: str, queue_min: int = -1) -> Booleans:
        """Returns whether the request of each row has an event with this name in any queue.

        Only events whose queue number is at least `queue_min` count; the number -1 means no queue.
        """
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        places = self._places(event)
        return self._have(rows, self.any_key[places[self.column("queue")[places] >= queue_min]])

    def is_asked_in_several(self, rows: Integers) -> Booleans:
        """Returns whether requests of several queues have the identifier of each row's request."""
        queue, _rows = queue_numbers(self.table)
        places = self._places("request_received")
        pairs = np.unique(np.stack((self.any_key[places], queue[places].astype(np.int64))), axis=1)[0]
        return self._have(rows, pairs[1:][pairs[1:] == pairs[:-1]])

    @cached_property
    def again(self) -> Integers:
        """The keys of requests that were received several times, in any queue (`any_key`)."""
        return np.flatnonzero(np.bincount(self.any_key[self._places("request_received")]) > 1)

    def is_asked_again(self, rows: Integers) -> Booleans:
        """Returns whether several requests, in any queue, have the identifier of each row's request."""
        return self._have(rows, self.again)

    def evidence(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Returns the events of these rows as in the history, with times on the common clock."""
        places = pa.array(sorted(set(rows)), pa.int64())
        return [event_dict(row) for row in self.table.take(places).to_pylist()]


def make_window(table: pa.Table, is_native: Booleans | None = None) -> Window:
    """Create a window from the events of some queues; those that are not native are visitors."""
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
