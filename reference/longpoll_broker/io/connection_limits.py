"""Limits on what all connections use together, and the choice of connections to close.

One connection may use little, and sixty of them everything. So the bytes of unfinished frames and of unsent answers are
summed over all connections. Above the limit, the connection with most of them is closed. Connections are counted by
address, and in total.

Limits of one connection: see `io.channel.Limits`. Closing: see `io.transport`.
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
    """A limit that closes connections; the values are metric labels."""

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
        """Set a connection's bytes; returns the connections to close, with their bytes. Usually none."""
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
    """Number of connections by address; callable from any thread."""

    count_max: int
    address_count_max: int
    lock: Lock
    by_address: Counter[str] = field(factory=Counter, init=False)
    count: int = field(default=0, init=False)

    def add(self, host: str) -> ConnectionLimit | None:
        """Count a connection. If a limit forbids it, returns the limit and does not count."""
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
        """Remove a counted connection."""
        address = address_of(host)
        with self.lock:
            self.count -= 1
            self.by_address[address] -= 1
            if not self.by_address[address]:
                del self.by_address[address]


def address_of(host: str) -> str:
    """Returns the address to count by: for IPv6 the /64 network, because one machine may own all of it."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, 64), strict=False))
