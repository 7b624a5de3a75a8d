"""Up to which store time the log, the queues and the index are durable (`StoreCheckpoint.java`).

    Offset  Size  What (big-endian, signed, milliseconds; a file of 4096 bytes)
    0       8     store timestamp of the last flushed record of the commit log
    8       8     store timestamp of the last record whose consume-queue unit is flushed
    16      8     the same for the index
    24      8     5.x: physical offset the master has flushed
    32      8     5.x: physical offset that is confirmed

Leaves out when it is written: `message_store` does it, always after the bytes it speaks of are durable.
"""

from __future__ import annotations

import struct
from typing import Final

from attrs import frozen

from longpoll_runtime import Files

CHECKPOINT_SIZE: Final = 4096
SLACK_MS: Final = 3000
"""Records are stamped before they are appended, so the order of stamps may be this much off (`getMinTimestamp`)."""
_FIELDS: Final = struct.Struct(">qqqqq")


@frozen
class Checkpoint:
    """The file's fields; zeros where nothing was flushed yet."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0

    @property
    def safe_ms(self) -> int:
        """Everything stored up to here is durable in log and queues."""
        return max(0, min(self.physic_ms, self.logics_ms) - SLACK_MS)


def decode_checkpoint(content: bytes) -> Checkpoint:
    """The fields; a file that is too short counts as never written."""
    return Checkpoint(*_FIELDS.unpack_from(content)) if len(content) >= _FIELDS.size else Checkpoint()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    return _FIELDS.pack(
        checkpoint.physic_ms,
        checkpoint.logics_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirmed_offset,
    ).ljust(CHECKPOINT_SIZE, b"\0")


def load_checkpoint(files: Files, path: str) -> Checkpoint:
    """Read the file; zeros when it is not there."""
    return decode_checkpoint(files.read(path)) if files.exists(path) else Checkpoint()
