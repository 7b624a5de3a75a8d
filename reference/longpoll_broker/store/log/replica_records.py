"""What another store's log holds, checked before it may stand in this one: whole records, and the blanks between files.

A copy is the log byte for byte, so each piece must be whole, say its own physical offset, pass its checksum and leave
its file as the other store left it. Leaves out whose queue a record belongs to (`message_store`) and where the bytes
come from (`rocketmq.replication.follower`).

Source: `DefaultMessageStore.appendToCommitLog`, `CommitLog.appendData`, which look at nothing.
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
"""What a record has beside its body, at most: properties, topic, and less than 200 bytes of numbers."""

BATCH_OVERHEAD_SIZE_MAX: Final = HEADER_SIZE_MAX // 33 * 256 + OVERHEAD_SIZE_MAX
"""What the records of a batch have beside their bodies and properties, which are in its own body, at most.

Less than 256 bytes each, the topic among them, of as many as have their ids of 32 characters in one answer's header.
"""


class CopyRefusedError(StoreError):
    """Bytes of another store's log cannot follow what this one has; nothing of them was written."""


def next_piece(content: memoryview, physical_offset: int, file_size: int, body_size_max: int) -> Record | int | None:
    """The first record of `content`, which begins at `physical_offset`, or the size of a blank there.

    None when more bytes are needed to tell. Raises CopyRefusedError for what is neither.
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
    # A blank is left where a whole batch did not fit.
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
    """Why what begins so cannot stand where a file has `rest` bytes left; None when it can."""
    if magic == MAGIC_BLANK:
        return None if size == rest else f"a blank of {size} bytes where a file has {rest} left"
    if magic not in {MAGIC_V1, MAGIC_V2}:
        return f"no record and no blank (magic {magic:08X})"
    return None if 0 < size <= rest - BLANK_SIZE_MIN else f"a record of {size} bytes where a file has {rest} left"
