"""The replication protocol between slave and master: reports of progress, and transfers of the log.

    slave to master    8 bytes       physical end of the slave's log; repeated every 5 s
    master to slave    8 + 4 bytes   physical offset and size of the log's bytes that follow; size 0: nothing new

Integers are big-endian and signed. The first report gives the offset from which the master sends; 0 means an empty
slave. A transfer may end inside a record. The protocol has no handshake, accounts or checksums.

Source: `HAConnection.java`, `HAService.HAClient` 4.9.7; `DefaultHAConnection.java`, `DefaultHAClient.java` 5.x.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from msgspec import Struct as Data

from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import Buffer
from longpoll_protocol.sizes import KIB, MIB
from longpoll_spec.tables import with_table

_REPORT: Final = Struct(">q")
_HEAD: Final = Struct(">qi")
REPORT_SIZE: Final = _REPORT.size
HEAD_SIZE: Final = _HEAD.size
TRANSFER_SIZE_MAX: Final = 4 * MIB - HEAD_SIZE
"""Maximum bytes of the log in one transfer: a Java slave has a buffer of 4 MiB for it and its head."""
TRANSFER_SIZE: Final = 32 * KIB
"""Default bytes of the log in one transfer (`haTransferBatchSize`)."""


@with_table
class Transfer(Data, frozen=True, gc=False):
    """One transfer of a master's log."""

    physical_offset: int
    content: memoryview
    """Empty in a heartbeat."""


def encode_report(physical_offset: int) -> bytes:
    """Encode a slave's report: its log's end."""
    return _REPORT.pack(physical_offset)


def encode_head(physical_offset: int, size: int) -> bytes:
    """Encode the head of `size` bytes of the log."""
    return _HEAD.pack(physical_offset, size)


class ReportReader:
    """Splits a slave's data into reports. Invariant: `_rest` is shorter than a report."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, content: Buffer) -> int | None:
        """Returns the newest complete report, or None. Raises RemoteProtocolError."""
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
    """Splits a master's data into transfers. Invariant: `_gathered` is at most one transfer and one chunk."""

    __slots__ = ("_gathered",)

    def __init__(self) -> None:
        self._gathered = bytearray()

    @property
    def gathered_size(self) -> int:
        """Bytes not yet returned as transfers."""
        return len(self._gathered)

    def receive(self, content: Buffer) -> None:
        """Add bytes; call `next_transfer` until it returns None."""
        self._gathered += content

    def next_transfer(self) -> Transfer | None:
        """Returns the first complete transfer with a copy of its bytes, or None. Raises RemoteProtocolError."""
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
