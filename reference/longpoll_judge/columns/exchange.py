"""Carries events as they wait or travel: without the columns that they do not use, as an Arrow stream.

Leaves out which events wait where (`sweep`, `local`, `spark`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from longpoll_judge.columns.batch import Integers
from longpoll_judge.read.arrow import compute
from longpoll_judge.read.schema import DEFAULTS, EVENT_SCHEMA, NAMES, REQUIRED, are_named, coded_texts, fill

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_FIRST_ROWS: Final = 1_000
_NO_EVENTS: Final = EVENT_SCHEMA.empty_table().select(REQUIRED)


def taken(table: pa.Table, rows: Integers) -> pa.Table:
    """These rows of the table, with no more than they need: neither columns at their default nor names."""
    names = [name for name in table.column_names if name in REQUIRED or _is_used(table, name, rows)]
    return _compacted(table.select(names).take(pa.array(rows)))


def _is_used(table: pa.Table, name: str, rows: Integers) -> bool:
    """Whether any of the rows has something in this column; of the columns that are used most show it at once."""
    return _has_any(table, name, rows[:_FIRST_ROWS]) or _has_any(table, name, rows[_FIRST_ROWS:])


def _has_any(table: pa.Table, name: str, rows: Integers) -> bool:
    if name in NAMES:
        codes, texts = coded_texts(table, name)
        named = are_named(texts)
        # There is no more than one text that is empty, so a comparison does as well as to look each row's text up.
        return len(rows) > 0 if named.all() else bool((codes[rows] != named.argmin()).any())
    if name == "offsets":
        return len(compute.list_flatten(table[name])) > 0
    return bool((table[name].to_numpy()[rows] != DEFAULTS[name]).any())


def encode(table: pa.Table) -> bytes:
    """Some events as bytes, each dictionary cut to what they use."""
    compacted = _compacted(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, compacted.schema, options=_COMPRESSED) as writer:
        writer.write_table(compacted)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _compacted(table: pa.Table) -> pa.Table:
    names = table.column_names
    columns = [_compact(table[name]) if name in NAMES else table[name] for name in names]
    return pa.table(columns, schema=pa.schema([EVENT_SCHEMA.field(name) for name in names])).combine_chunks()


def _compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    chunk = column.unify_dictionaries().combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.chunk(0)
    if len(chunk.dictionary) <= 1:
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
