"""A relay between clients and a broker that fails on request.

The relay passes bytes on, except that it writes its own address over the broker's address in a name server's answers
(`rewrites`), so that a client opens all connections through the relay.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Final, Literal

from attrs import define

from longpoll_runtime.services import Closeable

Fault = Literal["reset", "slow", "black hole", "half-open", "trickle"]
TRICKLE_S: Final = 0.05
"""The delay of each byte from the server on a trickling link, in seconds."""


@define(eq=False)
class _Link:
    """One connection through the relay. The bytes of a dead link are dropped silently."""

    ends: tuple[socket.socket, socket.socket]
    is_dead: bool = False
    is_trickling: bool = False


class Relay(Closeable):
    """Passes bytes between clients and one server. Invariant: `_links` changes under `_lock`."""

    # New connections are closed at once (reset), accepted but silent (black hole), or good (half-open, slow, trickle).
    # Existing connections are closed (reset), go silent (black hole, half-open), or get slow (slow, trickle).

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.rewrites: dict[bytes, bytes] = {}
        self.fault: Fault | None = None
        self.slow_s: float = 0.05  # the delay of each chunk of bytes while the relay is slow
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._pause = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def begin(self, fault: Fault) -> None:
        """Start a fault: existing links close, go silent or get slow. Some kinds of fault affect new links too."""
        with self._lock:
            links = list(self._links)
        if fault == "half-open":
            for link in links:
                link.is_dead = True
        for link in links:
            link.is_trickling = link.is_trickling or fault == "trickle"
        if fault in {"half-open", "trickle"}:
            return
        self.fault = fault
        if fault == "reset":
            for link in links:
                _reset(link)

    def end(self) -> None:
        """End a fault and pass new data on; lost data stays lost, and links that lost data are unusable."""
        with self._lock:
            links = list(self._links)
        if self.fault == "black hole":
            for link in links:
                link.is_dead = True
        self.fault = None

    def tell_server(self) -> None:
        """Close the server's ends of dead links, as a server does after a while; clients are not notified."""
        with self._lock:
            dead = [link for link in self._links if link.is_dead]
        for link in dead:
            _reset_end(link.ends[1])

    def close(self) -> None:
        """Close the listener and every connection through the relay."""
        self.end()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            _reset(link)
        for thread in self._threads:
            thread.join(5.0)

    def _accept(self) -> None:
        while True:
            try:
                peer, _address = self._listener.accept()
            except OSError:
                return
            if self.fault == "reset":
                peer.close()
                continue
            try:
                server = socket.create_connection(self.target, 5.0)
            except OSError:
                peer.close()
                continue
            server.settimeout(None)
            link = _Link((peer, server))
            with self._lock:
                self._links.append(link)
            for source, sink in (link.ends, link.ends[::-1]):
                thread = threading.Thread(target=self._pump, args=(link, source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if link.is_dead or self.fault == "black hole":
                    continue
                if self.fault == "slow":
                    self._pause.wait(self.slow_s)
                for before, after in self.rewrites.items():
                    data = data.replace(before, after)
                if link.is_trickling and sink is link.ends[0]:
                    self._trickle(sink, data)
                else:
                    sink.sendall(data)
        if not link.is_dead:
            _reset(link)

    def _trickle(self, sink: socket.socket, data: bytes) -> None:
        for at in range(len(data)):
            self._pause.wait(TRICKLE_S)
            sink.sendall(data[at : at + 1])


def _reset(link: _Link) -> None:
    """Close both connections, with a reset if data is waiting."""
    for end in link.ends:
        _reset_end(end)


def _reset_end(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
