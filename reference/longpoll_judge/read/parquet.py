"""Reads Parquet parts: each row group is a split, and texts become dictionary columns.

Files from other programs are converted to `schema.EVENT_SCHEMA`: unknown columns are not read, missing columns get
defaults, and rows that are not events become `Damage`. If a file has no footer because its writer was killed, the whole
file becomes one `Damage`. `source` converts the clocks and the names of sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from longpoll_judge.read.files import first_line, is_uri, to_arrow
from longpoll_judge.read.ndjson import NAMED_DAMAGES_MAX, are_filled, are_intervals, is_in_range
from longpoll_judge.read.schema import (
    DEFAULTS,
    EVENT_SCHEMA,
    INTEGER_FIELDS,
    INTEGER_LIMIT,
    LISTS,
    NAMES,
    REQUIRED,
    Damage,
    compute,
    fill,
    fill_present,
    parquet,
)

ROW_GROUP_EVENTS_MAX: Final = 16 << 20
"""The maximum number of events of a row group. A larger row group is reported as damage, and is never completely in
memory."""
_AS_DICTIONARY: Final = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"})
"""Encodings that pyarrow can read into a dictionary column; it rejects all other encodings."""
_UNREADABLE_DICTIONARY: Final = (
    "is a dictionary in Arrow and another encoding in the file, which pyarrow does not read: write it as strings, or "
    "with use_dictionary"
)


def row_group_count(path: str, damages: list[Damage]) -> int:
    """Return the number of row groups of a part; 0 if the part cannot be read."""
    try:
        with parquet.ParquetFile(to_arrow(path)) as file:
            return int(file.metadata.num_row_groups)
    except (pa.ArrowInvalid, OSError) as error:
        damages.append(Damage(path, -1, f"cannot be read as Parquet: {first_line(error)}"))
        return 0


def read_row_groups(
    path: str, first: int, end: int, columns: Sequence[str] | None = None, *, sparse: bool = False
) -> tuple[pa.Table, list[Damage]]:
    """Returns the events of row groups [first, end), and what could not be read.

    If `columns` is given, another column is skipped only if the file's statistics show that its numbers are in range
    and its type can be read, so that the same rows are damaged however few columns are read. If `sparse` is true,
    columns that have their default in every row according to the statistics are skipped too.
    """
    try:
        metadata = parquet.read_metadata(to_arrow(path))
        rows = [metadata.row_group(number).num_rows for number in range(end)]
        if max(rows[first:]) > ROW_GROUP_EVENTS_MAX:
            return _nothing(path, sum(rows[first:]), f"a row group of more than {ROW_GROUP_EVENTS_MAX} rows")
        schema = metadata.schema.to_arrow_schema()
        names = [name for name in EVENT_SCHEMA.names if name in schema.names]
        groups = [metadata.row_group(number) for number in range(first, end)]
        if refusal := _refusal(schema, groups):
            return _nothing(path, sum(rows[first:]), refusal)
        is_sound, is_plain = all(map(_is_sound, groups)), all(_is_plain(schema.field(name)) for name in names)
        is_partial = columns is not None and set(columns) <= set(names) and is_sound and is_plain
        if is_partial:
            names = list(dict.fromkeys([*(columns or names), *_doubtful(schema)]))
        if sparse and is_plain:
            unused = [_at_default(group) for group in groups]
            names = [name for name in names if not all(name in columns_there for columns_there in unused)]
        texts = [name for name in NAMES if name in schema.names and schema.field(name).type == pa.string()]
        apart = {name for group in groups for name in _not_as_dictionary(group)}.intersection(texts, names)
        with parquet.ParquetFile(
            to_arrow(path),
            metadata=metadata,
            read_dictionary=[name for name in texts if name not in apart],
            memory_map=not is_uri(path),
        ) as file:
            numbers, together = list(range(first, end)), [name for name in names if name not in apart]
            table = file.read_row_groups(numbers, columns=together, use_threads=False)
            # Convert the columns one by one, so that at most one of them is in memory as plain texts at a time.
            for name in sorted(apart):
                column = file.read_row_groups(numbers, columns=[name], use_threads=False)[name]
                table = table.append_column(name, column.dictionary_encode())
            table = table.select(names)
        if broken := _undecodable(table):
            return _nothing(path, len(table), f"a text of the column {broken} is no UTF-8")
        absent = [name for name in REQUIRED if name not in names]
        if absent:
            return _nothing(path, len(table), f"the column {absent[0]} is missing")
        table = fill_present(table) if is_partial or sparse else fill(table)
        return _without_bad_rows(table, path, sum(rows[:first]), is_sound=is_sound)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError) as error:
        return _nothing(path, 1, f"row groups {first} to {end - 1} cannot be read: {first_line(error)}")


def _refusal(schema: pa.Schema, groups: Iterable[Any]) -> str:
    """Return why these row groups cannot be read, whatever columns are requested; empty if they can be read."""
    twice = [name for name in EVENT_SCHEMA.names if schema.names.count(name) > 1]
    if twice:
        return f"the column {twice[0]} is there more than once"
    apart = {name for group in groups for name in _not_as_dictionary(group) if name in NAMES}
    strange = [name for name in sorted(apart) if pa.types.is_dictionary(schema.field(name).type)]
    return f"the column {strange[0]} {_UNREADABLE_DICTIONARY}" if strange else ""


def _not_as_dictionary(group: Any) -> set[str]:
    """Returns the columns of a row group that pyarrow cannot read as dictionaries, as DuckDB 2 writes them."""
    columns = (group.column(place) for place in range(group.num_columns))
    return {column.path_in_schema for column in columns if not _AS_DICTIONARY.issuperset(column.encodings)}


def _is_sound(group: Any) -> bool:
    """Whether statistics show that every number of a row group is in range."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema.split(".")[0] in (*INTEGER_FIELDS, *LISTS):
            seen = column.statistics
            if column.num_values and (seen is None or not (seen.has_min_max or seen.null_count == column.num_values)):
                return False
            if seen is not None and seen.has_min_max and not all(map(_is_small, (seen.min, seen.max))):
                return False
    return True


