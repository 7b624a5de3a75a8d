"""What all connections of a broker cost together, and whom to close when that is too much.

One connection may cost little of what the broker has, and sixty of them all of it. So the bytes of unfinished frames
and of unsent answers are counted over all connections, and over a limit the connection with most of them is closed:
those that have little keep what they have. Connections are counted by address, and in all.

Leaves out what one connection may cost (`io.channel.Limits`), and closing (`io.transport`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import StrEnum
from ipaddress import IPv6Address, IPv6Network
from typing import Generic, TypeVar

from attrs import define, field

from longpoll_runtime import Lock

Peer = TypeVar("Peer", bound=Hashable)


class ConnectionLimit(StrEnum):
    """A limit that costs a connection; the values are labels of a metric."""

    UNFINISHED_BYTES = "unfinishedBytesMax"
    UNSENT_BYTES = "unsentBytesMax"
    OUTPUT_BYTES = "outputBytesMax"
    FRAME_TIME = "frameTimeMax"
    IDLE_TIME = "serverChannelMaxIdleTimeSeconds"
    CONNECTIONS = "connectionCountMax"
    ADDRESS_CONNECTIONS = "addressConnectionCountMax"


@define(slots=True, eq=False)
class BytesByPeer(Generic[Peer]):
    """Bytes of one kind by connection. Invariant: `total` is the sum of `by_peer`, whose values are positive."""

    bytes_max: int
    lock: Lock
    total: int = field(default=0, init=False)
    by_peer: dict[Peer, int] = field(factory=dict, init=False)

    def note(self, peer: Peer, size: int) -> list[tuple[Peer, int]]:
        """Note what a connection has now; those to be closed with what they had, counted no more. Mostly none."""
        with self.lock:
            self._set(peer, size)
            closed: list[tuple[Peer, int]] = []
            while self.total > self.bytes_max:
                most = max(self.by_peer, key=self.by_peer.__getitem__)
                closed.append((most, self.by_peer[most]))
                self._set(most, 0)
            return closed

    def _set(self, peer: Peer, size: int) -> None:
        self.total += size - self.by_peer.pop(peer, 0)
        if size:
            self.by_peer[peer] = size


@define(slots=True, eq=False)
class Connections:
    """How many connections there are, by address; callable from any thread."""

    count_max: int
    address_count_max: int
    lock: Lock
    by_address: Counter[str] = field(factory=Counter, init=False)
    count: int = field(default=0, init=False)

    def add(self, host: str) -> ConnectionLimit | None:
        """Count a connection; the limit that forbids it, and then it is not counted."""
        address = address_of(host)
        with self.lock:
            if self.count >= self.count_max:
                return ConnectionLimit.CONNECTIONS
            if self.by_address[address] >= self.address_count_max:
                return ConnectionLimit.ADDRESS_CONNECTIONS
            self.count += 1
            self.by_address[address] += 1
            return None

    def remove(self, host: str) -> None:
        """A counted connection is closed."""
        address = address_of(host)
        with self.lock:
            self.count -= 1
            self.by_address[address] -= 1
            if not self.by_address[address]:
                del self.by_address[address]


def address_of(host: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits, all of which one machine may have."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, 64), strict=False))
