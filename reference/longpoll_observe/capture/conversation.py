"""One captured connection to a broker: orders both directions and passes them to the proxy's tap.

A request counts as received between the capture of its last byte and of the broker's acknowledgement of it, which is
sent by the kernel that has the byte. The earliest time of an answer is computed as in the proxy (`arrival`), from the
client's earlier acknowledgements and windows.

Bytes that were acknowledged but not captured are missing. So are those before the first whole frame of a connection
older than the capture. The history records this. Bytes count as missing only after `GRACE_NS`, because a capture may
swap packets; until then nothing after them is passed on.

Segments: see `packets`. Commands: see `tap`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define, field

from longpoll_observe.arrival_time import RECOVER_NS, SETTLE_NS, ArrivalTimes
from longpoll_observe.capture.clock import Agreement, SenderClock
from longpoll_observe.capture.packets import ACK, FIN, RST, SYN, Segment
from longpoll_observe.capture.tcp_stream import TcpStream
from longpoll_observe.tap import ConnectionTap, Sender, begins_frame

GRACE_NS: Final = 50_000_000
"""How long missing bytes may still arrive out of order."""
UNACKNOWLEDGED_MAX: Final = 8 * 1024 * 1024
"""Maximum bytes of requests that wait for the broker's acknowledgement."""
SEGMENT_MAX: Final = 64 * 1024
BLOCKED_NS: Final = 25_000_000
"""Minimum time without an empty socket after which an end may have left answers unseen."""


@define(slots=True, eq=False)
class Direction:
    """One direction: its bytes, the bounds of their send times, and the receiver's window.

    Invariant: `is_cut` is true from missing bytes until the next frame's begin.
    """

    sender: Sender
    arrivals: ArrivalTimes
    clock: SenderClock
    half: TcpStream = field(factory=TcpStream)
    is_cut: bool = False
    missing_ns: int | None = None
    """When bytes were first known to be missing."""
    acknowledged: int = 0
    """The position up to which the receiver has acknowledged everything."""
    scale: int | None = None
    """The scale of this sender's windows; None without a captured SYN."""
    window_max: int = 0
    """The receiver's largest window."""
    told_ns: int = 0
    """The latest reported time; later reports are never earlier."""


