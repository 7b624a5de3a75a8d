"""Events as numpy columns in one canonical order, and as Arrow tables for storage and transfer.

The canonical order is by queue, then by time, then by source and sequence, so no result depends on the order in which
events arrive. An Arrow table keeps the order of its input. Before events are stored or sent to another process, the
columns that these events do not use are removed.

Rule 4 of a history requires that answers name their broker, topic and queue. If a recorder omits them, the judge takes
broker, topic and queue from the request. If requests of several queues share the answer's identifier, the answer gets
no queue. An answer whose broker or topic differs from its request's keeps its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longpoll_judge.columns.keys import NO_KEYS, text_hashes
from longpoll_judge.columns.lookup import Booleans, Integers, are_of, run_starts
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
    constant,
    fill,
    has_column,
    integers_of,
)

GROUP_KEY: Final = ("broker", "topic", "queue")
QueueName = tuple[str, str, int]
"""The key of a queue: its broker, topic and number."""
Codec = Literal["lz4", "zstd"]
Tables = Callable[[], Iterator[pa.Table]]
"""A function that returns an iterator over the events of every split; it can be called again."""
_SPARSE: Final = 8
"""If a table has this many times fewer runs (adjacent rows of one queue) than rows, the judge numbers the runs instead
of the rows."""


def break_ties(table: pa.Table, queue: NDArray[Any], rows: Integers) -> Integers:
    """Returns the rows that share queue and `after_ns` with another row, sorted in canonical order."""
    codes, names = coded(table, "source")
    rank = np.empty(len(names), dtype=np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    keys = [table[name].to_numpy()[rows] for name in ("sequence", "before_ns", "after_ns")]
    keys = [keys[0], rank[codes[rows]], keys[1], keys[2], queue[rows]]
    order = np.lexsort(keys)
    is_same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
    if is_same.any():
        # If a source gave one sequence number to several events with equal times, order these events by their other
        # columns.
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        group = np.cumsum(np.append(True, ~is_same))[tied]
        events = table.take(pa.array(rows[order[tied]]))
        told = [_ranks(column) for column in events.columns]
        order[tied] = order[tied][np.lexsort((*told, group))]
    return rows[order]


def _ranks(column: pa.ChunkedArray) -> Integers:
    if pa.types.is_list(column.type):
        column = pa.chunked_array([pa.array(map(str, column.to_pylist()), pa.string())])
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    ranks: Integers = compute.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def queue_numbers(table: pa.Table) -> tuple[NDArray[Any], Integers]:
    """Returns a small number for each row's (broker, topic, queue), and for each number a row that has it.

    The numbers have 16 bits if possible, because numpy sorts such numbers fastest.
    """
    brokers, broker_names = coded(table, "broker")
    topics, topic_names = coded(table, "topic")
    queue = integers_of(table, "queue")
    counts = len(broker_names), len(topic_names)
    starts = run_starts(brokers, topics, queue)
    if len(starts) * _SPARSE > len(table):
        return _numbered(brokers, topics, queue, counts)
    # This project's recorder writes the events of a queue together, so one row of each run is enough.
    numbers, rows = _numbered(brokers[starts], topics[starts], queue[starts], counts)
    return np.repeat(numbers, np.diff(starts, append=len(table))), starts[rows]


def queue_names(table: pa.Table, rows: Integers) -> list[QueueName]:
    """Returns the queues (broker, topic, number) of these rows."""
    names = [name for name in table.column_names if name in (*GROUP_KEY, *REQUIRED)]
    named = fill(table.select(names).take(pa.array(rows)), GROUP_KEY)
    return [(*name.values(),) for name in named.to_pylist()]


def _numbered(
    brokers: NDArray[np.int32], topics: NDArray[np.int32], queue: Integers, counts: tuple[int, int]
) -> tuple[NDArray[Any], Integers]:
    """Number the queues of rows for `queue_numbers`; `counts` are the numbers of broker names and of topic names."""
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


_NARROW: Final = (np.uint8, np.uint16, np.uint32)
"""The integer types of columns that are stored or sent. A column gets the first type that can hold all of its values.
"""
_LONG_RUN: Final = 1_000
_FIRST_ROWS: Final = 1_000
_DENSE: Final = 8
"""Selected rows count as many if they are at least one in this many rows of the table."""
FEW_NAMES: Final = 64
"""Unused names are removed only from columns with more names than this, because the removal costs time."""
_MANY_NAMES: Final = 1_000
"""With this many names, comparing their hashes is cheaper than comparing the names."""
_NO_EVENTS: Final = EVENT_SCHEMA.empty_table().select(REQUIRED)


def rearranged(table: pa.Table, order: Integers) -> pa.Table:
    """Returns the rows in this order, in one chunk. Rows that stay adjacent are moved together."""
    starts = np.flatnonzero(np.append(True, np.diff(order) != 1)[: len(order)])
    if len(starts) <= 1 and len(order) == len(table):
        return table
    if len(starts) * _LONG_RUN > len(order):
        return table.take(pa.array(order)).combine_chunks()
    runs = zip(order[starts].tolist(), np.diff(starts, append=len(order)).tolist(), strict=True)
    return pa.concat_tables([table.slice(start, count) for start, count in runs]).combine_chunks()


def taken(table: pa.Table, rows: Integers) -> pa.Table:
    """Returns the given rows, without columns in which all of them have the default, and without most unused names."""
    is_taken = np.zeros(len(table), dtype=np.bool_)
    is_taken[rows] = True
    names = [name for name in table.column_names if name in REQUIRED or _is_used(table, name, rows, is_taken)]
    return compacted(table.select(names).take(pa.array(rows)), FEW_NAMES)


def _is_used(table: pa.Table, name: str, rows: Integers, is_taken: Booleans) -> bool:
    """Whether any of the rows has a value other than the default in this column.

    The first rows are checked first, because a used column usually has a value other than the default there.
    """
    if not len(rows):
        return False
    values, default = _numbers(table, name)
    if (values[rows[:_FIRST_ROWS]] != default).any():
        return True
    if len(rows) * _DENSE < len(table):
        return bool((values[rows[_FIRST_ROWS:]] != default).any())
    # If many rows are taken, comparing the whole column costs half of selecting the rows first.
    is_used: Booleans = values != default
    is_used &= is_taken
    return bool(is_used.any())


def _numbers(table: pa.Table, name: str) -> tuple[NDArray[Any], int]:
    if name in LISTS:
        return compute.list_value_length(table[name]).to_numpy(), 0
    if name not in NAMES:
        return table[name].to_numpy(), DEFAULTS[name]
    codes, texts = coded_texts(table, name)
    named = are_named(texts)
    # Each text occurs once in a dictionary, so at most one code is the empty text, and comparing codes is enough.
    return codes, -1 if named.all() else int(named.argmin())


def encode(table: pa.Table, codec: Codec | None = None) -> bytes:
    """Encode events as bytes, with their complete dictionaries (`compacted`). Most numbers take one or two bytes."""
    narrow, lowest = zip(*(_narrowed(table[name].combine_chunks()) for name in table.column_names), strict=True)
    told = {name: str(low) for name, low in zip(table.column_names, lowest, strict=True)}
    narrow_table = pa.table(list(narrow), table.column_names, metadata=told)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, narrow_table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(narrow_table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _narrowed(column: pa.Array) -> tuple[pa.Array, int]:
    """Returns a column as differences from its lowest number, and the lowest number; codes of names get fewer bytes."""
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(_narrowed(column.indices)[0], column.dictionary), 0
    if not pa.types.is_integer(column.type) or not len(column):
        return column, 0
    values = column.to_numpy()
    # The codes of names begin at 0 and are not shifted.
    lowest = int(values.min()) if column.type == pa.int64() else 0
    width = int(values.max()) - lowest
    kind = next((kind for kind in _NARROW if width <= np.iinfo(kind).max), np.int64)
    return pa.array((values - lowest).astype(kind)), lowest


def _widened(column: pa.Array, kind: pa.DataType, lowest: int) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices.to_numpy().astype(np.int32), column.dictionary)
    return pa.array(column.to_numpy().astype(np.int64) + lowest) if kind == pa.int64() else column


def compacted(table: pa.Table, least: int) -> pa.Table:
    """Returns the table without the names that no row uses. Columns with at most `least` names stay unchanged."""
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
    if len(used) == len(chunk.dictionary):
        return chunk
    number = np.zeros(len(chunk.dictionary), dtype=np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(number[codes], chunk.dictionary.take(pa.array(used)))


def decode(content: pa.Buffer | bytes) -> pa.Table:
    """Decode events. Columns that no event uses are absent."""
    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all()
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in table.column_names])
    lowest = {name.decode(): int(low) for name, low in table.schema.metadata.items()}
    columns = [_widened(table[column.name].combine_chunks(), column.type, lowest[column.name]) for column in schema]
    return pa.table(columns, schema=schema)


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns all events in one table with one chunk. The table has the columns that any event uses."""
    filled = [table for table in tables if len(table)] or [_NO_EVENTS]
    used = {name for table in filled for name in table.column_names}.union(REQUIRED)
    names = [name for name in EVENT_SCHEMA.names if name in used]
    counts = [len(table) for table in filled]
    parts = {name: [table[name] if has_column(table, name) else None for table in filled] for name in names}
    # Join the tables column by column, so that the memory of the input is freed while the result grows.
    del filled
    columns = []
    for name in names:
        kind, default = EVENT_SCHEMA.field(name).type, DEFAULTS.get(name)
        chunks: list[pa.Array] = []
        for part, count in zip(parts.pop(name), counts, strict=True):
            if part is None:
                chunks.append(constant(default, kind, count))
            elif part.type == kind and not (part.null_count and default is not None):
                chunks += part.chunks
            else:
                chunks += fill(pa.table([part], [name]), [name])[name].chunks
        whole = pa.chunked_array(chunks, kind)
        columns.append(_unified(whole) if name in NAMES else whole.combine_chunks())
        del chunks, whole
    return pa.table(columns, schema=pa.schema([EVENT_SCHEMA.field(name) for name in names]))


