"""Packet captures for tests: segments of a connection on any link type, and capture files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs
from attrs import define, field, frozen

CLIENT: Final = (b"\x7f\0\0\1", 40_000)
BROKER: Final = (b"\x7f\0\0\1", 10_911)
BROKER_NAME: Final = "127.0.0.1:10911"
BEGUN_NS: Final = 1_700_000_000_000_000_000
MS: Final = 1_000_000
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
SCALE: Final = 7
WINDOW: Final = 502
"""Scaled, 64 KiB: as Linux has it at first."""


@frozen
class Sent:
    """One TCP segment."""

    time_ns: int
    is_of_client: bool
    sequence: int
    acknowledged: int
    flags: int
    content: bytes
    stamp: int | None
    window: int = WINDOW

    def tcp(self) -> bytes:
        options = (
            b""
            if self.stamp is None
            else struct.pack(">2xBBII", 8, 10, self.stamp & 0xFFFF_FFFF, 1).replace(b"\0\0", b"\1\1", 1)
        )
        if self.flags & SYN:
            options += bytes((1, 3, 3, SCALE))
        source, target = (CLIENT, BROKER) if self.is_of_client else (BROKER, CLIENT)
        offset = (20 + len(options)) // 4
        return (
            struct.pack(
                ">HHIIBBHHH", source[1], target[1], self.sequence & 0xFFFF_FFFF, self.acknowledged & 0xFFFF_FFFF,
                offset << 4, self.flags, self.window, 0, 0,
            )
            + options
            + self.content
        )  # fmt: skip

    def ip(self, version: int = 4) -> bytes:
        tcp = self.tcp()
        source, target = (CLIENT[0], BROKER[0]) if self.is_of_client else (BROKER[0], CLIENT[0])
        if version == 4:
            return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + target + tcp
        mapped = [b"\0" * 10 + b"\xff\xff" + each for each in (source, target)]
        return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + b"".join(mapped) + tcp


@define
class Wire:
    """A connection that a test speaks on; every piece takes 1 ms, and is acknowledged 1 ms later.

    Invariant: `sent` are the segments in the order of their moments.
    """

    now_ns: int = BEGUN_NS
    stamped: bool = True
    sent: list[Sent] = field(factory=list)
    positions: dict[bool, int] = field(factory=lambda: {True: 0xFFFF_FF00, False: 77})
    """The next sequence number, by whether it is the client's: the client's passes 2**32."""

    def opens(self) -> None:
        self._put(True, SYN)
        self.positions[True] += 1
        self._put(False, SYN | ACK)
        self.positions[False] += 1
        self._put(True, ACK)

    def says(self, content: bytes, *, is_of_client: bool, piece: int = 1_400) -> None:
        for start in range(0, len(content), piece):
            part = content[start : start + piece]
            self._put(is_of_client, PSH | ACK, part)
            self.positions[is_of_client] += len(part)
            self._put(not is_of_client, ACK)

    def closes(self) -> None:
        for is_of_client in (True, False):
            self._put(is_of_client, FIN | ACK)
            self.positions[is_of_client] += 1
        self._put(True, ACK)

    def waits(self, ms: int) -> None:
        self.now_ns += ms * MS

    def _put(self, is_of_client: bool, flags: int, content: bytes = b"") -> None:
        self.now_ns += MS
        stamp = self.now_ns // MS + 5 * is_of_client if self.stamped else None
        own, other = self.positions[is_of_client], self.positions[not is_of_client]
        window = WINDOW if not flags & SYN else 65_535
        self.sent.append(Sent(self.now_ns, is_of_client, own, other, flags, content, stamp, window))


LINKS: Final[dict[str, tuple[int, Callable[[Sent], bytes]]]] = {
    "Ethernet": (1, lambda sent: b"\0" * 12 + b"\x08\0" + sent.ip()),
    "Ethernet with a VLAN": (1, lambda sent: b"\0" * 12 + b"\x81\0\0\7\x08\0" + sent.ip()),
    "Ethernet, padded": (1, lambda sent: (b"\0" * 12 + b"\x08\0" + sent.ip()).ljust(90, b"\0")),
    "cooked": (113, lambda sent: b"\0\0\3\4\0\6" + b"\0" * 8 + b"\x08\0" + sent.ip()),
    "cooked, second version": (276, lambda sent: b"\x08\0\0\0\0\0\0\1\3\4\0\6" + b"\0" * 8 + sent.ip()),
    "NULL": (0, lambda sent: b"\2\0\0\0" + sent.ip()),
    "loopback": (108, lambda sent: b"\0\0\0\2" + sent.ip()),
    "raw": (101, lambda sent: sent.ip()),
    "raw, IPv6": (101, lambda sent: sent.ip(6)),
    "Ethernet, IPv6": (1, lambda sent: b"\0" * 12 + b"\x86\xdd" + sent.ip(6)),
}


def pcap(
    sent: Sequence[Sent], link: str = "raw", *, order: str = "<", nanoseconds: bool = True, snap: int = 65_535
) -> bytes:
    """A pcap file of the segments, as they stand."""
    number, framed = LINKS[link]
    magic, unit = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1_000)
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snap, number)]
    for each in sent:
        packet = framed(each)
        seconds, rest = divmod(each.time_ns, 1_000_000_000)
        parts += [struct.pack(f"{order}4I", seconds, rest // unit, len(packet[:snap]), len(packet)), packet[:snap]]
    return b"".join(parts)


def pcapng(sent: Sequence[Sent], link: str = "raw", *, order: str = "<", dropped: int = 0) -> bytes:
    """A pcapng file of the segments, whose interface counts ns; with what it says was dropped."""
    number, framed = LINKS[link]

    def block(kind: int, body: bytes) -> bytes:
        body = body.ljust(-(-len(body) // 4) * 4, b"\0")
        size = struct.pack(f"{order}I", 12 + len(body))
        return struct.pack(f"{order}I", kind) + size + body + size

    parts = [
        block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack(f"{order}HHIHHB3xHH", number, 0, 0, 9, 1, 9, 0, 0)),
    ]
    for each in sent:
        packet = framed(each)
        head = struct.pack(f"{order}5I", 0, each.time_ns >> 32, each.time_ns & 0xFFFF_FFFF, len(packet), len(packet))
        parts.append(block(6, head + packet))
    parts.append(block(5, struct.pack(f"{order}IIIHHQHH", 0, 0, 0, 5, 8, dropped, 0, 0)))
    return b"".join(parts)


def written(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / "port.pcap"
    file.write_bytes(content)
    return file


def later(sent: Sent, by_ns: int) -> Sent:
    return attrs.evolve(sent, time_ns=sent.time_ns + by_ns)
