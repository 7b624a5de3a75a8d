"""A relay between clients and a broker that can be told to fail, and the story of a group that lives through it.

A relay passes bytes on and changes them in one respect: where a name server names the broker's address, it says the
relay's, so every connection of a client goes through it. Leaves out two brokers.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal, Self

from attrs import define, field, frozen

from longpoll_broker.testing import client_scenarios as stories
from longpoll_client import ConsumerConfig, ConsumeStatus, Producer, PushConsumer, ReceivedMessage, StartAt
from longpoll_client.errors import ClientError
from longpoll_runtime.closeable import Closeable

Fault = Literal["reset", "slow", "black hole", "half-open", "unreachable", "trickle"]
FAULTS: Final[tuple[Fault, ...]] = ("reset", "slow", "black hole", "half-open")
"""Those of which a producer and a group of one broker are told; with two there is also `unreachable`."""
SLOW_S: Final = 0.05
"""How long each chunk of bytes takes while it is slow."""
TRICKLE_S: Final = 0.05
"""How long each byte from the server takes of a link that trickles."""
FAULT_S: Final = 2.0
BACK_S: Final = 10.0
"""Sends must be back this long after what makes them possible."""
PART: Final = 40
FULL_COUNT: Final = 6
"""With a backlog of 0 so many connections that nobody accepts fill it: the next one is neither taken nor refused."""


@define(eq=False)
class _Link:
    """One connection through the relay. Once it is dead its bytes go nowhere, and nobody is told."""

    ends: tuple[socket.socket, socket.socket]
    is_dead: bool = False
    is_trickling: bool = False


class Relay(Closeable):
    """Passes bytes between clients and one server. Invariant: `_links` changes under `_lock`."""

    # How each fault shows: new connections are closed at once (reset), or accepted and silent (black hole), or not even
    # accepted (unreachable), or good (half-open, slow, trickle); those that there are end (reset), stay and bring
    # nothing more (black hole, half-open, unreachable), or bring everything late (slow), answers for ever (trickle).

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.rewrites: dict[bytes, bytes] = {}
        self.fault: Fault | None = None
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._pause = threading.Event()
        self._is_accepting = threading.Event()
        self._is_accepting.set()
        self._filling: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def begin(self, fault: Fault) -> None:
        """Fail: links that there are end, or go on and bring nothing, or little; new ones fare alike, or are good."""
        with self._lock:
            links = list(self._links)
        if fault in {"half-open", "unreachable"}:
            for link in links:
                link.is_dead = True
        for link in links:
            link.is_trickling = link.is_trickling or fault == "trickle"
        if fault in {"half-open", "trickle"}:
            return
        self.fault = fault
        if fault == "unreachable":
            self._is_accepting.clear()
            self._fill()
        if fault == "reset":
            for link in links:
                _reset(link)

    def end(self) -> None:
        """Let what comes from now on pass again; what was lost stays lost, and its links are of no use."""
        with self._lock:
            links = list(self._links)
        if self.fault == "black hole":
            for link in links:
                link.is_dead = True
        self.fault = None
        self._is_accepting.set()
        for end in self._filling:
            end.close()
        self._filling.clear()

    def tell_server(self) -> None:
        """End the server's ends of dead links, as a server does in time by itself; clients are told nothing."""
        with self._lock:
            dead = [link for link in self._links if link.is_dead]
        for link in dead:
            _reset_end(link.ends[1])

    def close(self) -> None:
        """End everything."""
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

    def _fill(self) -> None:
        """Have connections wait that nobody accepts; the first one has the thread that accepts look up."""
        self._listener.listen(0)
        for _number in range(FULL_COUNT):
            end = socket.socket()
            end.setblocking(False)
            end.connect_ex(self.address)
            self._filling.append(end)

    def _accept(self) -> None:
        while True:
            try:
                peer, _address = self._listener.accept()
                if not self._is_accepting.is_set():
                    self._is_accepting.wait()
                    self._listener.listen()
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
                    self._pause.wait(SLOW_S)
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
    """End both connections, with a reset where something waits."""
    for end in link.ends:
        _reset_end(end)


