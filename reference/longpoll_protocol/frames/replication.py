"""What a slave and its master say to each other beside requests: how far one is, and the log from there on.

    slave to master    8 bytes       physical offset up to which the slave's log goes; again every 5 s
    master to slave    8 + 4 bytes   physical offset and size of the log's bytes that follow; size 0: nothing new

Integers are big-endian and signed. The first report says from where on the master sends; 0 says that the slave has
nothing. A transfer may end in the middle of a record. There is no greeting, no account and no checksum.

Leaves out sockets, and what the log's bytes are (`log_record`).

Source: `HAConnection.java`, `HAService.HAClient` 4.9.7; `DefaultHAConnection.java`, `DefaultHAClient.java` 5.x.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from msgspec import Struct as Data

from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames.frame import Buffer
from longpoll_protocol.sizes import KIB, MIB
from longpoll_spec.tables import with_table

_REPORT: Final = Struct(">q")
_HEAD: Final = Struct(">qi")
REPORT_SIZE: Final = _REPORT.size
HEAD_SIZE: Final = _HEAD.size
TRANSFER_SIZE_MAX: Final = 4 * MIB - HEAD_SIZE
"""Most bytes of the log in one transfer: a Java slave has a buffer of 4 MiB for it and its head."""
TRANSFER_SIZE: Final = 32 * KIB
"""Bytes of the log that a master sends in one transfer (`haTransferBatchSize`)."""


@with_table
class Transfer(Data, frozen=True, gc=False):
    """One piece of a master's log."""

    physical_offset: int
    content: memoryview
    """Empty when the master only says that it is there."""


def encode_report(physical_offset: int) -> bytes:
    """What a slave says: where its log ends."""
    return _REPORT.pack(physical_offset)


def encode_head(physical_offset: int, size: int) -> bytes:
    """What stands before `size` bytes of the log."""
    return _HEAD.pack(physical_offset, size)


class ReportReader:
    """Cuts what a slave sends into its reports. Invariant: `_rest` is shorter than a report."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, content: Buffer) -> int | None:
        """The newest report that is whole with these bytes; None when none is. Raises RemoteProtocolError."""
        joined = self._rest + bytes(content)
        stop = len(joined) - len(joined) % REPORT_SIZE
        self._rest = joined[stop:]
        if not stop:
            return None
        newest: int = _REPORT.unpack_from(joined, stop - REPORT_SIZE)[0]
        if newest < 0:
            raise RemoteProtocolError(f"a slave reports that its log ends at {newest}; an offset is at least 0")
        return newest


class TransferReader:
    """Cuts what a master sends into transfers. Invariant: `_gathered` is no longer than one transfer and one chunk."""

    __slots__ = ("_gathered",)

    def __init__(self) -> None:
        self._gathered = bytearray()

    @property
    def gathered_size(self) -> int:
        """Bytes that no transfer was made of yet."""
        return len(self._gathered)

    def receive(self, content: Buffer) -> None:
        """Take bytes over; `next_transfer` is to be called until it gives none."""
        self._gathered += content

    def next_transfer(self) -> Transfer | None:
        """The first transfer that is whole, with a copy of its bytes; None for none. Raises RemoteProtocolError."""
        if len(self._gathered) < HEAD_SIZE:
            return None
        physical_offset, size = _HEAD.unpack_from(self._gathered)
        if physical_offset < 0 or not 0 <= size <= TRANSFER_SIZE_MAX:
            raise RemoteProtocolError(
                f"a master sends {size} bytes of its log from {physical_offset}; from 0 to {TRANSFER_SIZE_MAX} bytes "
                "from an offset of at least 0 are allowed: is that address its port for slaves?"
            )
        stop = HEAD_SIZE + size
        if len(self._gathered) < stop:
            return None
        content = bytes(memoryview(self._gathered)[HEAD_SIZE:stop])
        del self._gathered[:stop]
        return Transfer(physical_offset, memoryview(content))
