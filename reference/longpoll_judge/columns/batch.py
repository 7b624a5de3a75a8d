"""Events as numpy columns in one canonical order, and as Arrow tables while they wait or travel.

The order is: queue by queue, in each by time, then by source and sequence; so nothing depends on the order in which
events arrive. The Arrow table stays as it was read. Events that wait or travel lose the columns that they do not use.

Rule 4 of a history says that answers name their broker, topic and queue. Other recorders may omit them, and the names
are then taken from the request. An answer stays unplaced if requests of several queues share its identifier. An answer
that names another broker or topic than its request keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import Booleans, Integers, order_by, run_starts
from longpoll_judge.read.schema import (
    DEFAULTS,
    EVENT_SCHEMA,
    LISTS,
    NAMES,
    PLAIN_SCHEMA,
    REQUIRED,
    are_named,
    coded,
    coded_texts,
    compute,
    event_dict,
    fill,
    has_column,
)

GROUP_KEY: Final = ("broker", "topic", "queue")
QueueName = tuple[str, str, int]
"""The key of a queue: its broker, topic and number."""
_NO_ROWS: Final = np.empty(0, dtype=np.int64)
_SPARSE: Final = 8
"""Request keys are renumbered when there are more than this many for each event."""


@define(eq=False, slots=False)
class Batch:
    """Events in canonical order. A place is a position in this order, a row one in `table`."""

    table: pa.Table
    order: Integers
    """The row at each place."""
    bounds: Integers
    """Queue number q has the places [bounds[q], bounds[q + 1])."""
    _columns: dict[str, Any] = field(factory=dict)
    _negative: dict[tuple[str, str], bool] = field(factory=dict)
    _repeated: dict[str, bool] = field(factory=dict)
    _first: Integers = field(init=False)
    """By request key; -1 everywhere but during `first_by_request`."""

    def __attrs_post_init__(self) -> None:
        """Make the scratch space."""
        self._first = np.full(int(self.request_key.max(initial=-1)) + 1, -1, dtype=np.int64)

    def column(self, name: str) -> Any:
        """A column of numbers or flags, by row of the table."""
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

    def codes(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A column of names as numbers, by row of the table, and the names."""
        if name not in self._columns:
            self._columns[name] = coded(self.table, name)
        found: tuple[NDArray[np.int32], list[str]] = self._columns[name]
        return found

    @cached_property
    def bodies(self) -> tuple[Integers, Integers]:
        """Bounds and values of the messages of every answer, by row: row r has values [bounds[r], bounds[r + 1])."""
        if not has_column(self.table, "offsets"):
            return np.zeros(len(self.table) + 1, dtype=np.int64), np.empty(0, dtype=np.int64)
        lists = self.table["offsets"].combine_chunks()
        return lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()

    @cached_property
    def request_key(self) -> Integers:
        """Request numbers by row: equal for equal (source, request), -1 for an event without a request."""
        sources, source_names = self.codes("source")
        requests, request_names = coded_texts(self.table, "request")
        key = requests[self.order].astype(np.int64)
        has_request = are_named(request_names)[key]
        if len(source_names) > 1:
            key = key * len(source_names) + sources[self.order]
        if len(request_names) * len(source_names) > _SPARSE * len(key):
            key = np.unique(key, return_inverse=True)[1]
        return np.where(has_request, key, -1)

    @cached_property
    def event_codes(self) -> NDArray[np.int32]:
        """The column of the events' names as numbers, by place."""
        return self.codes("event")[0][self.order]

    def has_negative(self, event: str, name: str) -> bool:
        """Whether such an event in the table may have a negative number in this column, as where it tells none."""
        known = self._negative.get((event, name))
        if known is None:
            codes, names = self.codes("event")
            negative = self.column(name) < 0
            known = event in names and bool((negative & (codes == names.index(event))).any())
            self._negative[event, name] = known
        return known

    def has_repeated(self, event: str) -> bool:
        """Whether two such events have the same request."""
        known = self._repeated.get(event)
        if known is None:
            _codes, names = self.codes("event")
            is_event = self.event_codes == (names.index(event) if event in names else -1)
            keys = self.request_key[is_event & (self.request_key >= 0)]
            is_there = np.zeros(len(self._first), dtype=np.bool_)
            is_there[keys] = True
            known = self._repeated[event] = int(np.count_nonzero(is_there)) < len(keys)
        return known

    def first_by_request(self, key: Integers, value: Integers) -> Integers:
        """For every place of `key` (none is -1) the first of the values that has the same key."""
        return self.look_up(key, key, value)

    def look_up(self, wanted: Integers, key: Integers, value: Integers) -> Integers:
        """For every wanted request key the first of the values whose key it is, -1 where there is none."""
        self._first[key[::-1]] = value[::-1]
        found = np.where(wanted >= 0, self._first[wanted], -1) if len(self._first) else np.full(len(wanted), -1)
        self._first[key] = -1
        return found

    def queues(self) -> Iterator[tuple[QueueName, Events]]:
        """The events of each queue."""
        for start, end in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            row = int(self.order[start])
            broker, topic = (names[codes[row]] for codes, names in map(self.codes, ("broker", "topic")))
            yield (broker, topic, int(self.column("queue")[row])), Events(self, start, end)

    def nothing(self) -> Events:
        """The events of a queue that has none here."""
        return Events(self, 0, 0)


