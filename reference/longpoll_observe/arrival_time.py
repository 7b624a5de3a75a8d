"""Bounds when the next bytes of a connection can have been sent, although the sender's kernel may delay them.

A reader may find no bytes although some were sent, because they have not arrived yet. The sender's kernel holds bytes
back while the reader's window is used up, while a small segment waits for an acknowledgement (Nagle), or under
congestion control. In all three cases, an acknowledgement by the reader releases the bytes. Therefore bytes that were
sent before an acknowledgement have arrived one round trip after the acknowledgement, unless the sender has meanwhile
sent as much as the acknowledgement permitted.

Two rules follow. A *look* is a check of the socket that shows how many bytes had arrived:

- **quiet**: all arrived bytes were acknowledged more than `settle_ns` ago, and nothing has arrived since. The
  kernel then holds nothing back, so bytes that arrive later were sent after the look.
- **busy**: an acknowledgement is more than `settle_ns` old, and fewer bytes than it permitted have arrived since.
  Bytes that arrive later were then sent after that acknowledgement.

A sender that sent as much as it may, or much at once, resumes later, because its kernel resumes only together with the
process that holds the connection. Therefore `RECOVER_NS` replaces `settle_ns` for this sender for a while.

If neither rule applies, the earlier bound remains, which is less precise but never wrong. A third rule bounds a
connection whose sender is always ahead of the reader. A kernel holds at most `held_max` bytes of a connection. If a
byte is at least that far behind the last byte that had arrived at a look, it was sent after the look.

`relay_loop` checks the sockets. `longpoll_runtime.real` reads the kernel's data.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SETTLE_NS: Final = 2_000_000
"""The nanoseconds from an acknowledgement until the bytes that it releases have arrived, if the sender's kernel is not
busy."""
RECOVER_NS: Final = 50_000_000
"""The nanoseconds from an acknowledgement until bytes have arrived from a sender that used up the permitted amount.

The time is long, because the sender's process may hold the connection while it waits for the processor (15 ms were seen
with eleven waiting processes)."""
FIRST_FLIGHT: Final = 14_000
"""The bytes that a sender may send at once on a new connection, which are ten segments (RFC 6928)."""
LARGE_FLIGHT: Final = 64 * 1024
"""If a sender sent more bytes than this since the last acknowledgement, its kernel may delay bytes."""
THIN_NS: Final = 250_000
"""If two acknowledgements are less than this many nanoseconds apart, only the later one is kept."""
STEP: Final = 64 * 1024
"""The minimum number of bytes between two looks (checks of the socket) that the third rule keeps."""
HELD_MAX: Final = 5 * 1024 * 1024
"""The default for the maximum number of bytes of one connection that a kernel holds; Linux's default is 4 MiB
(`tcp_wmem`)."""
NEVER: Final = 1 << 63
"""A position after every possible position."""


class ArrivalTimes:
    """Bounds the send times of one direction of a connection, whose bytes are counted as they are read.

    Invariants: positions count the stream's bytes from 0. A mark is a pair (position, ns).

    - `_marks` are ascending in both values: no byte at or after a mark's position was sent before its time. The first
      mark applies to the next byte.
    - `_far` are marks by the third rule, at unread positions; `_far_ns` is the time of the last mark that was read.
    - `_used_up_ns` is the latest look at which much had arrived, or more than the latest acknowledgement permitted.
    - `_permits` are acknowledgements, ascending: ns, the position read by then, and the position permitted.
    - `_since_ns` is the bound of every position from the last read one up to `_since_stop`.
    """

    __slots__ = (
        "_far",
        "_far_next",
        "_far_ns",
        "_held_max",
        "_marks",
        "_permits",
        "_settle_ns",
        "_since_ns",
        "_since_stop",
        "_used_up_ns",
        "read",
    )

    def __init__(self, opened_ns: int, settle_ns: int = SETTLE_NS, held_max: int = HELD_MAX) -> None:
        self.read = 0
        self._held_max = held_max
        self._far: deque[tuple[int, int]] = deque()
        self._far_ns = opened_ns
        self._far_next = 0
        self._settle_ns = settle_ns
        self._marks = deque([(0, opened_ns)])
        self._permits = deque([(opened_ns, 0, FIRST_FLIGHT)])
        self._used_up_ns = opened_ns - 2 * RECOVER_NS
        self._since_ns, self._since_stop = opened_ns, 0

    @property
    def since_ns(self) -> int:
        """The bound for the next byte: it cannot have been sent before this time."""
        if self.read >= self._since_stop:
            self._reach()
        return self._since_ns

    def _reach(self) -> None:
        """Find the bound for the next byte, and the position up to which it applies."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= self.read:
            marks.popleft()
        far = self._far
        while far and far[0][0] <= self.read:
            self._far_ns = far.popleft()[1]
        self._since_ns = max(marks[0][1], self._far_ns)
        self._since_stop = min(marks[1][0] if len(marks) > 1 else NEVER, far[0][0] if far else NEVER)

    def acknowledged(self, now_ns: int, permitted: int) -> None:
        """Record an acknowledgement of all bytes read so far. The sender may then send up to position `permitted`."""
        permits = self._permits
        if len(permits) > 1 and now_ns - permits[-2][0] < THIN_NS:
            permits.pop()
        permits.append((now_ns, self.read, permitted))
        # Drop old acknowledgements, which would accumulate if no look is recorded.
        settled_ns = now_ns - max(RECOVER_NS, self._settle_ns)
        while len(permits) > 1 and permits[1][0] <= settled_ns:
            permits.popleft()

    def looked(self, looked_ns: int, come: int) -> None:
        """Record a check of the socket: some time after `looked_ns`, exactly the bytes before `come` had arrived."""
        if come >= self._far_next:
            self._far.append((come + self._held_max, looked_ns))
            self._far_next = come + STEP
            self._since_stop = 0
        permits = self._permits
        _acknowledged_ns, read, permitted = permits[-1]
        if come > permitted or come - read > LARGE_FLIGHT:
            self._used_up_ns = looked_ns
        is_recovering = looked_ns - self._used_up_ns < 2 * RECOVER_NS
        settled_ns = looked_ns - (max(RECOVER_NS, self._settle_ns) if is_recovering else self._settle_ns)
        while len(permits) > 1 and permits[1][0] <= settled_ns:
            permits.popleft()
        acknowledged_ns, read, permitted = permits[0]
        if acknowledged_ns > settled_ns:
            return
        if come == read:
            self._mark(come, looked_ns)
        elif come <= permitted:
            self._mark(come, acknowledged_ns)

    def ended(self, now_ns: int) -> None:
        """Record that the sender has ended its stream and all of it is read, so that no later byte exists."""
        self._mark(self.read, now_ns)

    def _mark(self, position: int, since_ns: int) -> None:
        marks = self._marks
        if since_ns <= marks[-1][1]:
            return
        # A bound at an earlier position also applies to all later positions, so drop the older bounds of these
        # positions.
        while marks and marks[-1][0] >= position:
            marks.pop()
        marks.append((position, since_ns))
        self._since_stop = 0