class Conversation:
    """A connection from its first captured packet on.

    Invariants: `_unacknowledged` are the client's bytes that wait for the broker's acknowledgement, each with its end
    position and capture time. While client bytes are missing, nothing of the broker is passed on.
    """

    def __init__(self, tap: ConnectionTap, first: Segment, *, is_first_of_client: bool, agreement: Agreement) -> None:
        now_ns = first.time_ns
        self._tap = tap
        self.client = Direction("client", ArrivalTimes(now_ns), SenderClock(agreement))
        self.broker = Direction("broker", ArrivalTimes(now_ns), SenderClock(agreement))
        self._unacknowledged: deque[tuple[int, int, bytes]] = deque()
        self._unacknowledged_size = 0
        self._stuck_ns: int | None = None
        self._ended_ns: int | None = None
        """When one side may have ended."""
        self._last_ns = now_ns
        self._begun_ns: int | None = now_ns
        """When the client's SYN was captured, until the broker answers; None for an older connection."""
        self.round_trip_ns: int | None = None
        """Time from a connection's first packet to the answer of the broker's kernel."""
        self.is_over = False
        self.gaps = 0
        self._syn = first.sequence
        self.is_whole = bool(first.flags & SYN) and is_first_of_client and not first.flags & ACK
        if not self.is_whole:
            self._begun_ns = None
            self.client.is_cut = self.broker.is_cut = True
            tap.joined(now_ns)

    def is_other(self, begin: Segment) -> bool:
        """Whether this SYN begins another connection between the same ports."""
        return not self.is_whole or begin.sequence != self._syn

    def saw(self, segment: Segment, *, is_of_client: bool) -> None:
        """Process the next packet of the connection."""
        now_ns = segment.time_ns
        own, other = (self.client, self.broker) if is_of_client else (self.broker, self.client)
        if segment.flags & SYN:
            self._synchronise(segment, own, now_ns)
            return
        if not segment.flags & RST:
            own.clock.saw(now_ns, segment.stamp)
        if not own.half.is_known:
            own.half.begin(segment.sequence)
        if segment.flags & ACK and not segment.flags & RST:
            self._acknowledge(segment, own, other, now_ns)
        own.arrivals.looked(now_ns - 1, own.half.come)
        self._look_at_stuck(now_ns)
        if segment.size:
            own.half.put(segment.sequence, now_ns, segment.content, segment.size)
        if segment.flags & (FIN | RST) and self._ended_ns is None:
            self._ended_ns = min(own.arrivals.since_ns, now_ns)
        if segment.flags & FIN:
            own.half.end = own.half.position_of(segment.sequence) + segment.size
        self._tell(now_ns)
        self._last_ns = max(self._last_ns, now_ns)
        if segment.flags & RST or (self.client.half.is_ended and self.broker.half.is_ended):
            self._close(now_ns)

    def cut(self, now_ns: int) -> None:
        """The capture ends before the connection, or its end was not captured."""
        self._tell_rest(now_ns)
        self._tap.cut(now_ns)
        self.is_over = True

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _synchronise(self, segment: Segment, own: Direction, now_ns: int) -> None:
        own.scale = segment.scale or 0
        if not own.half.is_known:
            own.half.begin(segment.sequence + 1)
        if own is self.broker and self._begun_ns is not None:
            self._tap.opened(self._begun_ns, now_ns)
            self.round_trip_ns = now_ns - self._begun_ns
            self.broker.arrivals = ArrivalTimes(now_ns, max(SETTLE_NS, 2 * self.round_trip_ns))
            self._begun_ns = None

    def _acknowledge(self, segment: Segment, own: Direction, other: Direction, now_ns: int) -> None:
        """Process an acknowledgement and window by `own` for the data of `other`."""
        half = other.half
        if not half.is_known:
            half.begin(segment.acknowledged)
        # The end of a stream counts as one byte there.
        acknowledged = half.position_of(segment.acknowledged)
        if half.end is not None:
            acknowledged = min(acknowledged, half.end)
        other.acknowledged = max(other.acknowledged, acknowledged)
        half.come = max(half.come, acknowledged)
        if other is self.client:
            self._tell_acknowledged(now_ns)
        window = segment.window << ((own.scale or 0) if other.scale != 0 else 0)
        other.window_max = max(other.window_max, window)
        # A kernel sends into a window of one segment, or of half the largest window.
        enough = other.window_max // 2 if own.scale is None else min(SEGMENT_MAX, other.window_max // 2)
        is_open = window > 0 and window >= enough
        if acknowledged == half.come == half.read and is_open:
            other.arrivals.acknowledged(now_ns, half.come + window // 2)
        if other is self.broker and not is_open and self._stuck_ns is None:
            self._stuck_ns = now_ns
            self._tap.blocked("answers", self._last_ns, now_ns)

    def _look_at_stuck(self, now_ns: int) -> None:
        """Report when all answers that had waited for the client have been seen."""
        if self._stuck_ns is not None and self.broker.arrivals.since_ns > self._stuck_ns:
            self._tap.unblocked("answers", self._stuck_ns, now_ns)
            self._stuck_ns = None

    def _tell(self, now_ns: int) -> None:
        self._tell_taken(self.client)
        self._tell_acknowledged(now_ns)
        self._give_up(self.client, now_ns)
        if self.client.missing_ns is None:
            self._tell_taken(self.broker)
            self._give_up(self.broker, now_ns)

    def _tell_taken(self, direction: Direction) -> None:
        half, arrivals = direction.half, direction.arrivals
        for time_ns, content in half.take():
            direction.told_ns = max(direction.told_ns, time_ns)
            after_ns = min(arrivals.since_ns, direction.told_ns)
            arrivals.read = half.read
            if direction.is_cut and not self._goes_on(direction, content, after_ns, direction.told_ns):
                continue
            if direction is self.broker:
                self._tap.answered(content, after_ns, direction.told_ns)
                continue
            self._unacknowledged.append((half.read, direction.told_ns, content))
            self._unacknowledged_size += len(content)
            if self._unacknowledged_size > UNACKNOWLEDGED_MAX:
                self._miss(direction, self._unacknowledged[0][1], time_ns)
                self._unacknowledged.clear()
                self._unacknowledged_size = 0

    def _goes_on(self, direction: Direction, content: bytes, after_ns: int, before_ns: int) -> bool:
        """Whether a frame begins with these bytes after a gap; otherwise they are missing too."""
        if begins_frame(content):
            direction.is_cut = False
            return True
        self._tap.missed(direction.sender, after_ns, before_ns)
        return False

    def _tell_acknowledged(self, now_ns: int) -> None:
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= self.client.acknowledged:
            _position, time_ns, content = waiting.popleft()
            self._unacknowledged_size -= len(content)
            self._tap.forwarded(content, time_ns, max(now_ns, time_ns))

    def _tell_unacknowledged(self, now_ns: int) -> None:
        """Pass on requests without acknowledgement, because the broker may have processed them."""
        for _position, time_ns, content in self._unacknowledged:
            self._tap.forwarded(content, time_ns, max(now_ns, time_ns))
        self._unacknowledged.clear()

    def _give_up(self, direction: Direction, now_ns: int, *, at_once: bool = False) -> None:
        """Skip bytes that were sent, by the receiver's acknowledgement, but not captured."""
        half = direction.half
        while half.is_known and (half.read < direction.acknowledged or half.is_full):
            if direction.missing_ns is None:
                direction.missing_ns = now_ns
            if not (at_once or half.is_full or now_ns - direction.missing_ns >= GRACE_NS):
                return
            after_ns = min(direction.arrivals.since_ns, direction.missing_ns)
            half.skip(direction.acknowledged)
            direction.arrivals.read = half.read
            self._miss(direction, after_ns, now_ns)
            self._tell_taken(direction)
            self._tell_acknowledged(now_ns)
        direction.missing_ns = None

    def _miss(self, direction: Direction, after_ns: int, before_ns: int) -> None:
        self.gaps += 1
        direction.is_cut = True
        self._tap.missed(direction.sender, after_ns, before_ns)

    def _close(self, now_ns: int) -> None:
        self._tell_rest(now_ns)
        assert self._ended_ns is not None, "what closes has ended"
        self._tap.closed(self._ended_ns, now_ns)
        self.is_over = True

    def _tell_rest(self, now_ns: int) -> None:
        """At the end: pass on waiting bytes, and report missing ones."""
        self._tell_taken(self.client)
        self._give_up(self.client, now_ns, at_once=True)
        self._tell_unacknowledged(now_ns)
        self._tell_taken(self.broker)
        self._give_up(self.broker, now_ns, at_once=True)
        self._tell_unseen(now_ns)

    def _tell_unseen(self, now_ns: int) -> None:
        """Report that answers sent by the broker may be unseen."""
        arrivals = self.broker.arrivals
        arrivals.looked(now_ns - 1, self.broker.half.come)
        if self._stuck_ns is None and now_ns - arrivals.since_ns > max(BLOCKED_NS, RECOVER_NS):
            self._tap.blocked("answers", min(arrivals.since_ns, now_ns), now_ns)
