"""Since when the next bytes of a connection can have been sent, whatever the sender's kernel holds back.

A reader that finds nothing has not read all that was sent: the sender's kernel keeps bytes back while the window that
the reader offered is used up, while a small piece waits for the acknowledgement of the one before (Nagle), or while
congestion control has its share on the way. All three end in the same way: an acknowledgement leaves here. So what was
sent before an acknowledgement left is here one way and back later, if what it permitted was not used up meanwhile. That
is all that is relied on, and it gives two rules. A look is a moment at which it was known how many bytes had come:

- **quiet**: nothing has come since an acknowledgement of everything left here over `settle_ns` ago. Then nothing is
  held back anywhere, and what is not here was sent after the look.
- **busy**: what has come since an acknowledgement that left over `settle_ns` ago is less than it permitted. Then what
  is not here was sent after that acknowledgement.

A sender that used up what it was permitted, or sent much at once, takes longer to go on: its kernel goes on only when
the process that holds the connection does. So `RECOVER_NS` counts for a while then.

Where neither holds, the bound stays where it was: it gets wider, never wrong. A third rule bounds it on a connection
whose sender is always ahead of us, however long: a kernel holds no more than `held_max` bytes of a connection, so the
bytes that far beyond what has come at a look were sent after it.

Leaves out sockets (`relay_loop`) and what a kernel tells of them (`longpoll_runtime.sockets`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

SETTLE_NS: Final = 2_000_000
"""What an acknowledgement may take to have its effect here, where the sender's kernel has little to do for it."""
RECOVER_NS: Final = 50_000_000
"""The same where the sender had used up what it was permitted: its process may hold the connection and have to wait for
the processor (15 ms were seen, with eleven waiting for each)."""
FIRST_FLIGHT: Final = 14_000
"""Bytes that a sender may send at once on a new connection: ten segments (RFC 6928)."""
LARGE_FLIGHT: Final = 64 * 1024
"""More bytes than this since an acknowledgement, and the sender's kernel may have kept some back for its own reasons
(what waits below it, or its bottom half that is behind) until the sender's process has the processor again."""
THIN_NS: Final = 250_000
"""Acknowledgements closer than this to each other are kept as one, the later."""
STEP: Final = 64 * 1024
"""Looks at fewer bytes than this after another are not kept for the third rule."""
HELD_MAX: Final = 5 * 1024 * 1024
"""Most bytes that a kernel holds of one connection, unless told otherwise: Linux's default is 4 MiB (`tcp_wmem`)."""
NEVER: Final = 1 << 63
"""Beyond every position."""


class ArrivalTimes:
    """The bytes of one direction of one connection, counted as they are read.

    Invariants: positions count the stream's bytes from 0. `_marks` are (position, ns): no byte at that position or
    after it was sent before that moment; both ascend, and the first is the one for the next byte to be read.
    `_far` are such marks too, by the third rule, at positions not yet read; `_far_ns` is the last one reached.
    `_used_up_ns` is the latest look at which much had come, or more than the latest acknowledgement permitted.
    `_permits` are acknowledgements, ascending: ns, the position read by then, and up to where it permitted to send.
    `_since_ns` is the bound of every position before `_since_stop`, from the one read last on.
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
        """The next byte to be read was not sent before this moment."""
        if self.read >= self._since_stop:
            self._reach()
        return self._since_ns

    def _reach(self) -> None:
        """Find the bound of the next byte, and from where on another holds."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= self.read:
            marks.popleft()
        far = self._far
        while far and far[0][0] <= self.read:
            self._far_ns = far.popleft()[1]
        self._since_ns = max(marks[0][1], self._far_ns)
        self._since_stop = min(marks[1][0] if len(marks) > 1 else NEVER, far[0][0] if far else NEVER)

    def acknowledged(self, now_ns: int, permitted: int) -> None:
        """Everything read is acknowledged by now; the sender may send up to the position `permitted` at least."""
        permits = self._permits
        if len(permits) > 1 and now_ns - permits[-2][0] < THIN_NS:
            permits.pop()
        permits.append((now_ns, self.read, permitted))
        # Where nothing is ever looked at, they would be kept for ever.
        settled_ns = now_ns - max(RECOVER_NS, self._settle_ns)
        while len(permits) > 1 and permits[1][0] <= settled_ns:
            permits.popleft()

    def looked(self, looked_ns: int, come: int) -> None:
        """At some moment after `looked_ns` exactly the bytes before position `come` had come."""
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
        """The sender has ended, and everything is read: nothing was or will be sent that is not here."""
        self._mark(self.read, now_ns)

    def _mark(self, position: int, since_ns: int) -> None:
        marks = self._marks
        if since_ns <= marks[-1][1]:
            return
        # A later moment for an earlier position holds for every position after it too.
        while marks and marks[-1][0] >= position:
            marks.pop()
        marks.append((position, since_ns))
        self._since_stop = 0
