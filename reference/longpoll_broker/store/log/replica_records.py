"""Checks the records and blanks of another store's log before they are copied.

A copy is byte-exact, so each piece must be complete, contain its own physical offset, pass its checksum and fit its
file as in the other store. Queues of records: see `store.replica_append`. Origin of the bytes: see
`rocketmq.replication.follower`.

Source: `DefaultMessageStore.appendToCommitLog`, `CommitLog.appendData`, which check nothing.
"""

from __future__ import annotations

from typing import Final

from longpoll_broker.errors import StoreError
from longpoll_protocol.frames.frame import HEADER_SIZE_MAX
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    Damage,
    Record,
    decode,
)
from longpoll_protocol.sizes import KIB

OVERHEAD_SIZE_MAX: Final = 64 * KIB
"""Maximum bytes of a record besides its body: properties, topic, and under 200 bytes of numbers."""

BATCH_OVERHEAD_SIZE_MAX: Final = HEADER_SIZE_MAX // 33 * 256 + OVERHEAD_SIZE_MAX
"""Maximum bytes of a batch's records besides its body, which contains their bodies and properties.

Under 256 bytes per record, with its topic, for as many records as have their 32-character ids in one answer.
"""


class CopyRefusedError(StoreError):
    """Another store's bytes cannot follow this log; none of them were written."""


def next_piece(content: memoryview, physical_offset: int, file_size: int, body_size_max: int) -> Record | int | None:
    """Returns the first record of `content`, which begins at `physical_offset`, or the size of a blank.

    Returns None when more bytes are needed. Raises CopyRefusedError for anything else.
    """
    if len(content) < SIZE_AND_MAGIC.size:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(content)
    problem = _problem(size, magic, file_size - physical_offset % file_size)
    if problem is not None:
        raise CopyRefusedError(
            f"there is {problem} at {physical_offset} of the other log: the two logs differ before it, or their file "
            f"sizes differ (mappedFileSizeCommitLog is {file_size} here)"
        )
    # A blank may be as large as a batch that did not fit.
    size_max = body_size_max + (BATCH_OVERHEAD_SIZE_MAX if magic == MAGIC_BLANK else OVERHEAD_SIZE_MAX)
    if size > size_max:
        what = "blank" if magic == MAGIC_BLANK else "record"
        raise CopyRefusedError(
            f"the {what} at {physical_offset} of the other log has {size} bytes, but this broker allows "
            f"bodies of {body_size_max}; set maxMessageSize to the other broker's value"
        )
    if len(content) < size:
        return None
    if magic == MAGIC_BLANK:
        return int(size)
    found = decode(content, 0, size, physical_offset)
    if isinstance(found, Damage):
        raise CopyRefusedError(
            f"the record at {physical_offset} of the other log is damaged: {found.found} at its byte {found.offset} "
            f"where {found.expected} is due"
        )
    return found


def _problem(size: int, magic: int, rest: int) -> str | None:
    """Returns why a piece cannot be where a file has `rest` bytes left; None if it can."""
    if magic == MAGIC_BLANK:
        return None if size == rest else f"a blank of {size} bytes where a file has {rest} left"
    if magic not in {MAGIC_V1, MAGIC_V2}:
        return f"no record and no blank (magic {magic:08X})"
    return None if 0 < size <= rest - BLANK_SIZE_MIN else f"a record of {size} bytes where a file has {rest} left"
