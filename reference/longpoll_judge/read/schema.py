"""The columns of a history in Arrow, derived from the schema of the spec.

Texts are dictionary columns: each text is stored once and the rows contain small numbers, so texts are compared as
numbers. `source` reads the rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longpoll_spec.history import FIELD_TYPES, Event
from longpoll_spec.tables import with_table

compute: Final[Any] = importlib.import_module("pyarrow.compute")
json: Final[Any] = importlib.import_module("pyarrow.json")
parquet: Final[Any] = importlib.import_module("pyarrow.parquet")
filesystems: Final[Any] = importlib.import_module("pyarrow.fs")


_ARROW_TYPES: Final[dict[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    list: pa.list_(pa.int64()),
}
_NAME_TYPE: Final = pa.dictionary(pa.int32(), pa.string())

PLAIN_SCHEMA: Final = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in FIELD_TYPES.items()])
"""One column for each field of `longpoll_spec.history.Event`, in the same order, with the types used in files."""

NAMES: Final = tuple(name for name, kind in FIELD_TYPES.items() if kind is str)
"""The dictionary columns, which are all columns of texts. Even a request's identifier occurs in two or three events."""

LISTS: Final = tuple(name for name, kind in FIELD_TYPES.items() if kind is list)
"""The columns that contain lists of numbers."""

EVENT_SCHEMA: Final = pa.schema(
    [(name, _NAME_TYPE if name in NAMES else PLAIN_SCHEMA.field(name).type) for name in FIELD_TYPES]
)
"""The columns of `PLAIN_SCHEMA` with the types used in memory. Only `may_hold` can be null, for events that do not
record it."""

DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(Event)
    if not field.required
}
"""The value of each field in events that lack the field."""

REQUIRED: Final = tuple(name for name in FIELD_TYPES if name not in DEFAULTS)

TELLING: Final = ("offsets", "tag")
"""Columns that a DataFrame must have, although an event may lack their values. Without them, a correct answer would
look wrong: an answer that delivers nothing, or a message with another tag than its subscription wants."""

INTEGER_FIELDS: Final = tuple(name for name, kind in FIELD_TYPES.items() if kind is int)

INTEGER_LIMIT: Final = 1 << 61
"""The limit for the absolute value of times and offsets, so that the sum or difference of two values fits in an int64.
"""


def fill(table: pa.Table, names: Sequence[str] = EVENT_SCHEMA.names) -> pa.Table:
    """Returns a table with exactly these columns, and with the types that `EVENT_SCHEMA` gives them.

    Nulls and missing columns get the default. Raises `pa.ArrowInvalid` or `pa.ArrowNotImplementedError` if a column
    cannot be converted.
    """
    schema = EVENT_SCHEMA if names == EVENT_SCHEMA.names else pa.schema([EVENT_SCHEMA.field(name) for name in names])
    has_defaults = (name for name in names if DEFAULTS.get(name) is not None)
    if table.schema.equals(schema) and not any(table[name].null_count for name in has_defaults):
        return table
    columns = []
    for column in schema:
        if has_column(table, column.name):
            columns.append(_filled(table[column.name], column))
        else:
            columns.append(constant(DEFAULTS.get(column.name), column.type, len(table)))
    return pa.table(columns, schema=schema)


def has_column(table: pa.Table, name: str) -> bool:
    """Whether the table has this column.

    `name in table.column_names` takes 40 times as long, because it creates a list of all names.
    """
    return bool(table.schema.get_field_index(name) >= 0)


def fill_present(table: pa.Table) -> pa.Table:
    """Returns the table with defaults instead of nulls; missing columns stay missing."""
    return fill(table, table.column_names)


def _filled(values: pa.ChunkedArray, column: pa.Field) -> pa.ChunkedArray:
    if values.null_count and column.name in LISTS:
        values = values.cast(column.type)
        values = pa.chunked_array([_without_nulls(chunk) for chunk in values.chunks], values.type)
    elif values.null_count and column.name in DEFAULTS and values.type == _NAME_TYPE:
        values = _without_null_codes(values)
    elif values.null_count and DEFAULTS.get(column.name) is not None:
        values = values.cast(PLAIN_SCHEMA.field(column.name).type).fill_null(DEFAULTS[column.name])
    if values.type == pa.string_view() and column.name in NAMES:
        values = values.cast(pa.string())  # Arrow creates dictionaries only from the type `pa.string()`.
    return values if values.type == column.type else values.cast(column.type)