@define(eq=False, slots=False)
class Events:
    """One queue's events in canonical order: the places [start, end) of a batch. A row is counted from `start`."""

    batch: Batch
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @cached_property
    def _event_rows(self) -> dict[str, Integers]:
        _codes, names = self.batch.codes("event")
        codes = self.batch.event_codes[self.start : self.end]
        return {name: np.flatnonzero(codes == code) for code, name in enumerate(names)}

    def are_of(self, events: Iterable[str]) -> NDArray[np.bool_]:
        """Which rows are of one of these events."""
        found = np.zeros(len(self), dtype=np.bool_)
        for event in events:
            found[self.rows(event)] = True
        return found

    def rows(self, event: str) -> Integers:
        """The rows of this event, ascending in time."""
        return self._event_rows.get(event, _NO_ROWS)

    @cached_property
    def _places(self) -> Integers:
        return self.batch.order[self.start : self.end]

    def table_rows(self, rows: Integers) -> Integers:
        """The indices of these rows in the batch's table."""
        return self._places[rows]

    def integers(self, name: str, rows: Integers) -> Integers:
        """A column of integers, of these rows."""
        values: Integers = self.batch.column(name)[self._places[rows]]
        return values

    def flags(self, name: str, rows: Integers) -> NDArray[np.bool_]:
        """A column of flags, of these rows; False if it is missing."""
        values: NDArray[np.bool_] = self.batch.column(name)[self._places[rows]]
        return values

    def are_told(self, name: str, rows: Integers) -> NDArray[np.bool_]:
        """Of which of these rows a column of flags tells anything."""
        if not has_column(self.batch.table, name):
            return np.zeros(len(rows), dtype=np.bool_)
        told: NDArray[np.bool_] = self.batch.table[name].is_valid().to_numpy()[self._places[rows]]
        return told

    def codes(self, name: str, rows: Integers) -> tuple[NDArray[np.int32], list[str]]:
        """A column of names as numbers, of these rows, and the names."""
        codes, names = self.batch.codes(name)
        return codes[self._places[rows]], names

    def text(self, name: str, row: int) -> str:
        """A name of one row."""
        codes, names = self.batch.codes(name)
        text: str = names[codes[self._places[row]]]
        return text

    @property
    def request_key(self) -> Integers:
        """Request numbers: equal for equal (source, request), -1 for an event without a request."""
        return self.batch.request_key[self.start : self.end]

    def bodies(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Of each answer the place of its first message among the values, how many it has, and the values."""
        bounds, values = self.batch.bodies
        placed = self._places[rows]
        return bounds[placed], bounds[placed + 1] - bounds[placed], values

    def answer_to(self, keys: Integers, event: str) -> Integers:
        """For each request key the first row of this event that has it, -1 where none has."""
        rows = self.rows(event)
        rows = rows[self.request_key[rows] >= 0]
        return self.batch.look_up(keys, self.request_key[rows], rows)

    def firsts(self, rows: Integers, event: str) -> Integers:
        """For each of these rows of an event, all with a request, the first of them that has the same request."""
        if not self.batch.has_repeated(event):
            return rows
        keys = self.request_key[rows]
        return self.batch.first_by_request(keys, rows)

    def only(self, rows: Integers) -> Events:
        """The events of some rows by themselves."""
        if len(rows) == len(self):
            return self
        one_queue = np.zeros(len(self.batch.table), dtype=np.uint16)
        part = make_batch(self.batch.table, self.table_rows(rows), one_queue)
        return Events(part, 0, len(part.order))

    def is_told_anywhere(self, rows: Integers, event: str, queue_min: int = -1) -> NDArray[np.bool_]:
        """Whether the request of each of these rows has such an event in any queue of this batch.

        Only events whose number is at least `queue_min` count; -1 means an event without a queue.
        """
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        sources, source_names = self.batch.codes("source")
        requests, request_names = coded_texts(self.batch.table, "request")
        kinds, names = self.batch.codes("event")
        key = requests.astype(np.int64) * len(source_names) + sources
        mine = self.table_rows(rows)
        told = (kinds == (names.index(event) if event in names else -1)) & (self.batch.column("queue") >= queue_min)
        found: NDArray[np.bool_] = np.isin(key[mine], key[told]) & are_named(request_names)[requests[mine]]
        return found

    def is_asked_in_several(self, rows: Integers) -> NDArray[np.bool_]:
        """Whether requests of several of the queues that are here bear the identifier of each of these rows."""
        queue, _rows = queue_numbers(self.batch.table)
        return self._are_asked_with_several(rows, queue)

    def is_asked_again(self, rows: Integers) -> NDArray[np.bool_]:
        """Whether several requests, in any of the queues that are here, bear the identifier of each of these rows."""
        return self._are_asked_with_several(rows, np.arange(len(self.batch.table)))

    def _are_asked_with_several(self, rows: Integers, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the requests with the identifier of each of these rows have several values; by row of the table."""
        sources, source_names = self.batch.codes("source")
        requests, request_names = coded_texts(self.batch.table, "request")
        key = requests.astype(np.int64) * len(source_names) + sources
        kinds, names = self.batch.codes("event")
        asked = np.flatnonzero(kinds == (names.index("request_received") if "request_received" in names else -1))
        pairs = np.unique(np.column_stack((key[asked], values[asked].astype(np.int64))), axis=0)[:, 0]
        several = pairs[1:][pairs[1:] == pairs[:-1]]
        mine = self.table_rows(rows)
        found: NDArray[np.bool_] = np.isin(key[mine], several) & are_named(request_names)[requests[mine]]
        return found

    def evidence(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """The events of these rows as the history tells them (times on the common clock)."""
        places = self._places[np.array(sorted(set(rows)), dtype=np.int64)]
        return [event_dict(row) for row in self.batch.table.take(pa.array(places)).to_pylist()]


def make_batch(table: pa.Table, rows: Integers | None = None, queue: NDArray[Any] | None = None) -> Batch:
    """Sort the events of some queues; of these rows if any are named, all of whose queue numbers may be known."""
    table = table.unify_dictionaries().combine_chunks()
    queue = queue_numbers(table)[0] if queue is None else queue
    after_ns = table["after_ns"].to_numpy()
    order = order_by(queue, after_ns) if rows is None else rows[order_by(queue[rows], after_ns[rows])]
    queue_sorted, after_sorted = queue[order], after_ns[order]
    is_same = (queue_sorted[1:] == queue_sorted[:-1]) & (after_sorted[1:] == after_sorted[:-1])
    if is_same.any():
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        order[tied] = _break_ties(table, queue, order[tied])
    starts = np.flatnonzero(np.append(True, queue_sorted[1:] != queue_sorted[:-1])[: len(order)])
    return Batch(table, order, np.append(starts, len(order)))


def _break_ties(table: pa.Table, queue: NDArray[Any], rows: Integers) -> Integers:
    """Rows that share queue and `after_ns` with another one, in canonical order."""
    codes, names = coded(table, "source")
    rank = np.empty(len(names), dtype=np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    keys = [table[name].to_numpy()[rows] for name in ("sequence", "before_ns", "after_ns")]
    keys = [keys[0], rank[codes[rows]], keys[1], keys[2], queue[rows]]
    order = np.lexsort(keys)
    is_same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
    if is_same.any():
        # A source gave one number to several events of a moment: what they tell puts them in order.
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        group = np.cumsum(np.append(True, ~is_same))[tied]
        events = table.take(pa.array(rows[order[tied]]))
        told = [_ranks(column) for column in events.columns]
        order[tied] = order[tied][np.lexsort((*told, group))]
    return rows[order]


def _ranks(column: pa.ChunkedArray) -> Integers:
    """Numbers in the order of a column's values."""
    if pa.types.is_list(column.type):
        column = pa.chunked_array([pa.array(map(str, column.to_pylist()), pa.string())])
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    ranks: Integers = compute.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def queue_numbers(table: pa.Table) -> tuple[NDArray[Any], Integers]:
    """Each row's (broker, topic, queue) as a small number, and some row of each.

    The numbers have 16 bits where they suffice: these are sorted fastest.
    """
    brokers, broker_names = coded(table, "broker")
    topics, topic_names = coded(table, "topic")
    has_queue = has_column(table, "queue")
    queue = table["queue"].to_numpy() if has_queue else np.full(len(table), DEFAULTS["queue"], dtype=np.int64)
    counts = len(broker_names), len(topic_names)
    starts = run_starts(brokers, topics, queue)
    if len(starts) * _SPARSE > len(table):
        return _numbered(brokers, topics, queue, counts)
    # The rows of a queue lie together, as a part that is written here has them: one row of each run is enough.
    numbers, rows = _numbered(brokers[starts], topics[starts], queue[starts], counts)
    return np.repeat(numbers, np.diff(starts, append=len(table))), starts[rows]


def _numbered(
    brokers: NDArray[np.int32], topics: NDArray[np.int32], queue: Integers, counts: tuple[int, int]
) -> tuple[NDArray[Any], Integers]:
    """The same of columns; `counts` are of the brokers' and the topics' names."""
    broker_count, topic_count = counts
    least, most = int(queue.min(initial=0)), int(queue.max(initial=0))
    if broker_count * topic_count * (most - least + 1) > max(_SPARSE * len(queue), 1 << 20):
        _distinct, queue = np.unique(queue, return_inverse=True)
        least, most = 0, int(queue.max(initial=0))
    combined = (brokers.astype(np.int64) * topic_count + topics) * (most - least + 1) + (queue - least)
    if combined.max(initial=0) >= max(_SPARSE * len(queue), 1 << 20):
        combined = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    used = np.bincount(combined) > 0
    numbers = (np.cumsum(used) - 1)[combined]
    rows = np.empty(int(used.sum()), dtype=np.int64)
    rows[numbers] = np.arange(len(numbers))
    return (numbers.astype(np.uint16) if len(rows) < 1 << 16 else numbers), rows


_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_FIRST_ROWS: Final = 1_000
_DENSE: Final = 8
"""Rows are many where they are one in this number of all."""
_FEW_NAMES: Final = 64
"""So few names are not worth looking for those that rows have."""
_NO_EVENTS: Final = EVENT_SCHEMA.empty_table().select(REQUIRED)


def taken(table: pa.Table, rows: Integers) -> pa.Table:
    """These rows of the table, without columns at their default, and with few names but theirs."""
    is_taken = np.zeros(len(table), dtype=np.bool_)
    is_taken[rows] = True
    names = [name for name in table.column_names if name in REQUIRED or _is_used(table, name, rows, is_taken)]
    return compacted(table.select(names).take(pa.array(rows)), _FEW_NAMES)


def _is_used(table: pa.Table, name: str, rows: Integers, is_taken: Booleans) -> bool:
    """Whether any of the rows has something in this column; of the columns that are used most show it at once."""
    if not len(rows):
        return False
    values, default = _numbers(table, name)
    if (values[rows[:_FIRST_ROWS]] != default).any():
        return True
    if len(rows) * _DENSE < len(table):
        return bool((values[rows[_FIRST_ROWS:]] != default).any())
    # Where many rows are taken, to compare all in the order in which they lie costs half of picking these first.
    is_used: Booleans = values != default
    is_used &= is_taken
    return bool(is_used.any())


def _numbers(table: pa.Table, name: str) -> tuple[NDArray[Any], int]:
    """A column as numbers, and the number that it has where there is nothing in it."""
    if name in LISTS:
        return compute.list_value_length(table[name]).to_numpy(), 0
    if name not in NAMES:
        return table[name].to_numpy(), DEFAULTS[name]
    codes, texts = coded_texts(table, name)
    named = are_named(texts)
    # There is no more than one text that is empty, so a comparison does as well as to look each row's text up.
    return codes, -1 if named.all() else int(named.argmin())


def encode(table: pa.Table) -> bytes:
    """Some events as bytes, each dictionary cut to what they use."""
    packed = compacted(table, 1)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packed.schema, options=_COMPRESSED) as writer:
        writer.write_table(packed)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def compacted(table: pa.Table, least: int) -> pa.Table:
    """The table with no more names than its rows have, in those columns that have more than `least`."""
    names = table.column_names
    columns = [_compact(table[name], least) if name in NAMES else table[name] for name in names]
    return pa.table(columns, schema=pa.schema([EVENT_SCHEMA.field(name) for name in names])).combine_chunks()


def _compact(column: pa.ChunkedArray, least: int) -> pa.ChunkedArray:
    chunk = column.unify_dictionaries().combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.chunk(0)
    if len(chunk.dictionary) <= least:
        return chunk
    codes = chunk.indices.to_numpy()
    used = np.flatnonzero(np.bincount(codes, minlength=len(chunk.dictionary)))
    number = np.zeros(len(chunk.dictionary), dtype=np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(number[codes], chunk.dictionary.take(pa.array(used)))


def decode(content: pa.Buffer | bytes) -> pa.Table:
    """The events, without the columns that none of them uses."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """All the events in one table of one chunk, with the columns that any of them uses."""
    filled = [table for table in tables if len(table)]
    if len(filled) == 1:
        return filled[0].unify_dictionaries().combine_chunks()
    used = {name for table in filled for name in table.column_names}.union(REQUIRED)
    names = [name for name in EVENT_SCHEMA.names if name in used]
    whole = pa.concat_tables([fill(table, names) for table in filled] or [_NO_EVENTS])
    return whole.unify_dictionaries().combine_chunks()


def place_answers(table: pa.Table) -> pa.Table:
    """The same rows; answers that name no queue have the broker, topic and queue of the one place that asked."""
    table = fill(table)
    is_unplaced = compute.and_(compute.equal(table["event"], "answer_sent"), compute.less(table["queue"], 0))
    names = ["source", "request", *GROUP_KEY]
    plain = table.select(names).cast(pa.schema([PLAIN_SCHEMA.field(name) for name in names]))
    answers = plain.filter(is_unplaced)
    if not len(answers):
        return table
    is_asked = compute.and_(compute.equal(table["event"], "request_received"), compute.not_equal(plain["request"], ""))
    ends = [(name, end) for name in GROUP_KEY for end in ("min", "max")]
    asked = plain.filter(is_asked).group_by(names[:2]).aggregate(ends)
    asked = asked.filter(compute.greater_equal(asked["queue_min"], 0))
    for name in GROUP_KEY:
        asked = asked.filter(compute.equal(asked[f"{name}_min"], asked[f"{name}_max"]))
    keys = answers.select(names[:2]).append_column("place", pa.array(np.arange(len(answers))))
    found = keys.join(asked, names[:2], join_type="left outer").sort_by("place")
    # One that names another broker or topic than was asked is as wrong as one that names another queue, and stays so.
    is_other = compute.or_(*(_names_another(answers[name], found[f"{name}_min"]) for name in ("broker", "topic")))
    for name in GROUP_KEY:
        of_request = compute.coalesce(found[f"{name}_min"], answers[name])
        of_answers = compute.if_else(is_other, answers[name], of_request).combine_chunks()
        column = compute.replace_with_mask(plain[name].combine_chunks(), is_unplaced.combine_chunks(), of_answers)
        kind = EVENT_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, column.cast(kind.type))
    return table.unify_dictionaries().combine_chunks()


def _names_another(told: pa.ChunkedArray, asked: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which answers name another value than their request. An empty name on either side never differs."""
    are_named = compute.and_(compute.not_equal(told, ""), compute.not_equal(asked, ""))
    return compute.fill_null(compute.and_(are_named, compute.not_equal(told, asked)), False)
