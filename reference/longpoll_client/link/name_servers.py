"""Chooses the first name server to ask: the one that answered last.

A silent one costs the time-out of a call, which each topic must not pay again.

Source: `NettyRemotingClient.getAndCreateNameserverChannel` (`namesrvAddrChoosed`).
"""

from __future__ import annotations

from longpoll_client.checks import Addresses
from longpoll_client.link.routes import split_addresses


class NameServers:
    """The name servers of one client; for any thread, each change is one step."""

    def __init__(self, name_server: Addresses) -> None:
        """One address or several; raises ConfigError when one is none, or there is none."""
        self._addresses = split_addresses(name_server)
        self._first = 0

    def in_turn(self) -> list[tuple[str, int]]:
        """Host and port of each, in the order in which they are to be asked."""
        first = self._first
        return [*self._addresses[first:], *self._addresses[:first]]

    def answered(self, address: tuple[str, int]) -> None:
        """It is to be asked first from now on."""
        self._first = self._addresses.index(address)