def _unified(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column of names in one chunk.

    If there are many names, such as the names of requests, they are compared by hash first, because most names occur in
    only one chunk.
    """
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    texts = pa.concat_arrays([chunk.dictionary for chunk in chunks] or [pa.array([], pa.string())])
    hashes = text_hashes(texts) if len(texts) > _MANY_NAMES else NO_KEYS
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    are_same = compute.equal(*(texts.take(pa.array(order[rows])) for rows in (again, again + 1)))
    if len(chunks) < 2 or not len(hashes) or not compute.all(are_same, min_count=0).as_py():
        whole = column.unify_dictionaries().combine_chunks()
        return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[again + 1] = False
    number = np.empty(len(order), dtype=np.int32)
    number[order] = order[np.flatnonzero(is_new)][np.cumsum(is_new) - 1]
    bases = np.cumsum([0, *(len(chunk.dictionary) for chunk in chunks)])
    codes = [number[chunk.indices.to_numpy() + base] for chunk, base in zip(chunks, bases[:-1].tolist(), strict=True)]
    return pa.DictionaryArray.from_arrays(np.concatenate(codes), texts)


def place_answers(table: pa.Table) -> pa.Table:
    """Returns the same rows, with broker, topic and queue added to answers without a queue.

    The added values come from the answer's request, if only one request has the answer's identifier.
    """
    events, event_names = coded(table, "event")
    is_unplaced = are_of(events, event_names, {"answer_sent"}) & (integers_of(table, "queue") < 0)
    if not is_unplaced.any():
        return table
    table, is_unplaced = fill(table), pa.array(is_unplaced)
    names = ["source", "request", *GROUP_KEY]
    plain = table.select(names).cast(pa.schema([PLAIN_SCHEMA.field(name) for name in names]))
    answers = plain.filter(is_unplaced)
    is_asked = compute.and_(compute.equal(table["event"], "request_received"), compute.not_equal(plain["request"], ""))
    ends = [(name, end) for name in GROUP_KEY for end in ("min", "max")]
    asked = plain.filter(is_asked).group_by(names[:2]).aggregate(ends)
    asked = asked.filter(compute.greater_equal(asked["queue_min"], 0))
    for name in GROUP_KEY:
        asked = asked.filter(compute.equal(asked[f"{name}_min"], asked[f"{name}_max"]))
    keys = answers.select(names[:2]).append_column("place", pa.array(np.arange(len(answers))))
    found = keys.join(asked, names[:2], join_type="left outer").sort_by("place")
    # An answer whose broker, topic or queue differs from its request's is wrong. Such an answer keeps its names, so
    # that a clause reports it.
    is_other = compute.or_(*(_names_another(answers[name], found[f"{name}_min"]) for name in ("broker", "topic")))
    for name in GROUP_KEY:
        of_request = compute.coalesce(found[f"{name}_min"], answers[name])
        of_answers = compute.if_else(is_other, answers[name], of_request).combine_chunks()
        column = compute.replace_with_mask(plain[name].combine_chunks(), is_unplaced, of_answers)
        kind = EVENT_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, column.cast(kind.type))
    return table.unify_dictionaries().combine_chunks()


def _names_another(told: pa.ChunkedArray, asked: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns which answers name a different value from their request's. An empty name is not a different value."""
    are_named = compute.and_(compute.not_equal(told, ""), compute.not_equal(asked, ""))
    return compute.fill_null(compute.and_(are_named, compute.not_equal(told, asked)), False)
