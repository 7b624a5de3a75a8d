"""Reads the files of a RocketMQ store directory into Arrow, a range of one file at a time; never writes to it.

The judge's own reader, so that stored data can be compared with a history without trusting the broker's code. A
commit-log range owns the records that begin in it. To find the first one, the reader follows the file from its
beginning, size by size. An invalid record ends its file and becomes a row with `problem`. The blank that fills a file
and zeros that were never written end it without one. The index and the checkpoint are not read.

All integers are big-endian and signed (`CommitLog.java`, `ConsumeQueue.java`):

    Record   0   4     size               Unit   0   8   physical offset of the record
             4   4     magic                     8   4   its size
             8   4     CRC-32 of the body        12  8   hash of its tag, or when it is due
             12  4     queue
             16  4     flag
             20  8     queue offset
             28  8     physical offset
             36  4     system flag: 0x10 born host is IPv6, 0x20 store host is IPv6
             40  8     born, ms
             48  8|20  born host
             .   8     stored, ms
             .   8|20  store host
             .   4     times it was consumed again
             .   8     prepared transaction offset
             .   4+n   body
             .   1+n   topic (2+n for the later magic)
             .   2+n   properties: name 01 value 02 ...
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from attrs import frozen

from longpoll_judge.errors import StoreNotFoundError

Part = Literal["commitlog", "consumequeue"]
RANGE_BYTES: Final = 64 << 20
"""Bytes of a file that one reader takes."""
UNIT_SIZE: Final = 20
BATCH_ROWS: Final = 4096
_MAGICS: Final = {0xDAA320A7: 1, 0xDAA320AB: 2}
"""Magic of a record -> bytes of its topic's length."""
_MAGIC_BLANK: Final = 0xCBD43194
_CRC_MASK: Final = 0x7FFFFFFF
_HEAD: Final = struct.Struct(">iIIiiqqiq")
_SIZE_AND_MAGIC: Final = struct.Struct(">iI")
_RECORD_SIZE_MIN: Final = 91
"""A record with IPv4 hosts, and neither body, topic nor properties."""
_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

SCHEMAS: Final[dict[Part, pa.Schema]] = {
    "commitlog": pa.schema(
        [
            ("physical_offset", pa.int64()),
            ("size", pa.int64()),
            ("topic", pa.string()),
            ("queue", pa.int64()),
            ("queue_offset", pa.int64()),
            ("sys_flag", pa.int64()),
            ("born_ms", pa.int64()),
            ("stored_ms", pa.int64()),
            ("reconsume_times", pa.int64()),
            ("properties", pa.string()),
            ("body", pa.binary()),
            ("problem", pa.string()),
        ]
    ),
    "consumequeue": pa.schema(
        [
            ("topic", pa.string()),
            ("queue", pa.int64()),
            ("queue_offset", pa.int64()),
            ("physical_offset", pa.int64()),
            ("size", pa.int64()),
            ("tags_code", pa.int64()),
        ]
    ),
}
Row = dict[str, Any]


@frozen
class FileRange:
    """Bytes [start, end) of one file; `first` is the number that the file's name gives to its first byte."""

    path: str
    start: int
    end: int
    first: int
    topic: str = ""
    queue: int = -1


def ranges(store: Path, part: Part) -> list[FileRange]:
    """The files of a part of the store, cut into ranges; raises `StoreNotFoundError`."""
    directory = store / part
    if not directory.is_dir():
        raise StoreNotFoundError(f"{store} has no {part}; name a RocketMQ store directory")
    pattern, step = ("*", RANGE_BYTES) if part == "commitlog" else ("*/*/*", RANGE_BYTES - RANGE_BYTES % UNIT_SIZE)
    found = []
    for file in sorted(directory.glob(pattern)):
        if not (file.is_file() and file.name.isdigit()):
            continue
        topic, queue = ("", -1) if part == "commitlog" else (file.parts[-3], int(file.parts[-2]))
        size = file.stat().st_size
        found += [
            FileRange(str(file), start, min(start + step, size), int(file.name), topic, queue)
            for start in range(0, size, step)
        ]
    return found


