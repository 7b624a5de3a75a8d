"""What the taps are still to be told, in the order in which it happened.

Reading commands costs many times what passing their bytes on does. Were it all done at once, the broker's next bytes
would wait for it in the broker's kernel, and nobody could say since when. So it is done in short turns, between which
the relay reads on, and what is not yet told waits here.

Leaves out when there is time for a turn, and what happens when too much waits (`relay_loop`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

Tell = Callable[[bytes, int, int], None]
"""Takes bytes, and the two moments between which they passed, ns."""

PIECE_SIZE: Final = 32 * 1024
"""Bytes that are handed to the tap at once: some 150 small commands, which take 2 to 3 ms."""


class TapQueue:
    """A queue of calls, which others only look at. Invariant: `size` is the length of the bytes that they tell of."""

    __slots__ = ("calls", "size")

    def __init__(self) -> None:
        self.calls: deque[tuple[Callable[[], None], int]] = deque()
        self.size = 0

    def add(self, call: Callable[[], None]) -> None:
        """Call this after everything before it."""
        self.calls.append((call, 0))

    def add_bytes(self, tell: Tell, content: bytes, after_ns: int, before_ns: int) -> None:
        """Tell of bytes, in pieces that share their moments: where a piece ends means nothing to a tap."""
        size = len(content)
        self.size += size
        if size <= PIECE_SIZE:
            self.calls.append((lambda: tell(content, after_ns, before_ns), size))
            return
        for start in range(0, size, PIECE_SIZE):
            piece = content[start : start + PIECE_SIZE]
            self.calls.append((partial(tell, piece, after_ns, before_ns), len(piece)))

    def tell(self, now_ns: Callable[[], int], turn_ns: int) -> None:
        """Make the calls for about so long, and one at least."""
        calls = self.calls
        stop_ns = 0
        while calls:
            call, size = calls.popleft()
            self.size -= size
            call()
            if calls:
                if not stop_ns:
                    stop_ns = now_ns() + turn_ns
                elif now_ns() >= stop_ns:
                    return

    def tell_down_to(self, size: int) -> None:
        """Make calls until at most `size` bytes wait."""
        while self.size > size:
            call, told = self.calls.popleft()
            self.size -= told
            call()

    def tell_all(self) -> None:
        """Make every call."""
        while self.calls:
            call, told = self.calls.popleft()
            self.size -= told
            call()
