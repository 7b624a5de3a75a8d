"""Orders both directions of a captured connection to a broker, and passes the bytes to the proxy's tap.

A request counts as received between the capture of its last byte and the capture of the broker's acknowledgement of
this byte, because the broker's kernel sends this acknowledgement once it has the byte. The earliest time of an answer
is computed as in the proxy (`arrival_time`), from the client's earlier acknowledgements and windows.

Segments may be out of order, repeated, overlapping, or truncated by the snap length; if bytes were captured twice, the
first copy counts. Bytes that were acknowledged but not captured are missing. If a connection is older than the capture,
the bytes before its first whole frame are missing too. The history records which bytes are missing. Bytes count as
missing only after `GRACE_NS`, because a capture may swap packets; until then, later bytes are not passed on.

A capture's timestamps come from a clock that can be set, and a step of this clock looks like a pause of the broker.
Most TCP senders write a counter of ms into each segment (RFC 7323), which cannot be set. Between two segments of one
sender, both clocks must advance equally. The difference is added to the uncertainty of timestamps. If the difference
exceeds `AGREE_NS`, or a sender has no counter, the capture's clock may have been changed, and the judge treats no
measurement by this clock as certain (`docs/history.md`).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Final

from attrs import define, field

from longpoll_observe.arrival_time import RECOVER_NS, SETTLE_NS, ArrivalTimes
from longpoll_observe.capture.capture_file import ACK, FIN, RST, SYN, Segment
from longpoll_observe.tap import ConnectionTap, Sender, begins_frame

HALF: Final = 1 << 31
MASK: Final = (1 << 32) - 1
PENDING_MAX: Final = 4 * 1024 * 1024
"""The maximum number of bytes of one direction that wait for earlier bytes."""


@define(slots=True)
class TcpStream:
    """The bytes of one direction.

    Invariants: `_next` is the sequence number of position `read`; `_pending` are later bytes as (position, time,
    bytes), ascending, and `_waiting` is their total length.
    """

    read: int = 0
    """The position before which all bytes were taken."""
    come: int = 0
    """The position after the last captured byte."""
    end: int | None = None
    """The position of the stream's end; None until it is captured."""
    _next: int | None = None
    _pending: list[tuple[int, int, bytes]] = field(factory=list)
    _waiting: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the position of the first byte is known."""
        return self._next is not None

    @property
    def is_ended(self) -> bool:
        """Whether all bytes up to the stream's end were taken."""
        return self.end is not None and self.read >= self.end

    def begin(self, sequence: int) -> None:
        """Set the sequence number of the stream's next byte."""
        self._next = sequence & MASK

    def position_of(self, sequence: int) -> int:
        """Returns the position of a sequence number, which may be before the taken bytes."""
        assert self._next is not None, "positions count from a known byte"
        return self.read + ((sequence - self._next + HALF) & MASK) - HALF

    def put(self, sequence: int, time_ns: int, content: bytes, size: int) -> None:
        """Add a segment of `size` bytes, of which `content` was captured."""
        position = self.position_of(sequence)
        self.come = max(self.come, position + size)
        skip = max(self.read - position, 0)
        if content[skip:]:
            insort(self._pending, (position + skip, time_ns, content[skip:]))
            self._waiting += len(content) - skip

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Iterate over the bytes that are now in order, with their times."""
        while self._pending and self._pending[0][0] <= self.read:
            position, time_ns, content = self._pending.pop(0)
            self._waiting -= len(content)
            content = content[self.read - position :]
            if content:
                self._go(self.read + len(content))
                yield time_ns, content

    @property
    def is_full(self) -> bool:
        """Whether too many bytes wait for missing earlier bytes."""
        return self._waiting > PENDING_MAX

    def skip(self, known: int) -> None:
        """Skip missing bytes: continue at the first captured byte, or at `known` if bytes up to there were sent."""
        first = self._pending[0][0] if self._pending else known
        self._go(max(min(first, known) if known > self.read else first, self.read))

    def _go(self, position: int) -> None:
        assert self._next is not None, "bytes are taken from a known one on"
        self._next = (self._next + position - self.read) & MASK
        self.read = position


TICK_NS: Final = 1_000_000
"""The unit of a sender's counter is assumed to be 1 ms. A counter with another unit counts as disagreeing with the
capture's clock."""
AGREE_NS: Final = 25_000_000
"""How far two clocks may differ and still agree. This is more than the usual delay from a sender to the capture."""
WINDOW_NS: Final = 10_000_000_000
"""The period after which clocks are compared again. Within a period, clocks drift by less than a tick (100 ppm)."""
STAMP_BITS: Final = 32


@define(slots=True)
class Agreement:
    """The result of comparing the capture's clock with the senders' clocks in a whole capture."""

    worst_ns: int = 0
    is_steady: bool = True
    """Whether every sender had a counter that agreed with the capture's clock."""

    @property
    def name(self) -> str:
        """The clock's name for `meta.json`."""
        return "monotonic" if self.is_steady else "unix"


