"""Reads histories: directories of NDJSON parts and a `meta.json`, cut into slices that are read apart from each other.

A slice is a byte range of one part; it owns the lines that start in it. Reading goes through Arrow's JSON reader; a
slice in which anything is wrong is read again line by line, each bad line becomes a `Damage` that names its file and
byte, and the rest goes on. Both engines read through this module, so they see the same events and the same damage.
Leaves out what the events mean.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import frozen

from longpoll_judge.arrow import compute, json
from longpoll_judge.errors import HistoryNotFoundError
from longpoll_judge.schema import EVENT_SCHEMA, INTEGER_FIELDS, INTEGER_LIMIT, REQUIRED, fill
from longpoll_spec.history import FORMAT_VERSION, META_FILE, PART_GLOB, Event, Meta

SLICE_BYTES: Final = 8 << 20
LINE_BYTES_MAX: Final = 16 << 20
"""A longer line is damage; it is never held in memory whole."""
_NAMED_DAMAGES_MAX: Final = 100
"""Most damaged lines that one slice names; the others are only counted."""


class Damage(msgspec.Struct, frozen=True, order=True):
    """Something in the files that could not be read: evidence that is missing."""

    file: str
    position: int
    """Byte offset of the line in the file; -1 for the file as a whole."""
    reason: str
    count: int = 1


class Slice(msgspec.Struct, frozen=True, order=True):
    """A byte range [start, end) of one part file, and how its sources' clocks are aligned."""

    path: str
    start: int
    end: int
    rename: dict[str, str]
    """New names of sources whose names occur in several directories."""
    clocks: dict[str, tuple[int, int]]
    """By the source's name in the file: (offset_ns, uncertainty_ns)."""


@frozen
class History:
    """What was found under the paths, before any event is read."""

    slices: list[Slice]
    damages: list[Damage]
    """Missing, damaged and foreign meta files."""
    declared_sources: frozenset[str]
    policies: frozenset[str]


def find(paths: Iterable[Path]) -> History:
    """Look through the directories; raises `HistoryNotFoundError` for a path that holds no history."""
    directories = sorted({path.resolve() for path in paths})
    damages: list[Damage] = []
    metas: dict[Path, Meta | None] = {}
    for directory in directories:
        _check_is_history(directory)
        metas[directory] = _read_meta(directory, damages)
    slices: list[Slice] = []
    declared: set[str] = set()
    for number, directory in enumerate(directories):
        meta = metas[directory]
        if meta is not None and meta.format_version != FORMAT_VERSION:
            continue
        names = [source.name for source in meta.sources] if meta else []
        others = {
            source.name for other, known in metas.items() if other != directory and known for source in known.sources
        }
        rename = {name: f"{name}#{number}" for name in names if name in others}
        declared |= {rename.get(name, name) for name in names}
        clocks = {source.name: (source.offset_ns, source.uncertainty_ns) for source in meta.sources} if meta else {}
        for part in sorted(directory.glob(PART_GLOB)):
            slices += _cut(part, rename, clocks)
    policies = frozenset(meta.policy for meta in metas.values() if meta and meta.policy)
    return History(slices=slices, damages=damages, declared_sources=frozenset(declared), policies=policies)


def _check_is_history(directory: Path) -> None:
    if not directory.is_dir():
        raise HistoryNotFoundError(f"{directory} is not a directory; name a history that `serve --record` wrote")
    if not (directory / META_FILE).exists() and not any(directory.glob(PART_GLOB)):
        raise HistoryNotFoundError(f"{directory} holds no history: neither {META_FILE} nor {PART_GLOB} is in it")


def _read_meta(directory: Path, damages: list[Damage]) -> Meta | None:
    file = directory / META_FILE
    try:
        meta = msgspec.json.decode(file.read_bytes(), type=Meta)
    except FileNotFoundError:
        damages.append(Damage(str(file), -1, "missing: the sources' clocks are taken as they are"))
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        damages.append(Damage(str(file), -1, f"cannot be read ({error}): the sources' clocks are taken as they are"))
        return None
    if any(max(abs(source.offset_ns), abs(source.uncertainty_ns)) >= INTEGER_LIMIT for source in meta.sources):
        damages.append(Damage(str(file), -1, "a clock offset is out of range: the clocks are taken as they are"))
        return None
    if meta.format_version != FORMAT_VERSION:
        text = f"format {meta.format_version} is not the one read here, {FORMAT_VERSION}: the directory is left unread"
        damages.append(Damage(str(file), -1, text))
    return meta


def _cut(part: Path, rename: dict[str, str], clocks: dict[str, tuple[int, int]]) -> Iterator[Slice]:
    size = part.stat().st_size
    for start in range(0, size, SLICE_BYTES):
        yield Slice(str(part), start, min(start + SLICE_BYTES, size), rename, clocks)