def _reset_end(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class RelayedCluster(Closeable):
    """A broker and its name server, each behind a relay."""

    def __init__(self, broker: tuple[str, int], name_server: tuple[str, int]) -> None:
        self.broker = Relay(broker)
        self.names = Relay(name_server)
        there, here = ("{}:{}".format(*address).encode() for address in (broker, self.broker.address))
        if len(there) != len(here):
            raise ValueError(f"{there!r} and {here!r} differ in length: a frame's would not fit any more")
        self.names.rewrites = {there: here}

    @property
    def name_server(self) -> str:
        """Its relay's address."""
        return "{}:{}".format(*self.names.address)

    def close(self) -> None:
        """End both relays."""
        self.broker.close()
        self.names.close()

    def __enter__(self) -> Self:
        return self


@frozen
class FaultReport:
    """What came of messages that were sent before, during and after a fault."""

    acknowledged: int
    lost: frozenset[int]
    failed: int
    """Sends that failed; each was tried again."""
    again_sent: int
    """Messages that are stored twice, because a send whose answer was lost was tried again."""
    again_given: int
    """Messages that a listener got a second time from one place in the log: their offset was not stored by then."""
    out_of_order: int
    back_s: float
    """From the end of the fault to the first send that is acknowledged after it."""


@define(eq=False)
class _Seen:
    """What the listener got. Invariant: changes under `lock`."""

    lock: threading.Lock = field(factory=threading.Lock)
    places: dict[int, set[tuple[int, int]]] = field(factory=lambda: defaultdict(set))
    """Where each number is stored."""
    given: Counter[tuple[int, int]] = field(factory=Counter)
    last: dict[int, int] = field(factory=dict)
    out_of_order: int = 0

    def listen(self, messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        """Note them; one that was not given before comes after all that were."""
        with self.lock:
            for message in messages:
                place = (message.queue_id, message.queue_offset)
                if not self.given[place]:
                    self.out_of_order += message.queue_offset < self.last.get(message.queue_id, -1)
                    self.last[message.queue_id] = message.queue_offset
                self.given[place] += 1
                self.places[int(message.body)].add(place)
        return ConsumeStatus.SUCCESS


def live_through(cluster: RelayedCluster, fault: Fault, *, is_orderly: bool) -> FaultReport:
    """Send and listen, before, during and after a fault of the broker's relay."""
    seen = _Seen()
    failed: list[int] = []
    with stories.new_topic(cluster.name_server, 2) as topic, ExitStack() as stack:
        config = ConsumerConfig(f"group-{topic}", start_at=StartAt.FIRST, pull_timeout_s=4.0, hold_ms=2_000)
        producer = stack.enter_context(Producer(stories.RUNTIME, cluster.name_server))
        consumer = stack.enter_context(
            PushConsumer(stories.RUNTIME, cluster.name_server, config, seen.listen, is_orderly=is_orderly)
        )
        consumer.subscribe(topic)
        consumer.start()

        def send(number: int) -> None:
            def is_sent() -> bool:
                try:
                    producer.send(topic, b"%d" % number, timeout_s=1.0)
                except ClientError:
                    failed.append(number)
                    return False
                return True

            stories.wait_for(is_sent, f"message {number} is sent")

        for number in range(PART):
            send(number)
        ending = threading.Timer(FAULT_S, cluster.broker.end)
        cluster.broker.begin(fault)
        ended_s = time.monotonic() + (0.0 if fault == "half-open" else FAULT_S)
        ending.start()
        stack.callback(ending.join)
        back_s = None
        for number in range(PART, 3 * PART):
            send(number)
            now_s = time.monotonic()
            if back_s is None and now_s >= ended_s:
                back_s = now_s - ended_s
        while back_s is None:
            send(3 * PART)
            now_s = time.monotonic()
            back_s = now_s - ended_s if now_s >= ended_s else None
        sent = set(range(3 * PART))
        stories.wait_for(lambda: sent <= set(seen.places), "every acknowledged message is given")
    return FaultReport(
        acknowledged=len(sent),
        lost=frozenset(sent - set(seen.places)),
        failed=len(failed),
        again_sent=sum(len(places) - 1 for places in seen.places.values() if len(places) > 1),
        again_given=sum(count - 1 for count in seen.given.values()),
        out_of_order=seen.out_of_order if is_orderly else 0,
        back_s=back_s,
    )


def check(report: FaultReport) -> None:
    """Nothing lost, order kept, sends back in time; twice comes only what was sent again after a send that failed."""
    assert report.lost == frozenset()
    assert report.out_of_order == 0
    assert report.back_s < BACK_S
    assert report.again_given == 0
    assert report.again_sent <= 3 * report.failed
