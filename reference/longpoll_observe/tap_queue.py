"""A queue of bytes for the taps, in order.

Decoding commands costs many times as much as relaying bytes. Done at once, it would leave the broker's next bytes
waiting in the kernel, with unknown times. So it is done in short turns, between which the relay continues.

Times of turns, and overload: see `relay_loop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

Tell = Callable[[bytes, int, int], None]
"""Takes bytes, and the two times between which they passed, ns."""

PIECE_SIZE: Final = 32 * 1024
"""Bytes passed to the tap at once: some 150 small commands, which take 2 to 3 ms."""


class TapQueue:
    """A queue of calls. Invariant: `size` is the total length of their bytes."""

    __slots__ = ("calls", "size")

    def __init__(self) -> None:
        self.calls: deque[tuple[Callable[[], None], int]] = deque()
        self.size = 0

    def add(self, call: Callable[[], None]) -> None:
        """Add a call after all others."""
        self.calls.append((call, 0))

    def add_bytes(self, tell: Tell, content: bytes, after_ns: int, before_ns: int) -> None:
        """Add bytes in pieces with the same times; the boundaries of pieces have no meaning."""
        size = len(content)
        self.size += size
        if size <= PIECE_SIZE:
            self.calls.append((lambda: tell(content, after_ns, before_ns), size))
            return
        for start in range(0, size, PIECE_SIZE):
            piece = content[start : start + PIECE_SIZE]
            self.calls.append((partial(tell, piece, after_ns, before_ns), len(piece)))

    def tell(self, now_ns: Callable[[], int], turn_ns: int) -> None:
        """Make calls for about this long, and at least one."""
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
