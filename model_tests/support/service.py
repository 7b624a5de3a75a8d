"""Stand-ins that tests of the broker's services share."""

from __future__ import annotations

import time
from typing import Any

from longpoll_runtime.real import RealRuntime


class Clock(RealRuntime):
    """A runtime whose monotonic clock a test sets forward by `ahead_ns`."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0
        self.monotonic_ns = lambda: time.monotonic_ns() + self.ahead_ns


class Noting:
    """Notes each call of a method that it does not define: the name, with the arguments if there are any."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *words: self.notes.append((name, *words) if words else name)

    def told(self) -> list[Any]:
        """What was noted since this was asked."""
        notes, self.notes = self.notes, []
        return notes
