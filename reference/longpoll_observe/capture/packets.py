"""Extracts TCP segments from packets: Ethernet (with VLANs), Linux cooked v1 and v2, loopback, raw IP; IPv4, IPv6.

The only module that needs dpkt. Files: see `capture_file`. Order of segments: see `tcp_stream`.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

from longpoll_observe.capture.capture_file import Packet

dpkt: Final[Any] = importlib.import_module("dpkt")
"""Untyped, because a metaclass creates the fields of its packets."""

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
"""What dpkt raises for a truncated or damaged packet."""


@frozen
class Segment:
    """One TCP segment; addresses have 4 or 16 bytes."""

    time_ns: int
    source: tuple[bytes, int]
    target: tuple[bytes, int]
    sequence: int
    """Sequence number of its first byte, 32 bits."""
    acknowledged: int
    flags: int
    window: int
    """Unscaled."""
    size: int
    """Bytes on the wire."""
    content: bytes
    """The captured bytes."""
    scale: int | None
    """In a SYN: the scale of later windows in bits; None if absent."""
    stamp: int | None
    """The sender's clock, 32 bits, usually in ms."""


def segment_of(packet: Packet) -> Segment | None:
    """Returns the packet's segment; None if there is none, or it is unreadable."""
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
    """Create a segment; `ip_size` is the length of the IP packet's content, None if the card should segment it."""
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
