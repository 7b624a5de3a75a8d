"""A control thread that tells when the machine, and not the broker, stood still.

It sleeps a millisecond at a time and notes every sleep that took far longer: then nothing on this machine can be
trusted to have run in time. It cannot see a stall of another core alone, so it excuses too little rather than too much.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

SLEEP_S: Final = 0.001
STALL_MS: Final = 50.0
"""A sleep of a millisecond that takes longer is a stall; the interpreter's own turns take up to 5 ms a thread."""


class StallWatch:
    """Watches inside its block. Invariant: `_stalls` are in order and change under `_lock`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stalls: list[tuple[int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def stalled_ms(self, begin_ns: int, end_ns: int) -> float:
        """How long the machine was seen to stand still between two moments of the monotonic clock."""
        with self._lock:
            stalls = list(self._stalls)
        return sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in stalls) / 1e6

    def note(self, begin_ns: int, end_ns: int) -> None:
        """Note a sleep; a short one is forgotten."""
        if (end_ns - begin_ns) / 1e6 >= STALL_MS:
            with self._lock:
                self._stalls.append((begin_ns, end_ns))

    def _run(self) -> None:
        while not self._ended.is_set():
            begin_ns = time.monotonic_ns()
            time.sleep(SLEEP_S)
            self.note(begin_ns, time.monotonic_ns())