@define(slots=True)
class SenderClock:
    """A sender's clock, as the capture's time and the sender's counter at the beginning of a period."""

    agreement: Agreement
    _time_ns: int = -1
    _stamp: int = 0

    def saw(self, time_ns: int, stamp: int | None) -> None:
        """Compare the clocks at a captured segment of the sender."""
        agreement = self.agreement
        if stamp is None:
            agreement.is_steady = False
            return
        if self._time_ns >= 0:
            ticks = (stamp - self._stamp) & ((1 << STAMP_BITS) - 1)
            if ticks >> (STAMP_BITS - 1):
                # A counter that is lower than the previous one means that the segment is out of order.
                return
            apart_ns = abs(time_ns - self._time_ns - ticks * TICK_NS)
            agreement.worst_ns = max(agreement.worst_ns, apart_ns)
            agreement.is_steady = agreement.is_steady and apart_ns <= AGREE_NS
        if self._time_ns < 0 or time_ns - self._time_ns > WINDOW_NS:
            self._time_ns, self._stamp = time_ns, stamp


GRACE_NS: Final = 50_000_000
"""How long the reader waits for missing bytes, which may arrive out of order."""
UNACKNOWLEDGED_MAX: Final = 8 * 1024 * 1024
"""The maximum number of bytes of requests that wait for the broker's acknowledgement."""
SEGMENT_MAX: Final = 64 * 1024
BLOCKED_NS: Final = 25_000_000
"""If a connection's socket was last seen empty longer than this before the connection's end, some answers may not have
been captured."""


@define(slots=True, eq=False)
class Direction:
    """One direction of a connection: its bytes, the bounds of their send times, and the receiver's window.

    Invariant: `is_cut` is true from the detection of missing bytes until the beginning of the next frame.
    """

    sender: Sender
    arrivals: ArrivalTimes
    clock: SenderClock
    half: TcpStream = field(factory=TcpStream)
    is_cut: bool = False
    missing_ns: int | None = None
    """When bytes were first known to be missing."""
    acknowledged: int = 0
    """The position up to which the receiver has acknowledged all bytes."""
    scale: int | None = None
    """The window scale of this direction's sender; None if no SYN of the sender was captured."""
    window_max: int = 0
    """The receiver's largest window."""
    told_ns: int = 0
    """The time of the latest event passed to the tap; later events never have an earlier time."""


class Conversation:
    """A connection from its first captured packet on.

    Invariants: `_unacknowledged` are the client's bytes that wait for the broker's acknowledgement, each with its end
    position and capture time. While bytes of the client are missing, no bytes of the broker are passed on.
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
        """End the conversation, because the capture ends before the connection does, or lacks its end."""
        self._tell_rest(now_ns)
        self._tap.cut(now_ns)
        self.is_over = True

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
        """Process an acknowledgement and window from `own` for the data of `other`."""
        half = other.half
        if not half.is_known:
            half.begin(segment.acknowledged)
        # In sequence numbers, the end of a stream counts as one byte.
        acknowledged = half.position_of(segment.acknowledged)
        if half.end is not None:
            acknowledged = min(acknowledged, half.end)
        other.acknowledged = max(other.acknowledged, acknowledged)
        half.come = max(half.come, acknowledged)
        if other is self.client:
            self._tell_acknowledged(now_ns)
        window = segment.window << ((own.scale or 0) if other.scale != 0 else 0)
        other.window_max = max(other.window_max, window)
        # A kernel sends if the receiver's window has room for one segment, or is at least half as large as the largest
        # window so far.
        enough = other.window_max // 2 if own.scale is None else min(SEGMENT_MAX, other.window_max // 2)
        is_open = window > 0 and window >= enough
        if acknowledged == half.come == half.read and is_open:
            other.arrivals.acknowledged(now_ns, half.come + window // 2)
        if other is self.broker and not is_open and self._stuck_ns is None:
            self._stuck_ns = now_ns
            self._tap.blocked("answers", self._last_ns, now_ns)

    def _look_at_stuck(self, now_ns: int) -> None:
        """Report that no answers wait any more, once all answers that waited for the client were captured."""
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
        """Whether a frame begins with these bytes, which follow a gap; if not, count them as missing too."""
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
        """Pass on requests that the broker did not acknowledge, because it may have processed them."""
        for _position, time_ns, content in self._unacknowledged:
            self._tap.forwarded(content, time_ns, max(now_ns, time_ns))
        self._unacknowledged.clear()

    def _give_up(self, direction: Direction, now_ns: int, *, at_once: bool = False) -> None:
        """Skip bytes that the receiver has acknowledged but the capture does not contain."""
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
        """At the end of the connection, pass the waiting bytes to the tap and report missing bytes."""
        self._tell_taken(self.client)
        self._give_up(self.client, now_ns, at_once=True)
        self._tell_unacknowledged(now_ns)
        self._tell_taken(self.broker)
        self._give_up(self.broker, now_ns, at_once=True)
        self._tell_unseen(now_ns)

    def _tell_unseen(self, now_ns: int) -> None:
        """Report that the broker may have sent answers that were not captured."""
        arrivals = self.broker.arrivals
        arrivals.looked(now_ns - 1, self.broker.half.come)
        if self._stuck_ns is None and now_ns - arrivals.since_ns > max(BLOCKED_NS, RECOVER_NS):
            self._tap.blocked("answers", min(arrivals.since_ns, now_ns), now_ns)
