"""Reads NDJSON parts: all lines of a byte range at once with Arrow, or line by line if a line is invalid.

Each invalid line becomes a `Damage` with its file and byte, and reading continues. A part compressed with zstd can only
be read from its beginning, so it is read in pieces. If the end of a compressed part is missing, the complete lines
before it are still read. `source` converts the clocks and the names of sources.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from longpoll_judge.read.files import BOM, open_file
from longpoll_judge.read.schema import (
    EVENT_SCHEMA,
    INTEGER_FIELDS,
    INTEGER_LIMIT,
    LISTS,
    PLAIN_SCHEMA,
    REQUIRED,
    Damage,
    compute,
    fill,
    has_column,
    json,
)
from longpoll_spec.history import FIELD_TYPES, Event

LINE_BYTES_MAX: Final = 16 << 20
"""The maximum number of bytes of a line. A longer line is reported as damage, and is never completely in memory."""
PIECE_BYTES: Final = 8 << 20
"""The number of bytes of a compressed part that are decompressed at once."""
NAMED_DAMAGES_MAX: Final = 100
"""The maximum number of damaged lines that are listed for one split. Further damaged lines are only counted."""


def read_range(path: str, start: int, end: int) -> tuple[pa.Table, list[Damage]]:
    """Returns the events of the lines that begin in bytes [start, end) of a part, and the unreadable lines."""
    content, position, damages = _read_lines(path, start, end)
    return _parse(content, position, path, damages), damages


def read_compressed(path: str) -> tuple[pa.Table, list[Damage]]:
    """Returns the events of a zstd part; positions in damages count decompressed bytes."""
    tables = [EVENT_SCHEMA.empty_table()]
    damages: list[Damage] = []
    for content, position in _decompressed_lines(path, damages):
        tables.append(_parse(content, position, path, damages))
    return pa.concat_tables(tables), damages


def _decompressed_lines(path: str, damages: list[Damage]) -> Iterator[tuple[bytes, int]]:
    """Yields blocks of whole lines with the position of the first line; the last block may lack its newline."""
    rest, position, is_skipping = b"", 0, False
    for piece in _decompressed(path, damages):
        content = rest + piece
        cut = content.rfind(b"\n") + 1
        if is_skipping and cut:
            first = content.find(b"\n") + 1
            position, content, cut, is_skipping = position + first, content[first:], cut - first, False
        if cut:
            yield content[:cut], position
        position, rest = position + cut, content[cut:]
        if len(rest) > LINE_BYTES_MAX:
            if not is_skipping:
                damages.append(Damage(path, position, f"a line longer than {LINE_BYTES_MAX} bytes"))
            position, rest, is_skipping = position + len(rest), b"", True
    if rest and not is_skipping:
        yield rest, position


def _decompressed(path: str, damages: list[Damage]) -> Iterator[bytes]:
    with open_file(path) as file:
        try:
            with pa.CompressedInputStream(file, "zstd") as stream:
                while piece := stream.read(PIECE_BYTES):
                    yield piece
        except OSError as error:
            damages.append(Damage(path, -1, f"cannot be decompressed to its end: {error}"))


def _read_lines(path: str, start: int, end: int) -> tuple[bytes, int, list[Damage]]:
    """Returns the whole lines that begin in the range, and the position of the first line."""
    with open_file(path) as file:
        file.seek(max(start - 1, 0))
        content = file.read(end - max(start - 1, 0))
        position = start
        if start > 0:
            newline = content.find(b"\n")
            if newline < 0:
                return b"", end, []
            position = start + newline
            content = content[newline + 1 :]
        if not content or content.endswith(b"\n"):
            return content, position, []
        rest = file.readline(LINE_BYTES_MAX)
    last_line = content.rfind(b"\n") + 1
    if len(content) - last_line + len(rest) > LINE_BYTES_MAX:
        damage = Damage(path, position + last_line, f"a line longer than {LINE_BYTES_MAX} bytes")
        return content[:last_line], position, [damage]
    return content + rest, position, []


def _parse(content: bytes, position: int, path: str, damages: list[Damage]) -> pa.Table:
    if position == 0 and content.startswith(BOM):
        content, position = content[len(BOM) :], len(BOM)
    table = _parse_fast(content)
    return _parse_slowly(content, position, path, damages) if table is None else table


_NEWLINE, _RETURN, _OPENS, _CLOSES = b"\n\r{}"
_PAIRS: Final = JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str).decode
"""Decodes an object as (name, value) pairs. Numbers stay strings, which have no size limit."""
_DECODE_LINE: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _parse_fast(content: bytes) -> pa.Table | None:
    """Parse all lines at once; returns None if any line may be invalid."""
    if not content.strip():
        return EVENT_SCHEMA.empty_table()
    if not content.startswith(b"{"):
        return None  # A `null` at the start makes Arrow's reader end the process (pyarrow 26.0.1).
    try:
        content.decode()
        table = json.read_json(
            io.BytesIO(content),
            read_options=json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            parse_options=json.ParseOptions(explicit_schema=PLAIN_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != _count_lines(content) or any(table[name].null_count for name in REQUIRED):
        return None
    table = fill(table)
    return table if is_in_range(table) else None


def _count_lines(content: bytes) -> int:
    """Count the lines if each line has exactly one object; else return 0.

    Arrow's reader requires no newline between two objects and allows newlines inside one object. Because newlines
    within strings are escaped, each line has one object if there are as many objects as lines.
    """
    octets = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(octets[:-1] == _NEWLINE)
    last = octets[ends - 1]
    if (last == _RETURN).any():
        last = np.where(last == _RETURN, octets[ends - 2], last)
    is_apart = (last == _CLOSES) & (octets[ends + 1] == _OPENS)
    return len(ends) + 1 if is_apart.all() else 0


def is_in_range(table: pa.Table) -> bool:
    """Whether every interval is valid and no number is too large for computations."""
    return are_intervals(table) and are_filled(table) and _are_small(table)


def are_intervals(table: pa.Table) -> bool:
    """Whether no event ends before it begins."""
    return not compute.any(compute.greater(table["after_ns"], table["before_ns"])).as_py()


def are_filled(table: pa.Table) -> bool:
    """Whether no list contains a null."""
    return not any(compute.list_flatten(table[name]).null_count for name in LISTS if has_column(table, name))


def _are_small(table: pa.Table) -> bool:
    numbers = [table[name] for name in INTEGER_FIELDS if has_column(table, name)]
    numbers += [compute.list_flatten(table[name]) for name in LISTS if has_column(table, name)]
    extremes = [extreme.as_py() for column in numbers if len(column) for extreme in compute.min_max(column).values()]
    return all(abs(extreme) < INTEGER_LIMIT for extreme in extremes)


def _parse_slowly(content: bytes, position: int, path: str, damages: list[Damage]) -> pa.Table:
    """Parse line by line; returns the valid lines as a table, and adds the invalid lines to `damages`."""
    good: list[bytes] = []
    bad_count = 0
    for line in content.split(b"\n"):
        if line.strip():
            try:
                good.append(_check_line(line))
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
                bad_count += 1
                if bad_count <= NAMED_DAMAGES_MAX:
                    damages.append(Damage(path, position, f"a damaged line: {error}"))
        position += len(line) + 1
    if bad_count > NAMED_DAMAGES_MAX:
        damages.append(Damage(path, -1, "more damaged lines", bad_count - NAMED_DAMAGES_MAX))
    table = _parse_fast(b"".join(good))
    assert table is not None, "lines that were decoded and encoded again can be read"
    return table


def name_twice(content: bytes) -> str:
    """The first schema field that a JSON object names more than once; empty if no field is repeated.

    If a field is repeated, JSON readers differ in which value they keep, so the line is ambiguous, and Arrow rejects it
    too. Unknown fields may be repeated, because readers ignore them.
    """
    names = [name for name, _value in _PAIRS(content.decode()) if name in FIELD_TYPES]
    return next((name for name in names if names.count(name) > 1), "")


def _check_line(line: bytes) -> bytes:
    """Return the line in this project's own format; raises a msgspec error that describes an invalid line."""
    present = {name: value for name, value in _DECODE_LINE(line).items() if value is not None}
    if twice := name_twice(line):
        raise msgspec.ValidationError(f"the field {twice} occurs twice")
    event = msgspec.convert(present, Event)
    if event.after_ns > event.before_ns:
        raise msgspec.ValidationError(f"after_ns {event.after_ns} is later than before_ns {event.before_ns}")
    for value in (
        *(getattr(event, name) for name in INTEGER_FIELDS),
        *(one for name in LISTS for one in getattr(event, name)),
    ):
        if abs(value) >= INTEGER_LIMIT:
            raise msgspec.ValidationError(f"the number {value} is out of range")
    return msgspec.json.encode(event) + b"\n"
