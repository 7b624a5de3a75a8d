"""Carries events as they wait or travel: without the columns that they do not use, as an Arrow stream.

Leaves out which events wait where (`window_sweep`, `local`, `spark`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longpoll_judge.columns.batch import Integers
from longpoll_judge.read.arrow import compute
from longpoll_judge.read.schema import DEFAULTS, EVENT_SCHEMA, LISTS, NAMES, REQUIRED, are_named, coded_texts, fill

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_FIRST_ROWS: Final = 1_000
_DENSE: Final = 8
"""Rows are many where they are one in this number of all."""
_FEW_NAMES: Final = 64
"""So few names are not worth looking for those that rows have."""
Booleans = NDArray[np.bool_]
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
