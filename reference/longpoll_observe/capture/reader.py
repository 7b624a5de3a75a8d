"""Reads captures of brokers' ports into a history: the proxy's events, with one source per broker.

Files are read sequentially. Memory holds only open connections and waiting bytes. A source begins with the first packet
of the captures and ends with the last packet. `capture_file` reads the files, and `conversation` follows the
connections.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from attrs import define, field

from longpoll_observe.capture.capture_file import SYN, CaptureError, CaptureFile, Packet, Segment, segment_of
from longpoll_observe.capture.conversation import Agreement, Conversation
from longpoll_observe.events import Places, Subscriptions
from longpoll_observe.observer import UNCERTAINTY_NS_MIN, UNCERTAINTY_NS_UNMEASURED, name_of
from longpoll_observe.tap import ConnectionTap, TapTotals
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime import Address, Runtime
from longpoll_spec.tables import with_table

OPEN_MAX: Final = 50_000
"""The maximum number of connections that are followed at once. If there are more, the connection that was silent for
longest counts as cut."""
CLOSED_MAX: Final = 10_000
"""The number of closed connections that are remembered, so that their last packets do not start new connections."""
ROUND_TRIPS_MAX: Final = 1_000
WAIT_S: Final = 600.0
"""How many seconds a write to the disk may take. The limit is high, because only the thread that reads the captures
waits for the write."""
OVERLAP_NS: Final = 1_000_000_000
SAID_EVERY: Final = 4096
"""The number of packets between two progress reports."""

Key = tuple[tuple[bytes, int], tuple[bytes, int]]


@with_table
class CaptureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what was read from captures, and of what is missing in them."""

    packets: int
    """The number of packets to or from the brokers."""
    connections: int
    partly_seen: int
    """The number of connections that are older than the capture."""
    gaps: int
    """The number of gaps in the captured bytes."""
    dropped: int
    """The number of dropped packets that the files report."""
    requests: int
    answers: int
    clock: str
    """`monotonic` if the clocks of all senders agree with the capture's clock, else `unix`."""
    damage: list[str] = []
    """The files that could not be read completely, with reasons."""
    trouble: str = ""
    """A sentence about what the history lacks; empty if the history is complete."""


@define(slots=True)
class Broker:
    """A broker whose packets are selected."""

    name: str
    recorder: HistoryRecorder
    subscriptions: Subscriptions = field(factory=Subscriptions.none)
    places: Places = field(factory=Places)
    totals: TapTotals = field(factory=TapTotals)
    round_trips: list[int] = field(factory=list)

    @property
    def way_ns(self) -> int:
        """The uncertainty of timestamps relative to the broker's kernel, computed as in the proxy."""
        if not self.round_trips:
            return UNCERTAINTY_NS_UNMEASURED
        return max(2 * int(median(self.round_trips)), UNCERTAINTY_NS_MIN)


def read_captures(
    runtime: Runtime,
    files: Sequence[Path],
    *,
    brokers: Sequence[Address],
    record_directory: str,
    say: Callable[[int, int], None] = lambda _done, _whole: None,
) -> CaptureReport:
    """Read captures into a new history.

    Args:
        runtime: Files and threads for the recorder.
        files: Captures of consecutive periods, in any order.
        brokers: Addresses of brokers as in the packets, in digits.
        record_directory: Directory of the history; written once a broker's packet is found.
        say: Called with the number of bytes read so far, and the number of all bytes.

    Raises:
        CaptureError: a file is not a capture, none has a packet of a broker, or their periods overlap.
        RecordError: the directory cannot be written.
    """
    endpoints = {(_digits(host), port): name_of((host, port)) for host, port in brokers}
    captures = _in_order(files)
    with ExitStack() as at_end:
        reading = _Reading(runtime, endpoints, record_directory, at_end)
        whole, before = sum(_size(each.path) for each in captures), 0
        for capture in captures:
            for count, packet in enumerate(_following(capture, reading)):
                reading.take(packet)
                if count % SAID_EVERY == 0:
                    say(before + capture.position, whole)
            before += _size(capture.path)
            reading.end_of(capture)
        if not reading.packets:
            raise CaptureError(
                f"no packet to or from {', '.join(endpoints.values())} in {', '.join(str(each) for each in files)}; "
                f"write the broker's address as in the capture{reading.seen()}"
            )
        return reading.finish()


def _following(capture: CaptureFile, reading: _Reading) -> Iterator[Packet]:
    """Iterate over the packets of a file. Raises CaptureError if the file begins before the previous file ends."""
    ended_ns = reading.last_ns
    for packet in capture.packets():
        if packet.time_ns < ended_ns - OVERLAP_NS and reading.is_next_file:
            raise CaptureError(
                f"{capture.path} overlaps the capture before it; name captures of one machine in their order"
            )
        reading.is_next_file = False
        yield packet


