"""Reads the TCP segments of a capture file: pcap in both byte orders and precisions, and pcapng.

Packets may be Ethernet (with VLANs), Linux cooked v1 and v2, loopback or raw IP, with IPv4 or IPv6. Files are read
sequentially, one packet at a time. Only this module needs dpkt.

Source: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from attrs import define, frozen

from longpoll_spec.errors import UserError

# pcap, in the byte order of its magic number:
#
# | offset | size | field of the file      | then, of each packet: offset | size | field           |
# |--------|------|------------------------|------------------------------|------|-----------------|
# | 0      | 4    | magic number           | 0                            | 4    | seconds         |
# | 4      | 12   | version, time zone     | 4                            | 4    | micro- or nanoseconds |
# | 16     | 4    | most bytes of a packet | 8                            | 4    | bytes captured  |
# | 20     | 4    | kind of link           | 12                           | 4    | bytes on the wire |
PCAP_HEAD_SIZE: Final = 24
PCAP_RECORD_SIZE: Final = 16
PCAP_MAGICS: Final = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}
"""Maps the magic number of a pcap file to the nanoseconds per unit of the file's timestamps."""
# A block in pcapng consists of its type, its whole length, the body, and the length again. All lengths are multiples of
# 4.
BLOCK_HEAD_SIZE: Final = 8
BLOCK_ENDS_SIZE: Final = 12
SECTION: Final = 0x0A0D0D0A
BYTE_ORDER: Final = 0x1A2B3C4D
INTERFACE, SIMPLE_PACKET, STATISTICS, PACKET = 1, 3, 5, 6
OPTION_RESOLUTION, OPTION_OFFSET = 9, 14
OPTION_DROPPED: Final = (5, 7)
"""The options isb_ifdrop and isb_osdrop: the numbers of packets that the interface or the system dropped."""
PACKET_SIZE_MAX: Final = 16 * 1024 * 1024
INTERFACES_MAX: Final = 10_000
LINK_MASK: Final = 0x0FFF_FFFF
"""Removes the upper bits of pcap's link type, which describe checksums."""


class CaptureError(UserError):
    """A file is not a capture or has no packet of the broker."""


@frozen
class Packet:
    """A captured packet of any protocol."""

    time_ns: int
    """Unix time in nanoseconds."""
    link: int
    """The link type (LINKTYPE_...)."""
    content: bytes
    """The captured part of the packet."""