def read_slice(part: Slice) -> tuple[pa.Table, list[Damage]]:
    """The events of the slice on the common clock (columns of `EVENT_SCHEMA`), and what could not be read."""
    content, position, damages = _read_lines(part)
    table = _parse_fast(content)
    if table is None:
        table = _parse_slowly(content, position, part.path, damages)
    return _align(table, part), damages


def _read_lines(part: Slice) -> tuple[bytes, int, list[Damage]]:
    """The whole lines that start in the slice, and the position of the first."""
    with Path(part.path).open("rb") as file:
        file.seek(max(part.start - 1, 0))
        content = file.read(part.end - max(part.start - 1, 0))
        position = part.start
        if part.start > 0:
            newline = content.find(b"\n")
            if newline < 0:
                return b"", part.end, []
            position = part.start + newline
            content = content[newline + 1 :]
        if not content or content.endswith(b"\n"):
            return content, position, []
        rest = file.readline(LINE_BYTES_MAX)
    last_line = content.rfind(b"\n") + 1
    if len(content) - last_line + len(rest) > LINE_BYTES_MAX:
        damage = Damage(part.path, position + last_line, f"a line longer than {LINE_BYTES_MAX} bytes")
        return content[:last_line], position, [damage]
    return content + rest, position, []


_DECODE_LINE: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _parse_fast(content: bytes) -> pa.Table | None:
    """All lines at once; None when any of them may be bad."""
    if not content.strip():
        return EVENT_SCHEMA.empty_table()
    try:
        content.decode()
        table = json.read_json(
            io.BytesIO(content),
            read_options=json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            parse_options=json.ParseOptions(explicit_schema=EVENT_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    line_count = content.count(b"\n") + (not content.endswith(b"\n"))
    if table.num_rows != line_count or any(table[name].null_count for name in REQUIRED):
        return None
    table = fill(table)
    return table if _is_in_range(table) else None


def _is_in_range(table: pa.Table) -> bool:
    """Whether every interval is one and every number is small enough to be reckoned with."""
    if compute.any(compute.greater(table["after_ns"], table["before_ns"])).as_py():
        return False
    numbers = [table[name] for name in INTEGER_FIELDS] + [compute.list_flatten(table["offsets"])]
    extremes = [extreme.as_py() for column in numbers if len(column) for extreme in compute.min_max(column).values()]
    return all(abs(extreme) < INTEGER_LIMIT for extreme in extremes)


def _parse_slowly(content: bytes, position: int, path: str, damages: list[Damage]) -> pa.Table:
    """Line by line: the good ones as a table, the bad ones named in `damages`."""
    good: list[bytes] = []
    bad_count = 0
    for line in content.split(b"\n"):
        if line.strip():
            try:
                good.append(_check_line(line))
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
                bad_count += 1
                if bad_count <= _NAMED_DAMAGES_MAX:
                    damages.append(Damage(path, position, f"a damaged line: {error}"))
        position += len(line) + 1
    if bad_count > _NAMED_DAMAGES_MAX:
        damages.append(Damage(path, -1, "more damaged lines", bad_count - _NAMED_DAMAGES_MAX))
    table = _parse_fast(b"".join(good))
    assert table is not None, "lines that were decoded and encoded again can be read"
    return table


def _check_line(line: bytes) -> bytes:
    """The line as this project would write it; raises a msgspec error that says what is wrong with it."""
    present = {name: value for name, value in _DECODE_LINE(line).items() if value is not None}
    event = msgspec.convert(present, Event)
    if event.after_ns > event.before_ns:
        raise msgspec.ValidationError(f"after_ns {event.after_ns} is later than before_ns {event.before_ns}")
    for value in (*(getattr(event, name) for name in INTEGER_FIELDS), *event.offsets):
        if abs(value) >= INTEGER_LIMIT:
            raise msgspec.ValidationError(f"the number {value} is out of range")
    return msgspec.json.encode(event) + b"\n"


def _align(table: pa.Table, part: Slice) -> pa.Table:
    """Put every event on the common clock, widen it by its source's uncertainty and give sources unique names."""
    if not len(table) or not (part.clocks or part.rename):
        return table
    encoded = table["source"].combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy()
    clocks = np.array([part.clocks.get(name, (0, 0)) for name in names], dtype=np.int64)
    offset_ns, uncertainty_ns = clocks[codes, 0], clocks[codes, 1]
    limit = INTEGER_LIMIT - 1
    renamed = pa.array([part.rename.get(name, name) for name in names], pa.string())
    columns = {
        "after_ns": pa.array(np.clip(table["after_ns"].to_numpy() + offset_ns - uncertainty_ns, -limit, limit)),
        "before_ns": pa.array(np.clip(table["before_ns"].to_numpy() + offset_ns + uncertainty_ns, -limit, limit)),
        "source": renamed.take(encoded.indices),
    }
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table