def constant(value: Any, kind: pa.DataType, length: int) -> pa.Array:
    """Returns a column with one value in all rows."""
    if kind == _NAME_TYPE:
        return pa.DictionaryArray.from_arrays(np.zeros(length, dtype=np.int32), pa.array([value], pa.string()))
    if value == []:
        return pa.ListArray.from_arrays(np.zeros(length + 1, dtype=np.int32), pa.array([], pa.int64()))
    return pa.repeat(pa.scalar(value, kind), length)


def _without_null_codes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    chunk = column.unify_dictionaries().combine_chunks()
    chunk = chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
    texts = chunk.dictionary.to_pylist()
    none = texts.index("") if "" in texts else len(texts)
    codes = chunk.indices.fill_null(none)
    return pa.chunked_array(
        [pa.DictionaryArray.from_arrays(codes, pa.array([*texts, ""][: max(none + 1, len(texts))]))]
    )


def _without_nulls(lists: pa.ListArray) -> pa.ListArray:
    """Replace nulls with empty lists, ten times faster than `fill_null`, because a null already has length 0."""
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


def coded(table: pa.Table, name: str) -> tuple[NDArray[np.int32], list[str]]:
    """Returns a dictionary column as the code of each row, and the distinct names. The column may be missing."""
    codes, texts = coded_texts(table, name)
    return codes, texts.to_pylist()


def coded_texts(table: pa.Table, name: str) -> tuple[NDArray[np.int32], pa.StringArray]:
    """Returns the same as `coded`, but with the names in an Arrow array, which is faster if there are many names."""
    if not has_column(table, name):
        return np.zeros(len(table), dtype=np.int32), pa.array([str(DEFAULTS[name])], pa.string())
    column = table[name]
    if column.num_chunks == 1:
        chunk = column.chunk(0)
        return chunk.indices.to_numpy(), chunk.dictionary
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.empty(0, dtype=np.int32), pa.array([], pa.string())
    return np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks]), column.chunk(0).dictionary


def are_named(texts: pa.StringArray) -> NDArray[np.bool_]:
    """Return a mask of the texts that are not empty."""
    if not len(texts):
        return np.zeros(0, dtype=np.bool_)
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    named: NDArray[np.bool_] = ends[1:] > ends[:-1]
    return named


def integers_of(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of integers. A missing column takes no memory."""
    if not has_column(table, name):
        return np.broadcast_to(np.int64(DEFAULTS[name]), len(table))
    found: NDArray[np.int64] = table[name].to_numpy()
    return found


def lists_of(table: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the bounds of the lists (row i has values [bounds[i], bounds[i + 1])), and the concatenated values."""
    if not has_column(table, name):
        return np.zeros(len(table) + 1, dtype=np.int64), np.empty(0, dtype=np.int64)
    lists = table[name].combine_chunks()
    bounds = lists.offsets.to_numpy().astype(np.int64)
    return bounds - bounds[0], lists.values.to_numpy()[bounds[0] : bounds[-1]]


def spread(bounds: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the values in the lists of some rows, concatenated: the row index and the position of each value."""
    counts = bounds[rows + 1] - bounds[rows]
    owner = np.repeat(np.arange(len(rows)), counts)
    return owner, np.arange(len(owner)) + (bounds[rows] - np.cumsum(counts) + counts)[owner]


def event_dict(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row as evidence: the fields of the event that have no default value, as in a file."""
    return {name: value for name, value in row.items() if name not in DEFAULTS or value != DEFAULTS[name]}


def order_of(event: Mapping[str, Any]) -> tuple[int, int, str, int]:
    """Returns the sort key of an event: its times, then source and sequence as tie-breakers."""
    return event["after_ns"], event["before_ns"], event["source"], event["sequence"]


@with_table
class Damage(msgspec.Struct, frozen=True, order=True):
    """Data in the files that could not be read, so that evidence is missing."""

    file: str
    position: int
    """Byte offset of the line in the file, or number of the row; -1 for the file as a whole."""
    reason: str
    count: int = 1
