"""The columns of a history in Arrow, made from the schema of the spec.

Leaves out where the rows come from (`source`) and what they mean (`steps`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from longpoll_spec.history import FIELD_TYPES, Event

_ARROW_TYPES: Final[dict[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    list: pa.list_(pa.int64()),
}

EVENT_SCHEMA: Final = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in FIELD_TYPES.items()])
"""One column a field of `longpoll_spec.history.Event`, in its order; no nulls."""

DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(Event)
    if not field.required
}
"""What a field is when an event does not have it."""

REQUIRED: Final = tuple(name for name in FIELD_TYPES if name not in DEFAULTS)

INTEGER_FIELDS: Final = tuple(name for name, kind in FIELD_TYPES.items() if kind is int)

INTEGER_LIMIT: Final = 1 << 61
"""Times and offsets stay below this in size, so that sums and differences of two of them fit an int64."""


def fill(table: pa.Table) -> pa.Table:
    """The table with every column of `EVENT_SCHEMA` and defaults in place of nulls."""
    columns = []
    for name in EVENT_SCHEMA.names:
        column = table[name]
        if column.null_count and name == "offsets":
            column = pa.chunked_array([_without_nulls(chunk) for chunk in column.chunks], column.type)
        elif column.null_count and name in DEFAULTS:
            column = column.fill_null(pa.scalar(DEFAULTS[name], EVENT_SCHEMA.field(name).type))
        columns.append(column)
    return pa.table(columns, schema=EVENT_SCHEMA)


def _without_nulls(lists: pa.ListArray) -> pa.ListArray:
    """Empty lists in place of nulls, ten times faster than `fill_null`: a null's place has no length as it is read."""
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


def event_dict(row: dict[str, Any]) -> dict[str, Any]:
    """One row as evidence: the fields that the event has, defaults left out as in the file."""
    return {name: value for name, value in row.items() if name not in DEFAULTS or value != DEFAULTS[name]}