@define
class CaptureFile:
    """A capture file, with the facts that were found while it was read."""

    path: Path
    dropped: int = 0
    """The number of dropped packets that the file reports."""
    damage: str = ""
    """Why the rest of the file could not be read; empty if the file was read completely."""
    position: int = 0
    """The number of bytes read."""

    def packets(self) -> Iterator[Packet]:
        """Iterate over the packets. Raises CaptureError if the file is not a capture or cannot be opened."""
        try:
            with self.path.open("rb") as file:
                yield from self._read(file)
        except OSError as error:
            raise CaptureError(
                f"cannot read {self.path}: {error.strerror}; name a file that tcpdump -w wrote"
            ) from None

    def _read(self, file: BinaryIO) -> Iterator[Packet]:
        head = file.read(4)
        magic = head.ljust(4, b"\0")
        if int.from_bytes(magic, "big") == SECTION:
            file.seek(0)
            yield from self._pcapng(file)
            return
        for order in "<>":
            (number,) = struct.unpack(f"{order}I", magic)
            if number in PCAP_MAGICS:
                yield from self._pcap(file, order, PCAP_MAGICS[number])
                return
        raise CaptureError(f"{self.path} is not a capture, neither pcap nor pcapng; record one with tcpdump -w")

    def _take(self, file: BinaryIO, size: int) -> bytes:
        """Read the next bytes. If the file ends early, return fewer bytes and set `damage`."""
        content = file.read(size)
        self.position += len(content)
        if 0 < len(content) < size:
            self.damage = f"it ends in the middle of a packet, at byte {self.position}"
        return content

    def _pcap(self, file: BinaryIO, order: str, unit_ns: int) -> Iterator[Packet]:
        head = file.read(PCAP_HEAD_SIZE - 4)
        self.position = PCAP_HEAD_SIZE
        if len(head) < PCAP_HEAD_SIZE - 4:
            raise CaptureError(
                f"{self.path} is not a capture, because its header is incomplete; record one with tcpdump -w"
            )
        link = struct.unpack_from(f"{order}I", head, 16)[0] & LINK_MASK
        record = struct.Struct(f"{order}4I")
        while len(header := self._take(file, PCAP_RECORD_SIZE)) == PCAP_RECORD_SIZE:
            seconds, fraction, size, _wire_size = record.unpack(header)
            if size > PACKET_SIZE_MAX:
                self.damage = f"a packet before byte {self.position} claims {size} bytes"
                return
            content = self._take(file, size)
            if len(content) < size:
                self.damage = self.damage or f"it ends in the middle of a packet, at byte {self.position}"
                return
            yield Packet(seconds * 1_000_000_000 + fraction * unit_ns, link, content)

    def _pcapng(self, file: BinaryIO) -> Iterator[Packet]:
        order = "<"
        interfaces: list[Interface] = []
        while len(head := self._take(file, BLOCK_HEAD_SIZE)) == BLOCK_HEAD_SIZE:
            if head[:4] == SECTION.to_bytes(4, "big"):
                (mark,) = struct.unpack("<I", file.read(4).ljust(4, b"\0"))
                file.seek(-4, 1)
                order = "<" if mark == BYTE_ORDER else ">"
                interfaces = []
            kind, size = struct.unpack(f"{order}2I", head)
            if not BLOCK_ENDS_SIZE <= size <= PACKET_SIZE_MAX or size % 4:
                self.damage = f"a block before byte {self.position} claims {size} bytes"
                return
            body = self._take(file, size - BLOCK_HEAD_SIZE)
            if len(body) < size - BLOCK_HEAD_SIZE:
                self.damage = self.damage or f"it ends in the middle of a block, at byte {self.position}"
                return
            try:
                packet = self._block(kind, body[:-4], order, interfaces)
            except (struct.error, IndexError):
                self.damage = f"a block before byte {self.position} cannot be read"
                return
            if packet is not None:
                yield packet

    def _block(self, kind: int, body: bytes, order: str, interfaces: list[Interface]) -> Packet | None:
        """Return the packet in a block, if any. Raises struct.error or IndexError if the block is damaged."""
        if kind == INTERFACE and len(interfaces) < INTERFACES_MAX:
            interfaces.append(Interface.read(body, order))
        elif kind == STATISTICS:
            options = options_of(body, 12, order)
            self.dropped += sum(int.from_bytes(options.get(code, b""), _name(order)) for code in OPTION_DROPPED)
        elif kind == SIMPLE_PACKET:
            # A packet without a timestamp can only be counted.
            self.dropped += 1
        elif kind == PACKET:
            number, high, low, size, _wire_size = struct.unpack_from(f"{order}5I", body)
            interface = interfaces[number]
            return Packet(interface.time_ns(high << 32 | low), interface.link, body[20 : 20 + size])
        return None


@frozen
class Interface:
    """The data of a network interface in a pcapng file."""

    link: int
    units_a_second: int
    offset_s: int

    @classmethod
    def read(cls, body: bytes, order: str) -> Interface:
        """Parse the body of an interface's block. Raises struct.error."""
        (link,) = struct.unpack_from(f"{order}H", body)
        options = options_of(body, 8, order)
        (resolution,) = options.get(OPTION_RESOLUTION, b"\6")[:1]
        power = resolution & 0x7F
        units = 2 ** min(power, 64) if resolution & 0x80 else 10 ** min(power, 18)
        return cls(link, units, int.from_bytes(options.get(OPTION_OFFSET, b""), _name(order), signed=True))

    def time_ns(self, units: int) -> int:
        """Convert a time in the interface's units to Unix time."""
        return self.offset_s * 1_000_000_000 + units * 1_000_000_000 // self.units_a_second


def options_of(body: bytes, start: int, order: str) -> dict[int, bytes]:
    """Returns the options of a block, with the last value of each code. Raises struct.error."""
    options: dict[int, bytes] = {}
    while start + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}2H", body, start)
        if code == 0:
            break
        options[code] = body[start + 4 : start + 4 + size]
        start += 4 + (size + 3) // 4 * 4
    return options


