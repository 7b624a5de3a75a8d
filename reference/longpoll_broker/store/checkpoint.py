"""Up to which store time the log, the queues and the index are durable (`StoreCheckpoint.java`).

    Offset  Size  What (big-endian, signed, milliseconds; a file of 4096 bytes)
    0       8     store timestamp of the last flushed record of the commit log
    8       8     store timestamp of the last record whose consume-queue unit is flushed
    16      8     the same for the index
    24      8     5.x: physical offset the master has flushed
    32      8     5.x: physical offset that is confirmed
    4056    8     ours: "longpoll"
    4064    16    the first two numbers again: a checkpoint that RocketMQ wrote since says nothing of what follows
    4080    8     how many files the consume queues have
    4088    8     physical offset of a record that, with all before it, is durable in log and queues

Leaves out when it is written: `message_store` does it, always after the bytes it speaks of are durable.
"""

from __future__ import annotations

import struct
from typing import Final

from attrs import evolve, frozen

from longpoll_runtime import Files

CHECKPOINT_SIZE: Final = 4096
SLACK_MS: Final = 3000
"""Records are stamped before they are appended, so the order of stamps may be this much off (`getMinTimestamp`)."""
_FIELDS: Final = struct.Struct(">qqqqq")
_OURS: Final = struct.Struct(">8sqqqq")
_OURS_AT: Final = CHECKPOINT_SIZE - _OURS.size
_MARK: Final = b"longpoll"


@frozen
class Checkpoint:
    """The file's fields; zeros where nothing was flushed yet."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    durable_offset: int = -1
    """Of the last record that is durable in log and queues with all before it; -1 where nobody says."""
    queue_file_count: int = 0
    """How many files the queues had then: where some are gone, what they listed is not there."""

    @property
    def safe_ms(self) -> int:
        """Everything stored up to here is durable in log and queues."""
        return max(0, min(self.physic_ms, self.logics_ms) - SLACK_MS)


def decode_checkpoint(content: bytes) -> Checkpoint:
    """The fields; a file that is too short counts as never written."""
    if len(content) < _FIELDS.size:
        return Checkpoint()
    fields = _FIELDS.unpack_from(content)
    known = Checkpoint(*fields)
    if len(content) >= CHECKPOINT_SIZE:
        mark, physic_ms, logics_ms, queue_file_count, durable_offset = _OURS.unpack_from(content, _OURS_AT)
        if (mark, physic_ms, logics_ms) == (_MARK, known.physic_ms, known.logics_ms):
            return evolve(known, durable_offset=durable_offset, queue_file_count=queue_file_count)
    return known


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    fields = _FIELDS.pack(
        checkpoint.physic_ms,
        checkpoint.logics_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirmed_offset,
    ).ljust(_OURS_AT, b"\0")
    if checkpoint.durable_offset < 0:
        return fields.ljust(CHECKPOINT_SIZE, b"\0")
    return fields + _OURS.pack(
        _MARK, checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.queue_file_count, checkpoint.durable_offset
    )


def load_checkpoint(files: Files, path: str) -> Checkpoint:
    """Read the file; zeros when it is not there."""
    return decode_checkpoint(files.read(path)) if files.exists(path) else Checkpoint()