def read_units(part: FileRange) -> pa.RecordBatch:
    """The units of a consume-queue range that list a message."""
    with Path(part.path).open("rb") as file:
        file.seek(part.start)
        content = file.read((part.end - part.start) // UNIT_SIZE * UNIT_SIZE)
    units = np.frombuffer(content, dtype=_UNIT)
    rows = np.flatnonzero((units["size"] > 0) & (units["size"] < _CRC_MASK))
    columns = {
        "topic": pa.array([part.topic] * len(rows), pa.string()),
        "queue": pa.repeat(part.queue, len(rows)),
        "queue_offset": pa.array((part.first + part.start) // UNIT_SIZE + rows),
    }
    columns |= {name: pa.array(units[name][rows].astype(np.int64)) for name in ("physical_offset", "size", "tags_code")}
    schema = SCHEMAS["consumequeue"]
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_records(part: FileRange) -> Iterator[pa.RecordBatch]:
    """The records that begin in a commit-log range, some at a time."""
    waiting: list[Row] = []
    for row in _rows(part):
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema=SCHEMAS["commitlog"])
            waiting = []
    yield pa.RecordBatch.from_pylist(waiting, schema=SCHEMAS["commitlog"])


def _rows(part: FileRange) -> Iterator[Row]:
    with Path(part.path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = 0
        while position < part.end and position + _SIZE_AND_MAGIC.size <= len(content):
            size, magic = _SIZE_AND_MAGIC.unpack_from(content, position)
            if magic == _MAGIC_BLANK:
                return
            problem = _problem(content, position, size, magic)
            if problem:
                if position >= part.start and any(content[position : position + _RECORD_SIZE_MIN]):
                    yield {"physical_offset": part.first + position, "problem": problem}
                return
            if position >= part.start:
                yield _decoded(content[position : position + size], _MAGICS[magic], part.first + position)
            position += size


def _problem(content: mmap.mmap, position: int, size: int, magic: int) -> str:
    if magic not in _MAGICS:
        return f"no record begins here: the magic number is {magic:08x}"
    if not _RECORD_SIZE_MIN <= size <= len(content) - position:
        return f"a record cannot have {size} bytes here"
    return ""


def _decoded(record: bytes, topic_length_size: int, physical_offset: int) -> Row:
    size, _magic, crc, queue, _flag, queue_offset, told_offset, sys_flag, born_ms = _HEAD.unpack_from(record)
    row: Row = {"physical_offset": physical_offset, "size": size}
    try:
        place = _HEAD.size + (20 if sys_flag & 0x10 else 8)
        (stored_ms,) = struct.unpack_from(">q", record, place)
        place += 8 + (20 if sys_flag & 0x20 else 8)
        reconsume_times, _prepared, body_size = struct.unpack_from(">iqi", record, place)
        body, place = _cut(record, place + 16, body_size)
        topic_size = int.from_bytes(_cut(record, place, topic_length_size)[0])
        topic, place = _cut(record, place + topic_length_size, topic_size)
        properties, place = _cut(record, place + 2, int.from_bytes(_cut(record, place, 2)[0]))
        row |= {"topic": topic.decode(), "properties": properties.decode()}
    except (struct.error, ValueError) as error:
        return row | {"problem": f"the record's lengths or texts are wrong: {error}"}
    row |= {"queue": queue, "queue_offset": queue_offset, "sys_flag": sys_flag, "born_ms": born_ms}
    row |= {"stored_ms": stored_ms, "reconsume_times": reconsume_times, "body": body}
    if place != size:
        return row | {"problem": f"the record's fields take {place} of its {size} bytes"}
    if told_offset != physical_offset:
        return row | {"problem": f"the record says that it begins at {told_offset}"}
    if body and zlib.crc32(body) & _CRC_MASK != crc:
        return row | {"problem": "the checksum of the body is wrong"}
    return row


def _cut(record: bytes, start: int, size: int) -> tuple[bytes, int]:
    """Bytes of the record, and where they end; raises `ValueError` when it has fewer."""
    if size < 0 or start + size > len(record):
        raise ValueError(f"{size} bytes at {start} of {len(record)}")
    return record[start : start + size], start + size