def _name(order: str) -> Literal["little", "big"]:
    return "little" if order == "<" else "big"


dpkt: Final[Any] = importlib.import_module("dpkt")
"""The dpkt module as `Any`, because a metaclass creates the fields of its packets and type checkers cannot see them."""

FIN, SYN, RST, ACK = 1, 2, 4, 16
LINKS: Final[dict[int, Callable[[bytes], object]]] = {
    1: dpkt.ethernet.Ethernet,
    113: dpkt.sll.SLL,
    276: dpkt.sll2.SLL2,
}
LOOPBACKS: Final = frozenset({0, 108})
"""Link types with four bytes before IP, in the byte order of the capturing machine."""
LOOPBACK_SIZE: Final = 4
RAW_LINKS: Final = frozenset({12, 14, 101, 228, 229})
"""Link types whose packets begin with IP."""
IP_VERSION_6: Final = 6
FRAGMENT: Final = 44
SCALE_MAX: Final = 14
STAMPS_SIZE: Final = 8
UNREADABLE: Final = (dpkt.Error, struct.error, ValueError, IndexError, KeyError, AttributeError, TypeError)
"""The exceptions of dpkt for a truncated or damaged packet."""


@frozen
class Segment:
    """One TCP segment. Its addresses have 4 bytes (IPv4) or 16 bytes (IPv6)."""

    time_ns: int
    source: tuple[bytes, int]
    target: tuple[bytes, int]
    sequence: int
    """The sequence number of the first byte, 32 bits."""
    acknowledged: int
    flags: int
    window: int
    """The receive window as sent, before the window scale is applied."""
    size: int
    """The number of content bytes that were sent. The capture may have fewer."""
    content: bytes
    """The captured bytes of the content."""
    scale: int | None
    """In a SYN, the scale of later windows in bits; None if absent."""
    stamp: int | None
    """The sender's clock (TCP timestamp option), 32 bits, usually in ms."""


def segment_of(packet: Packet) -> Segment | None:
    """Returns the TCP segment in a packet; None if the packet has no readable segment."""
    try:
        ip = _ip(packet)
        if isinstance(ip, dpkt.ip.IP) and not (ip.offset or ip.mf):
            size = ip.len - ip.hl * 4 if ip.len else None
        elif isinstance(ip, dpkt.ip6.IP6) and FRAGMENT not in ip.extension_hdrs:
            size = ip.plen - sum(each.length for each in ip.all_extension_headers) if ip.plen else None
        else:
            return None
        return _segment(packet.time_ns, ip.src, ip.dst, ip.data, size) if isinstance(ip.data, dpkt.tcp.TCP) else None
    except UNREADABLE:
        return None


def _ip(packet: Packet) -> Any:
    content = packet.content[LOOPBACK_SIZE:] if packet.link in LOOPBACKS else packet.content
    if packet.link in RAW_LINKS or packet.link in LOOPBACKS:
        return (dpkt.ip6.IP6 if content[0] >> 4 == IP_VERSION_6 else dpkt.ip.IP)(content)
    if packet.link not in LINKS:
        return None
    return getattr(LINKS[packet.link](content), "data", None)


def _segment(time_ns: int, source: bytes, target: bytes, tcp: Any, ip_size: int | None) -> Segment:
    """Create a segment. `ip_size` is the length of the IP packet's content; None if the network card segments it."""
    size = max(len(tcp.data) if ip_size is None else ip_size - tcp.off * 4, 0)
    options = dict(dpkt.tcp.parse_opts(tcp.opts))
    scale, stamps = options.get(dpkt.tcp.TCP_OPT_WSCALE), options.get(dpkt.tcp.TCP_OPT_TIMESTAMP, b"")
    return Segment(
        time_ns=time_ns,
        source=(source, tcp.sport),
        target=(target, tcp.dport),
        sequence=tcp.seq,
        acknowledged=tcp.ack,
        flags=tcp.flags,
        window=tcp.win,
        size=size,
        content=bytes(tcp.data)[:size],
        scale=min(scale[0], SCALE_MAX) if scale else None,
        stamp=int.from_bytes(stamps[:4], "big") if len(stamps) == STAMPS_SIZE else None,
    )