def _is_plain(column: pa.Field) -> bool:
    """Whether a column has a type that can always be read, provided that its numbers are in range."""
    kind, types = column.type, pa.types
    if column.name in NAMES:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
    if column.name in LISTS:
        return (types.is_list(kind) or types.is_large_list(kind)) and bool(types.is_integer(kind.value_type))
    return bool(types.is_integer(kind) if column.name in INTEGER_FIELDS else types.is_boolean(kind))


def _doubtful(schema: pa.Schema) -> list[str]:
    """Returns the columns that may be damaged whatever the statistics show: lists, which may have nulls, and texts.

    If the file's schema forbids nulls in lists, the result is empty, because a program that writes such a schema is
    trusted to write valid texts too.
    """
    offsets = schema.field("offsets").type if "offsets" in schema.names else None
    if offsets is not None and not offsets.value_field.nullable:
        return []
    return [name for name in (*NAMES, *LISTS) if name in schema.names]


def _undecodable(table: pa.Table) -> str:
    """Returns the first column with a text that is not UTF-8; empty if all texts are UTF-8."""
    for name in NAMES:
        for chunk in table[name].chunks if name in table.column_names else ():
            texts = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
            try:
                texts.validate(full=True)
            except pa.ArrowInvalid:
                return name
    return ""


def _at_default(group: Any) -> set[str]:
    """Returns the columns of a row group that statistics show to be at their default in every row."""
    found: set[str] = set()
    for place in range(group.num_columns):
        column = group.column(place)
        default, seen = DEFAULTS.get(column.path_in_schema), column.statistics
        if isinstance(default, int | str) and seen is not None and seen.has_min_max and _is_always(seen, default):
            found.add(column.path_in_schema)
    return found


def _is_always(seen: Any, value: int | str) -> bool:
    """Whether a column has only this value, by its statistics; false for texts whose statistics are truncated."""
    try:
        return bool(seen.min == seen.max == value)
    except UnicodeDecodeError:
        return False


def _is_small(number: Any) -> bool:
    """Whether a value in the statistics is a number in range; the statistics of other columns have other types."""
    return isinstance(number, int) and abs(number) < INTEGER_LIMIT


def _nothing(path: str, count: int, reason: str) -> tuple[pa.Table, list[Damage]]:
    return EVENT_SCHEMA.empty_table(), [Damage(path, -1, reason, count)]


def _without_bad_rows(table: pa.Table, path: str, first_row: int, *, is_sound: bool) -> tuple[pa.Table, list[Damage]]:
    """Returns the rows that are events. If `is_sound`, the numbers are known to be in range and are not checked."""
    is_filled = all(table[name].null_count == 0 for name in REQUIRED)
    if is_filled and (are_intervals(table) and are_filled(table) if is_sound else is_in_range(table)):
        return table, []
    bad = np.zeros(len(table), dtype=np.bool_)
    for name in REQUIRED:
        bad |= np.asarray(table[name].is_null())
    bad |= np.asarray(compute.greater(table["after_ns"], table["before_ns"]).fill_null(True))
    for name in INTEGER_FIELDS:
        if name in table.column_names:
            bad |= _is_out_of_range(table[name])
    for name in LISTS:
        if name not in table.column_names:
            continue
        bodies = table[name].combine_chunks()
        owners = np.repeat(np.arange(len(table)), np.asarray(compute.list_value_length(bodies)))
        bad[owners[_is_out_of_range(compute.list_flatten(bodies))]] = True
    rows = np.flatnonzero(bad)
    reason = "a damaged row: a required field is missing, a number out of range, or after_ns later than before_ns"
    damages = [Damage(path, first_row + row, reason) for row in rows[:NAMED_DAMAGES_MAX].tolist()]
    if len(rows) > NAMED_DAMAGES_MAX:
        damages.append(Damage(path, -1, "more damaged rows", len(rows) - NAMED_DAMAGES_MAX))
    return table.filter(pa.array(~bad)), damages


def _is_out_of_range(column: Any) -> Any:
    above, below = compute.greater_equal(column, INTEGER_LIMIT), compute.less_equal(column, -INTEGER_LIMIT)
    return np.asarray(compute.or_(above, below).fill_null(True))
