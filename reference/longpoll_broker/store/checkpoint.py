"""The checkpoint file: up to which store time log, queues and index are durable (`StoreCheckpoint.java`).

    Offset  Size  What (big-endian, signed, milliseconds; a file of 4096 bytes)
    0       8     store timestamp of the last flushed record of the commit log
    8       8     store timestamp of the last record whose consume-queue unit is flushed
    16      8     the same for the index
    24      8     5.x: physical offset the master has flushed
    32      8     5.x: physical offset that is confirmed
    4056    8     ours: "longpoll"
    4064    16    copy of the first two numbers; if it differs, RocketMQ wrote the file later and the rest is void
    4080    8     number of files of the consume queues
    4088    8     physical offset of a record that, with all before it, is durable in log and queues

`message_store` writes it, always after the bytes that it covers are durable.
"""

from __future__ import annotations

import struct
from typing import Final

from attrs import evolve, frozen

from longpoll_runtime import Files

CHECKPOINT_SIZE: Final = 4096
SLACK_MS: Final = 3000
"""Maximum disorder of store times: records are stamped before they are appended (`getMinTimestamp`)."""
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
    """Physical offset of a record that is durable with all before it; -1 if unknown."""
    queue_file_count: int = 0
    """Number of the queues' files at that time; if some are missing, so are their messages."""

    @property
    def safe_ms(self) -> int:
        """The store time up to which everything is durable in log and queues."""
        return max(0, min(self.physic_ms, self.logics_ms) - SLACK_MS)


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Decode the fields; a file that is too short counts as never written."""
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
    """Encode the whole file."""
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
    """Read the file; zeros if it does not exist."""
    return decode_checkpoint(files.read(path)) if files.exists(path) else Checkpoint()