def _digits(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        raise CaptureError(
            f"{host!r} is not an IP address; write an IP address, because packets contain no host names"
        ) from None


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _in_order(files: Sequence[Path]) -> list[CaptureFile]:
    """Returns the files in the order of their first packets. Raises CaptureError."""
    begins = [next((packet.time_ns for packet in CaptureFile(path).packets()), 0) for path in files]
    order = sorted(range(len(files)), key=begins.__getitem__)
    return [CaptureFile(files[number]) for number in order]


class _Reading:
    """State while captures are read.

    Invariants: `_open` are the open conversations, beginning with the one that was silent for longest; `_closed` are
    the conversations that ended last. `last_ns` is the time of the latest packet of any kind.
    """

    def __init__(
        self, runtime: Runtime, endpoints: dict[tuple[bytes, int], str], directory: str, at_end: ExitStack
    ) -> None:
        self._runtime = runtime
        self._endpoints = endpoints
        self._directory = directory
        self._at_end = at_end
        self._brokers: dict[tuple[bytes, int], Broker] = {}
        self._open: OrderedDict[Key, tuple[Broker, Conversation]] = OrderedDict()
        self._closed: OrderedDict[Key, None] = OrderedDict()
        self._agreement = Agreement()
        self._others: dict[str, int] = {}
        self.last_ns = self._first_ns = self._clock_ns = -1
        self.is_next_file = False
        self.packets = self._connections = self._partly_seen = self._gaps = self._dropped = 0
        self._damage: list[str] = []

    def take(self, packet: Packet) -> None:
        if self._first_ns < 0:
            self._first_ns = packet.time_ns
        if packet.time_ns < self.last_ns - OVERLAP_NS:
            self._agreement.is_steady = False
        self.last_ns = self._clock_ns = packet.time_ns
        segment = segment_of(packet)
        if segment is None:
            return
        for is_of_client, here, there in (
            (True, segment.source, segment.target),
            (False, segment.target, segment.source),
        ):
            if there in self._endpoints:
                self.packets += 1
                self._take(segment, (here, there), is_of_client=is_of_client)
                return
        if len(self._others) < CLOSED_MAX:
            for host, port in (segment.source, segment.target):
                name = name_of((str(ipaddress.ip_address(host)), port))
                self._others[name] = self._others.get(name, 0) + 1

    def seen(self) -> str:
        """Returns a clause for an error message that lists the most frequent addresses in the captures."""
        most = sorted(self._others, key=self._others.__getitem__, reverse=True)[:3]
        return f"; most packets are of {', '.join(most)}" if most else ""

    def end_of(self, capture: CaptureFile) -> None:
        """Finish a file, and record the dropped packets that the file reports as losses."""
        self.is_next_file = True
        self._dropped += capture.dropped
        if capture.damage:
            self._damage.append(f"{capture.path}: {capture.damage}")
        for broker in self._brokers.values():
            if capture.dropped:
                broker.recorder.lose(capture.dropped, self._first_ns, self.last_ns)
            if capture.damage:
                broker.recorder.lose(1, self.last_ns, self.last_ns)

    def finish(self) -> CaptureReport:
        """Cut open connections and end the history; raises RecordError if the history is incomplete."""
        for key in list(self._open):
            self._cut(key)
        self._at_end.close()
        for broker in self._brokers.values():
            broker.recorder.measured(broker.way_ns + self._agreement.worst_ns, self._agreement.name)
        return CaptureReport(
            packets=self.packets,
            connections=self._connections,
            partly_seen=self._partly_seen,
            gaps=self._gaps,
            dropped=self._dropped,
            requests=sum(broker.totals.requests for broker in self._brokers.values()),
            answers=sum(broker.totals.answers for broker in self._brokers.values()),
            clock=self._agreement.name,
            damage=self._damage,
            trouble="; ".join(each.recorder.trouble for each in self._brokers.values() if each.recorder.trouble),
        )

    def _take(self, segment: Segment, key: Key, *, is_of_client: bool) -> None:
        found = self._open.get(key)
        begins = is_of_client and bool(segment.flags & SYN)
        if found is not None and begins and found[1].is_other(segment):
            self._cut(key)
            found = None
        if found is None:
            if key in self._closed and not begins:
                return
            found = self._begin(segment, key, is_of_client=is_of_client)
        self._open.move_to_end(key)
        broker, conversation = found
        conversation.saw(segment, is_of_client=is_of_client)
        if conversation.round_trip_ns is not None and len(broker.round_trips) < ROUND_TRIPS_MAX:
            broker.round_trips.append(conversation.round_trip_ns)
            conversation.round_trip_ns = None
        if conversation.is_over:
            self._forget(key)

    def _begin(self, segment: Segment, key: Key, *, is_of_client: bool) -> tuple[Broker, Conversation]:
        if len(self._open) >= OPEN_MAX:
            silent = next(iter(self._open))
            self._open[silent][0].recorder.lose(1, self.last_ns, self.last_ns)
            self._cut(silent)
        broker = self._broker(key[1])
        self._connections += 1
        tap = ConnectionTap(broker.recorder, broker.subscriptions, str(self._connections), broker.totals, broker.places)
        made = Conversation(tap, segment, is_first_of_client=is_of_client, agreement=self._agreement)
        self._partly_seen += not made.is_whole
        self._open[key] = broker, made
        return self._open[key]

    def _broker(self, endpoint: tuple[bytes, int]) -> Broker:
        broker = self._brokers.get(endpoint)
        if broker is None:
            name = self._endpoints[endpoint]
            self._clock_ns = self._first_ns
            recorder = HistoryRecorder(
                self._runtime, self._directory, broker=name, policy="", uncertainty_ns=UNCERTAINTY_NS_UNMEASURED,
                wait_s=WAIT_S, clock=lambda: self._clock_ns,
            )  # fmt: skip
            self._at_end.callback(recorder.stop)
            if self._dropped:
                recorder.lose(self._dropped, self._first_ns, self.last_ns)
            self._clock_ns = self.last_ns
            broker = self._brokers[endpoint] = Broker(name, recorder)
        return broker

    def _cut(self, key: Key) -> None:
        self._open[key][1].cut(self.last_ns)
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._gaps += self._open.pop(key)[1].gaps
        self._closed[key] = None
        self._closed.move_to_end(key)
        if len(self._closed) > CLOSED_MAX:
            self._closed.popitem(last=False)
